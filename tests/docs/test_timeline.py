"""The explorer of the timeline: what it says, against the lab's counts, and how it can be used."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.docs.browser import ROOT, SCHEMES, SITE, WIDTHS, browser_page
from tests.docs.test_site import LOW_CONTRAST
from tests.lib.programs import Program, read_records

IN_SITE = SITE / "explorers"  # copied there by `make docs`
FOLDER = IN_SITE if (IN_SITE / "timeline.html").exists() else ROOT / "build/docs/explorers"
SOURCES = ("timeline.html", "timeline.js", "timeline_replay.js", "timeline.css", "explorer.js",
           "explorer.css")
LARGEST_BYTES = 40_000
LONGEST_START_MS = 1000
CONTROLS = {"step", "mask", "first", "back", "forward", "last", "play", "position"}

TEXT = (FOLDER / "data/timeline.js").read_text()
STEPS = {step["step"]: {problem["mask"]: problem for problem in step["problems"]}
         for step in json.loads(TEXT[TEXT.index("{"):TEXT.rindex(";")])["steps"]}
PROBLEMS = [(step, mask) for step, problems in STEPS.items() for mask in problems]


def open_page(page: Page, step: str = "step04", mask: str = "full") -> None:
    page.goto(f"{(FOLDER / 'timeline.html').as_uri()}#{step.removeprefix('step')},{mask}")


def events(page: Page, advance: Callable[[], None]) -> list[str]:
    """The text of every event, from the first one on, as it changes."""
    page.keyboard.press("Home")
    count = page.evaluate("""() => {
      const event = document.getElementById('event');
      window.watcher?.disconnect();
      window.said = [event.textContent];
      window.watcher = new MutationObserver(() => said.push(event.textContent));
      watcher.observe(event, { childList: true });
      return document.querySelectorAll('#list li').length;
    }""")
    for _ in range(count - 1):
        advance()
    return page.evaluate("said")


@pytest.mark.parametrize("step", STEPS)
def test_keys_and_clicks_tell_the_same_events(step: str) -> None:
    with browser_page() as (page, errors):
        open_page(page)
        page.select_option("#step", step)
        for mask, problem in STEPS[step].items():
            page.select_option("#mask", mask)
            page.locator("h1").click()  # a focused select takes the keys itself
            by_key = events(page, lambda: page.keyboard.press("ArrowRight"))
            assert len(by_key) == len(problem["events"])
            assert events(page, lambda: page.click("#forward")) == by_key
            page.keyboard.press("ArrowLeft")
            assert page.inner_text("#event") == by_key[-2]
            page.click("#back")
            assert page.inner_text("#event") == by_key[-3]
            page.click("#first")
            assert page.inner_text("#event") == by_key[0]
            page.evaluate("document.querySelector('details').open = true")
            assert page.locator("#list li").all_inner_texts() == [
                text.split(". ", 1)[1] for text in by_key]
        assert errors == []


def states_at(page: Page, problem: dict, op: str) -> list[str]:
    """The states of all buffers after each event of this kind."""
    states = []
    for at, event in enumerate(problem["events"]):
        if event["op"] != op:
            continue
        page.locator("#position").fill(str(at))
        assert page.inner_text("#event").startswith(f"{at + 1} of ")
        states.append(page.inner_text("#buffers"))
    return states


def test_step03_has_nothing_in_flight_at_a_barrier() -> None:
    with browser_page() as (page, _):
        for mask, problem in STEPS["step03"].items():
            open_page(page, "step03", mask)
            assert page.inner_text("#problem").count("in flight: 0 of") == 1
            states = states_at(page, problem, "barrier")
            assert len(states) > 10 and not any("in flight" in state for state in states)


def test_step04_leaves_a_copy_in_flight() -> None:
    problem = STEPS["step04"]["full"]
    waits = [event for event in problem["events"] if event.get("pending") == 1]
    assert len(waits) == 5 and all(wait["done"] and wait["in_flight"] for wait in waits)
    with browser_page() as (page, _):
        open_page(page)
        texts = events(page, lambda: page.keyboard.press("ArrowRight"))
        waits = [text for text in texts if "wait_group<1>" in text]
        assert waits[1].endswith("wait_group<1>: this warp's copies of V of tile 1 are complete, "
                                 "K of tile 2 stays in flight.")
        assert sum("in flight" in state for state in states_at(page, problem, "pv")) == 5


def total(problem: dict, name: str, op: str | None = None) -> int:
    return sum(event.get(name, 0) for event in problem["events"] if op in (None, event["op"]))


@pytest.mark.parametrize("step, mask", [(step, mask) for step, mask in PROBLEMS
                                        if mask in ("full", "causal")])
def test_counts_of_a_warp_are_those_of_the_lab(step: str, mask: str, tmp_path: Path) -> None:
    """All warps do as much if the mask is full; else the lab is asked about the same thread block
    alone, whose last query is the last of the problem."""
    program, problem = Program(step), STEPS[step][mask]
    if not program.path.exists():
        pytest.skip(f"{program.path} is not built")
    queries, keys = problem["q_len"], problem["kv_len"]
    if mask == "causal":
        queries, keys = problem["block_m"], problem["block_m"] + keys - queries
        assert problem["first_query"] == 0
    program.run_right("-H", 1, "-n", queries, "-k", keys, "-m", mask,
                      f"--report=counts,traffic,json:{tmp_path / 'lab'}")
    (lab,) = [record for record in read_records(tmp_path / "lab") if record["record"] == "kernel"
              and record["kernel"].startswith("attention_kernel")]
    found = {"mma": total(problem, "mma"), "ldmatrix_requests": total(problem, "ldmatrix"),
             "copy_shared_requests": total(problem, "copies"),
             "barriers": sum(event["op"] == "barrier" for event in problem["events"])}
    if step < "step03":
        found["global_load_requests"] = total(problem, "loads", "load")
    if step < "step06":  # there the values decide how often a warp shuffles
        found["shuffles"] = total(problem, "shuffles")
    with browser_page() as (page, _):
        open_page(page, step, mask)
        said = re.search(r"in flight: (\d+) of (\d+)", page.inner_text("#problem"))
    if step != "step02":
        assert int(said[2]) == found["mma"] > 0
        found["mma_under_copy"] = int(said[1])
    warps = lab["blocks"] * problem["warps"]
    assert {name: count * warps for name, count in found.items()} == {
        name: lab[name] for name in found}


@pytest.mark.parametrize("step, mask", PROBLEMS)
def test_waits_follow_the_groups(step: str, mask: str) -> None:
    """A copy is in flight until a wait covers its group, and its tile is not read before."""
    group, in_flight, buffers = 0, set(), {}
    for event in STEPS[step][mask]["events"]:
        if event["op"] == "copy":
            assert event["group"] == group
            in_flight.add(group)
            buffers[event["buffer"]] = group
        elif event["op"] == "commit":
            assert event["group"] == group
            group += 1
        elif event["op"] == "wait":
            done = {copied for copied in in_flight if copied < group - event["pending"]}
            in_flight -= done
            assert (set(event["done"]), set(event["in_flight"])) == (done, in_flight)
        for buffer in event.get("reads", ()):
            assert buffers.get(buffer) not in in_flight


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_fits_the_window(width: int, scheme: str) -> None:
    with browser_page(width, scheme) as (page, errors):
        for step in STEPS:
            for mask in STEPS[step]:
                open_page(page, step, mask)
                page.keyboard.press("End")
                assert page.evaluate("document.documentElement.scrollWidth") <= width
                box = page.locator("#chart .current").bounding_box()
                assert 0 <= box["x"] and box["x"] + box["width"] <= width
        assert page.evaluate(LOW_CONTRAST) == []
        assert page.evaluate("performance.timing.loadEventEnd - performance.timing.navigationStart"
                             ) < LONGEST_START_MS
        assert errors == []


def test_keyboard_alone() -> None:
    with browser_page() as (page, errors):
        open_page(page)
        reached = set()
        for _ in range(20):
            page.keyboard.press("Tab")
            reached.add(page.evaluate("document.activeElement.id"))
        assert CONTROLS <= reached
        page.focus("#play")
        page.keyboard.press("Enter")
        page.wait_for_function("document.getElementById('event').textContent.startsWith('3 of')")
        page.keyboard.press("Enter")
        assert page.inner_text("#play") == "Play"
        page.focus("#step")
        page.keyboard.press("ArrowDown")
        assert page.input_value("#step") == "step05"
        assert page.evaluate("location.hash") == "#05,full"
        assert errors == []


def test_size() -> None:
    assert sum((FOLDER / name).stat().st_size for name in SOURCES) < LARGEST_BYTES
