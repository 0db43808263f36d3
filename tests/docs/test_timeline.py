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
PACKED, _ = json.JSONDecoder().raw_decode(TEXT, TEXT.index("{"))
PRODUCTS = ("qk", "pv", "dp", "dv", "dk", "dq")


def unpacked(problem: dict) -> dict:
    """A problem as docs/explorers/pack.py got it."""
    events = []
    for number, *values in problem["events"]:
        op, *fields = PACKED["kinds"][number]
        event = {"op": op, **dict(zip(fields, values, strict=True))}
        events.append({"from": event["at"], **event} if "at" in event else event)
    return problem | {"events": events}


STEPS = {step["step"]: {problem["mask"]: unpacked(problem) for problem in step["problems"]} for step in PACKED["steps"]}
WITH_ROLES = [step for step, problems in STEPS.items() if "roles" in problems["full"]]
OF_A_WARP = [step for step in STEPS if step not in WITH_ROLES]
BACKWARD = [step for step, problems in STEPS.items() if "backward" in problems["full"]]
FORWARD_WITH_ROLES = [step for step in WITH_ROLES if step not in BACKWARD]


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


IN_EVERY_RUN = ("step02b", "step05", "step10c", "step15", "step17f")


# In every run one step whose warps do the same, one with block masks, one with roles, and one backward pass of each
# kind, the last with clusters.
@pytest.mark.parametrize(
    "step", [pytest.param(step, marks=() if step in IN_EVERY_RUN else pytest.mark.exhaustive) for step in STEPS]
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


def lab_record(path: Path) -> dict:
    """What the lab says of the kernel that the explorer shows, which is the first of these."""
    kernels = ("attention_kernel", "keys_kernel", "backward_kernel")
    found = [
        record for record in read_records(path) if record["record"] == "kernel" and record["kernel"].startswith(kernels)
    ]
    assert len(found) == 1
    return found[0]


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
    lab = lab_record(tmp_path / "lab")
    found = {
        "mma": total(problem, "mma"),
        "ldmatrix_requests": total(problem, "ldmatrix"),
        "copy_shared_requests": total(problem, "copies"),
        "barriers": sum(event["op"] == "barrier" for event in problem["events"]),
    }
    if step in BACKWARD:
        if not any(event["op"] == "look" for event in problem["events"]):  # the lab counts these, too
            found["atomics"] = 32 * total(problem, "adds")
        # The first warp alone copies LSE and D.
        numbers = sum(event["copies"] for event in problem["events"] if event.get("tensor") == "LSE, D")
        found["copy_shared_requests"] -= numbers
        lab["copy_shared_requests"] -= numbers * lab["blocks"]
        assert numbers > 0
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


def reads_of(event: dict) -> set[int]:
    """The buffers that a product reads."""
    if event["op"] not in PRODUCTS:
        return set()
    return set(event.get("reads", [event["buffer"], *([event["q"]] if "q" in event else [])]))


@pytest.mark.parametrize("step", WITH_ROLES)
def test_stages_are_asked_for_when_all_have_released_them(step: str) -> None:
    """Follows the mbarriers, as docs/hopper.md explains them, in the order of the columns."""
    for problem in STEPS[step].values():
        buffers, barriers = problem["buffers"], problem["barriers"]
        own, streams = ("K", ("Q", "dO")) if step in BACKWARD else ("Q", ("K", "V"))
        readers = {
            buffer: {
                event["role"]
                for event in problem["events"]
                if buffer in reads_of(event) or event.get("source") == buffer and event["op"] == "transpose"
            }
            for buffer in range(len(buffers))
        }
        empty = {b["buffers"][0]: i for i, b in enumerate(barriers) if not b["full"]}
        loaded, arrived, uses = {}, {}, {}
        for event in problem["events"]:
            barrier, phase = event.get("barrier"), event.get("phase")
            if event["op"] == "load":
                buffer = event["buffer"]
                assert phase == uses.get(buffer, 0)  # each use of a stage is a phase
                uses[buffer] = phase + 1
                if event["tensor"] in streams and phase > 0 and buffer in empty:
                    assert arrived[empty[buffer], phase - 1] == readers[buffer] != set()
                loaded[barrier, phase] = event
            elif event["op"] == "arrive" and "other" not in event:
                arrived.setdefault((barrier, phase), set()).add(event["role"])
                if barriers[barrier]["full"] and step not in BACKWARD:  # V transposed, or a slot of V for O
                    uses[barriers[barrier]["buffers"][0]] = phase + 1
            elif event["op"] == "await" and phase >= 0:
                assert (barrier, phase) in loaded or (barrier, phase) in arrived
                if (barrier, phase) in loaded:
                    assert loaded[barrier, phase]["at"] < event["at"]
        block = problem["block_m"] if step in BACKWARD else problem["block_n"]
        tiles = -(-problem["q_len" if step in BACKWARD else "kv_len"] // block)
        loads = [
            event["tile"] for event in problem["events"] if event["op"] == "load" and event["tensor"] == streams[0]
        ]
        visited = list(dict.fromkeys(loads)) if step in BACKWARD else loads
        assert problem["mask"] not in DENSE or visited[:tiles] in (list(range(tiles)), list(range(tiles))[::-1])
        stages = [i for i, b in enumerate(buffers) if b["name"].startswith(f"{streams[0]}[")]
        assert uses[stages[0]] == -(-len(loads) // len(stages))
        assert all(
            event["phase"] == 0 for event in problem["events"] if event.get("tensor") == own and step in BACKWARD
        )


@pytest.mark.parametrize("step", WITH_ROLES)
def test_buffers_are_overwritten_when_all_products_that_read_them_are_complete(step: str) -> None:
    """Also where no empty barrier says so, and where the other block of a cluster writes."""
    for problem in STEPS[step].values():
        reading, overwritten = {}, 0  # by role and group, the buffers that a product in flight reads
        for event in sorted(problem["events"], key=lambda event: (event["at"], event["op"] != "complete")):
            role = event["role"]
            if event["op"] in PRODUCTS:
                reading[role, event["group"]] = reads_of(event)
            elif event["op"] == "complete":
                for group in range(*event["done"]):
                    reading.pop((role, group))
            elif event["op"] in ("load", "ds", "put") or event["op"] == "send" and "other" not in event:
                overwritten += 1
                assert not any(event["buffer"] in buffers for buffers in reading.values()), event
        assert reading == {} and overwritten > 4


def test_only_from_step09_on_products_run_during_the_softmax_of_their_consumer(page: Page) -> None:
    said = {}
    for step in FORWARD_WITH_ROLES:
        open_page(page, step)
        said[step] = re.search(r"in flight: (\d+) of (\d+)\.", page.inner_text("#problem")).groups()
    softmaxes = {
        step: sum(event["op"] == "softmax" for event in STEPS[step]["full"]["events"]) for step in FORWARD_WITH_ROLES
    }
    firsts = {
        step: sum(event["op"] == "qk" and event["tile"] == 0 for event in STEPS[step]["full"]["events"])
        for step in FORWARD_WITH_ROLES
    }  # the first tile of each consumer and tile of queries has no P V before
    overlapped = {
        step: 0 if step < "step09" or step in FP8_STEPS else softmaxes[step] - firsts[step]
        for step in FORWARD_WITH_ROLES
    }
    assert said == {step: (str(overlapped[step]), str(softmaxes[step])) for step in FORWARD_WITH_ROLES}
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
    lab = lab_record(tmp_path / "lab")
    drawn = sum(event["count"] for event in problem["events"] if event["op"] in PRODUCTS)
    boxes = sum(event["count"] for event in problem["events"] if event["op"] == "load")
    if step in BACKWARD:  # a block has keys, and goes through all queries
        added = sum(event["count"] for event in problem["events"] if event["op"] == "add")
        assert lab["wgmma"] == drawn * problem["blocks"]
        assert lab["tensor_load_requests"] == boxes * problem["blocks"]
        assert added > 0
        if not of_role(problem, 0, "look"):  # that the lab counts as well, each time that a block waits
            assert lab["atomics"] == 128 * added * problem["blocks"]
        return
    queries = {
        event["rows"][0] // problem["block_m"]
        for event in problem["events"]
        if event["op"] == "load" and event["tensor"] == "Q"
    }
    tiles = -(-problem["q_len"] // problem["block_m"])
    assert lab["wgmma"] * len(queries) == drawn * tiles
    assert lab["tensor_load_requests"] * len(queries) == boxes * tiles


# Of the backward passes at D = 64 and 128: what is in flight during the exponentials of a tile, but for the first one.
BESIDE_P = {"step16": ("dp", 0), "step17": ("dk", 1), "step17d": ("dk", 1), "step17g": ("dk", 1), "step17h": ("dk", 1)}


@pytest.mark.parametrize("step", [step for step in BACKWARD if step in WITH_ROLES])
def test_what_runs_beside_the_exponentials_of_a_backward_pass(page: Page, step: str) -> None:
    problem = STEPS[step]["full"]
    beside = []
    for own in (event for event in problem["events"] if event["op"] == "softmax"):
        done = [event["done"] for event in of_role(problem, own["role"], "complete") if event["at"] < own["at"]]
        started = [event for event in of_role(problem, own["role"], *PRODUCTS) if event["at"] < own["at"]]
        beside.append([event for event in started if not any(event["group"] in range(*groups) for groups in done)])
    open_page(page, step)
    said = re.search(r"in flight: (\d+) of (\d+)\.", page.inner_text("#problem")).groups()
    assert said == (str(sum(map(bool, beside))), str(len(beside)))
    if step not in BESIDE_P:  # D = 256: P waits for S, and nothing else of this consumer can run
        assert not any(beside)
        return
    op, distance = BESIDE_P[step]
    consumers = len({event["role"] for event in problem["events"] if event["op"] == "softmax"})
    assert {event["op"] for events in beside for event in events} == {op}
    assert sum(map(bool, beside)) == len(beside) - distance * consumers


def test_a_warpgroup_computes_dq_while_the_consumers_are_at_the_next_tile() -> None:
    """In step 16 they wait for it."""
    for step, beside in (("step16", False), ("step17", True)):
        problem = STEPS[step]["full"]
        first_dq = min(event["at"] for event in problem["events"] if event["op"] == "dq" and event["tile"] == 2)
        next_s = min(event["at"] for event in problem["events"] if event["op"] == "qk" and event["tile"] == 3)
        added = max(event["at"] for event in problem["events"] if event["op"] == "add" and event["tile"] == 2)
        assert (next_s < added) == beside and first_dq < added


def test_blocks_of_a_cluster_exchange_ds() -> None:
    """dQ of a tile is computed when the consumer has written dS, and that of the other block has come."""
    problem = STEPS["step17f"]["full"]
    (own,) = {event["role"] for event in problem["events"] if event["op"] == "ds"}
    (other,) = {event["role"] for event in problem["events"] if event["op"] == "send"} - {own}
    assert problem["roles"][other] == "dS of block 1"
    tiles = range(-(-problem["q_len"] // problem["block_m"]))
    for tile in tiles:
        written = [event["at"] for event in of_role(problem, own, "ds") if event["tile"] == tile]
        sent = [event["at"] for event in of_role(problem, other, "send") if event["tile"] == tile]
        products = [event for event in problem["events"] if event["op"] == "dq" and event["tile"] == tile]
        assert len(written) == len(sent) == 1 and len(products) == 2
        assert max(*written, *sent) < min(event["at"] for event in products)
        names = {problem["buffers"][buffer]["name"] for event in products for buffer in reads_of(event)}
        assert names == {"K[0]", "K[1]", f"dS[{tile % 2}]", f"other dS[{tile % 2}]"}


def test_turns_are_passed_on_when_the_next_product_runs() -> None:
    """Step 17h: a warp counts its additions after the start of dQ of the next rows."""
    problem = STEPS["step17h"]["full"]
    events = of_role(problem, 0, "look", "dq", "add", "hand_on")
    order = [event["op"] for event in events]
    passed = [i for i, op in enumerate(order) if op == "hand_on"]
    assert len(passed) == order.count("look") == -(-problem["q_len"] // 128)
    assert all(order[i - 1] == "dq" for i in passed[:-1]) and order[-1] == "hand_on"
    tiles = list(dict.fromkeys(event["tile"] for event in events if event["op"] == "dq"))
    assert tiles == sorted(tiles, reverse=True)  # the last queries come first


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
    open_page(page, "step17f")
    for _ in range(40):
        page.keyboard.press("ArrowRight")
    assert page.inner_text("#event").startswith("41 of ")
    page.focus("#scroll")  # the chart and the list can be reached, and the chart scrolls
    assert page.evaluate("document.activeElement.scrollLeft") > 0
