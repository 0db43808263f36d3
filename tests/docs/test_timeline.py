"""The explorer of the timeline: what it says, against the lab's counts, and how it can be used."""

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.docs.conftest import SITE
from tests.lib.programs import Program, read_records

TEXT = (SITE / "explorers/data/timeline.js").read_text()
STEPS = {step["step"]: {problem["mask"]: problem for problem in step["problems"]}
         for step in json.loads(TEXT[TEXT.index("{"):TEXT.rindex(";")])["steps"]}


def open_page(page: Page, step: str, mask: str = "full") -> None:
    page.goto("about:blank")
    address = (SITE / "explorers/timeline.html").as_uri()
    page.goto(f"{address}#{step.removeprefix('step')},{mask}")


# Goes through all events and collects their texts and the states of the buffers.
WALK = """advance => {
  const text = id => document.getElementById(id).textContent;
  const key = key => document.body.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }));
  key('Home');
  const found = [[text('event'), text('buffers')]];
  for (let i = document.querySelectorAll('#list li').length; i > 1; i--) {
    if (advance === 'click') document.getElementById('forward').click(); else key(advance);
    found.push([text('event'), text('buffers')]);
  }
  return found;
}"""


@pytest.mark.parametrize("step", STEPS)
def test_keys_and_clicks_tell_the_same_events(page: Page, step: str) -> None:
    for mask, problem in STEPS[step].items():
        open_page(page, step, mask)
        found = page.evaluate(WALK, "ArrowRight")
        assert page.evaluate(WALK, "click") == found
        page.evaluate("document.querySelector('details').open = true")
        texts = [text.split(". ", 1)[1] for text, _ in found]
        assert page.locator("#list").inner_text().split("\n") == texts
        assert len(texts) == len(problem["events"])


def states_at(page: Page, step: str, op: str, mask: str = "full") -> list[str]:
    """The texts and states of all events of this kind."""
    open_page(page, step, mask)
    found = page.evaluate(WALK, "ArrowRight")
    events = STEPS[step][mask]["events"]
    return [" ".join(found[at]) for at, event in enumerate(events) if event["op"] == op]


def test_step03_has_nothing_in_flight_at_a_barrier_and_step04_has(page: Page) -> None:
    for mask in STEPS["step03"]:
        states = states_at(page, "step03", "barrier", mask)
        assert len(states) > 10 and not any("in flight" in state for state in states)
    assert sum("in flight" in state for state in states_at(page, "step04", "pv")) == 5
    waits = [state for state in states_at(page, "step04", "wait") if "wait_group<1>" in state]
    assert ("wait_group<1>: this warp's copies of V of tile 1 are complete, K of tile 2 stays in "
            "flight.") in waits[1]


def total(problem: dict, name: str, op: str | None = None) -> int:
    return sum(event.get(name, 0) for event in problem["events"] if op in (None, event["op"]))


@pytest.mark.parametrize("step, mask", [*((step, "full") for step in STEPS), ("step05", "causal"),
                                        ("step06", "causal")])
def test_counts_of_a_warp_are_those_of_the_lab(page: Page, step: str, mask: str,
                                               tmp_path: Path) -> None:
    """All warps do as much if the mask is full; else the lab is asked about the same thread block
    alone, whose last query is the last of the problem."""
    program, problem = Program(step), STEPS[step][mask]
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
    open_page(page, step, mask)
    said = re.search(r"in flight: (\d+) of (\d+)", page.inner_text("#problem"))
    if step != "step02":
        assert int(said[2]) == found["mma"] > 0
        found["mma_under_copy"] = int(said[1])
    warps = lab["blocks"] * problem["warps"]
    assert {name: count * warps for name, count in found.items()} == {
        name: lab[name] for name in found}


def test_keyboard_alone(page: Page) -> None:
    open_page(page, "step04")
    reached = set()
    for _ in range(20):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id"))
    assert {"step", "mask", "first", "back", "forward", "last", "play", "position"} <= reached
    page.focus("#play")
    page.keyboard.press("Enter")
    page.wait_for_function("document.getElementById('event').textContent.startsWith('3 of')")
    page.keyboard.press("Enter")
    assert page.inner_text("#play") == "Play"
    page.focus("#step")
    page.keyboard.press("ArrowDown")
    assert page.input_value("#step") == "step05" and page.url.endswith("#05,full")
