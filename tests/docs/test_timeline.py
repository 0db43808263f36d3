"""The explorer of the timeline: what it says, against the lab's counts, and how it can be used."""

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page

from plots.figures.records import DENSE
from tests.docs.conftest import SITE
from tests.lib.kinds import FP8_STEPS
from tests.lib.programs import Program, read_records

TEXT = (SITE / "explorers/data/timeline.js").read_text()
STEPS = {
    step["step"]: {problem["mask"]: problem for problem in step["problems"]}
    for step in json.loads(TEXT[TEXT.index("{") : TEXT.rindex(";")])["steps"]
}
WITH_ROLES = [step for step, problems in STEPS.items() if "roles" in problems["full"]]
OF_A_WARP = [step for step in STEPS if step not in WITH_ROLES]


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


# In every run one step whose warps do the same, one with block masks, one with roles.
@pytest.mark.parametrize(
    "step",
    [
        pytest.param(step, marks=() if step in ("step02b", "step05", "step10c") else pytest.mark.exhaustive)
        for step in STEPS
    ],
)
def test_keys_and_clicks_tell_the_same_events(page: Page, step: str) -> None:
    for mask, problem in STEPS[step].items():
        open_page(page, step, mask)
        found = page.evaluate(WALK, "ArrowRight")
        assert page.evaluate(WALK, "click") == found
        page.evaluate("document.querySelector('details').open = true")
        texts = [text.split(". ", 1)[1] for text, _ in found]
        assert page.locator("#list").inner_text().split("\n") == texts
        assert len(texts) == len(
            problem["events"] if step in OF_A_WARP else {event["at"] for event in problem["events"]}
        )


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
    assert ("wait_group<1>: this warp's copies of V of tile 1 are complete, K of tile 2 stays in flight.") in waits[1]


def total(problem: dict, name: str, op: str | None = None) -> int:
    return sum(event.get(name, 0) for event in problem["events"] if op in (None, event["op"]))


@pytest.mark.parametrize(
    "step, mask", [*((step, "full") for step in OF_A_WARP), ("step05", "causal"), ("step06", "causal")]
)
def test_counts_of_a_warp_are_those_of_the_lab(page: Page, step: str, mask: str, tmp_path: Path) -> None:
    """All warps do as much if the mask is full; else the lab is asked about the same thread block
    alone, whose last query is the last of the problem."""
    program, problem = Program(step), STEPS[step][mask]
    queries, keys = problem["q_len"], problem["kv_len"]
    if mask == "causal":
        queries, keys = problem["block_m"], problem["block_m"] + keys - queries
        assert problem["first_query"] == 0
    program.run_right(
        "-H", 1, "-n", queries, "-k", keys, "-m", mask, f"--report=counts,traffic,json:{tmp_path / 'lab'}"
    )
    (lab,) = [
        record
        for record in read_records(tmp_path / "lab")
        if record["record"] == "kernel" and record["kernel"].startswith("attention_kernel")
    ]
    found = {
        "mma": total(problem, "mma"),
        "ldmatrix_requests": total(problem, "ldmatrix"),
        "copy_shared_requests": total(problem, "copies"),
        "barriers": sum(event["op"] == "barrier" for event in problem["events"]),
    }
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
    assert {name: count * warps for name, count in found.items()} == {name: lab[name] for name in found}


def of_role(problem: dict, role: int, *ops: str) -> list[dict]:
    return [event for event in problem["events"] if event["role"] == role and event["op"] in ops]


@pytest.mark.parametrize("step", WITH_ROLES)
def test_stages_are_asked_for_when_all_have_released_them(step: str) -> None:
    """Follows the mbarriers, as docs/hopper.md explains them, in the order of the columns."""
    for problem in STEPS[step].values():
        buffers, barriers = problem["buffers"], problem["barriers"]
        readers = {
            buffer: {
                event["role"]
                for event in problem["events"]
                if event["op"] in ("qk", "pv") and event["buffer"] == buffer or event.get("source") == buffer
            }
            for buffer in range(len(buffers))
        }
        loaded, arrived, uses = {}, {}, {}
        for event in problem["events"]:
            barrier, phase = event.get("barrier"), event.get("phase")
            if event["op"] == "load":
                buffer = event["buffer"]
                assert phase == uses.get(buffer, 0)  # each use of a stage is a phase
                uses[buffer] = phase + 1
                if event["tensor"] != "Q" and phase > 0:
                    (empty,) = (i for i, b in enumerate(barriers) if b == {"buffer": buffer, "full": False})
                    assert arrived[empty, phase - 1] == readers[buffer] != set()
                loaded[barrier, phase] = event
            elif event["op"] == "arrive":
                arrived.setdefault((barrier, phase), set()).add(event["role"])
                if barriers[barrier]["full"]:  # V transposed, or a slot of V for O
                    uses[barriers[barrier]["buffer"]] = phase + 1
            elif event["op"] == "await" and phase >= 0:
                assert (barrier, phase) in loaded or (barrier, phase) in arrived
                if (barrier, phase) in loaded:
                    assert loaded[barrier, phase]["at"] < event["at"]
        tiles = -(-problem["kv_len"] // problem["block_n"])
        keys = [event["tile"] for event in problem["events"] if event["op"] == "load" and event["tensor"] == "K"]
        assert problem["mask"] not in DENSE or keys[:tiles] == list(range(tiles))
        stages = [i for i, b in enumerate(buffers) if b["name"].startswith("K[")]
        assert uses[stages[0]] == -(-len(keys) // len(stages))


def test_only_from_step09_on_products_run_during_the_softmax_of_their_consumer(page: Page) -> None:
    said = {}
    for step in WITH_ROLES:
        open_page(page, step)
        said[step] = re.search(r"in flight: (\d+) of (\d+)\.", page.inner_text("#problem")).groups()
    softmaxes = {step: sum(event["op"] == "softmax" for event in STEPS[step]["full"]["events"]) for step in WITH_ROLES}
    firsts = {
        step: sum(event["op"] == "qk" and event["tile"] == 0 for event in STEPS[step]["full"]["events"])
        for step in WITH_ROLES
    }  # the first tile of each consumer and tile of queries has no P V before
    overlapped = {
        step: 0 if step < "step09" or step in FP8_STEPS else softmaxes[step] - firsts[step] for step in WITH_ROLES
    }
    assert said == {step: (str(overlapped[step]), str(softmaxes[step])) for step in WITH_ROLES}
    open_page(page, "step09")
    texts = " ".join(text for text, _ in page.evaluate(WALK, "ArrowRight"))
    assert texts.count("wgmma_wait<1>: Q Kᵀ of tile 1 is complete, P V of tile 0 stays in flight.") == 2


@pytest.mark.parametrize("step", ["step08", "step09"])
def test_consumers_take_turns(step: str) -> None:
    """Behind each turn of a consumer come its products, then it passes the turn on."""
    (problem, *_) = STEPS[step].values()
    products = {}
    for consumer in (1, 2):
        events = of_role(problem, consumer, "turn", "qk", "pass")
        starts = [at for at, event in enumerate(events) if event["op"] == "turn"]
        for at in starts:
            assert events[at]["id"] == consumer and events[at + 1]["op"] == "qk"
            products.setdefault(consumer, []).append(events[at + 1]["at"])
    pairs = list(zip(products[1], products[2], strict=True))
    assert len(pairs) > 2
    assert all(first < second for first, second in pairs)
    assert all(second < following for (_, second), (following, _) in zip(pairs, pairs[1:]))


@pytest.mark.parametrize("step", WITH_ROLES)
def test_counts_of_a_thread_block_are_those_of_the_lab(step: str, tmp_path: Path) -> None:
    """Under a full mask all tiles of queries need the same instructions."""
    problem = STEPS[step]["full"]
    program = Program(step)
    program.run_right(
        "-H",
        1,
        "-n",
        problem["q_len"],
        "-k",
        problem["kv_len"],
        "-d",
        problem["head_dim"],
        f"--report=counts,json:{tmp_path / 'lab'}",
    )
    (lab,) = [
        record
        for record in read_records(tmp_path / "lab")
        if record["record"] == "kernel" and record["kernel"].startswith("attention_kernel")
    ]
    drawn = sum(event["count"] for event in problem["events"] if event["op"] in ("qk", "pv"))
    boxes = sum(event["count"] for event in problem["events"] if event["op"] == "load")
    queries = {
        event["rows"][0] // problem["block_m"]
        for event in problem["events"]
        if event["op"] == "load" and event["tensor"] == "Q"
    }
    tiles = -(-problem["q_len"] // problem["block_m"])
    assert lab["wgmma"] * len(queries) == drawn * tiles
    assert lab["tensor_load_requests"] * len(queries) == boxes * tiles


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
