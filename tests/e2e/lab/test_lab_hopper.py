"""The lab names each typical fault of mbarriers, tensor copies and wgmma in a step with all of them."""

import re

import pytest

from tests.lib.programs import RIGHT, Program
from tests.lib.source_tree import CHECKED, SourceTree

pytestmark = pytest.mark.cpu_only("a GPU build refuses --report")

STEP, SOURCE = "step10c", "steps/step10c_lazy_max.cu"
PIPELINE = "common/device/pipeline.cuh"
PRODUCTS = "common/device/overlap.cuh"
STORE = "common/device/store_tile.cuh"
# Of each fault: the file, the original text, the text that is faulty if `fault` is its number, what
# the report says, and the text of the line that it names.
BEFORE_THE_WAIT = "    wgmma_wait<0>(o);  // O is complete, and nothing reads P any more\n"
FAULTS = [
    ("right", "", "", "", "", ""),
    (
        "a stage released while wgmma reads it",
        "",
        "",
        "",
        "finding    write to shared memory that a wgmma or tensor copy may still read",
        "tma_load(",
    ),
    (
        "the wrong phase",
        PRODUCTS,
        "mbarrier_wait(&shared.k_full[k.index()], k.phase());",
        "mbarrier_wait(&shared.k_full[k.index()], k.phase() ^ FAULTY);",
        "finding    use of what a tensor copy brings, no wait for its mbarrier between",
        "wgmma<",
    ),
    (
        "a barrier that nobody completes",
        PIPELINE,
        "if (threadIdx.x % WARP_SIZE == 0) mbarrier_arrive(&empty[state.index()]);",
        "if (threadIdx.x % WARP_SIZE == 0 && !(FAULTY)) mbarrier_arrive(&empty[state.index()]);",
        r"DEADLOCK.* wait for the mbarrier at shared \+ \d+: its phase 0 lacks 12 of 12 arrivals",
        "mbarrier_wait(&empty[stage]",
    ),
    (
        "stores without fence.proxy.async",
        STORE,
        "fence_proxy_async();",
        "if (!(FAULTY)) fence_proxy_async();",
        "finding    wgmma or tensor copy of what threads have stored, no fence.proxy.async between",
        "tma_store(map",
    ),
    (
        "accumulators used before the wait",
        SOURCE,
        BEFORE_THE_WAIT,
        "    if (fault == 5) rescale_rows(o, rescale);\n"
        "    if (fault == 6) pack_probs<T>(probs, s[0]);\n"
        "    if (fault == 1) release(shared.v_empty, state.previous());\n" + BEFORE_THE_WAIT + "    if (fault != 1)",
        "finding    use of registers of a wgmma in flight, no wait between",
        "o[n][c] *= ",
    ),
    (
        "operands written before the wait",
        "",
        "",
        "",
        "finding    use of registers of a wgmma in flight, no wait between",
        "probs[n / 2]",
    ),
    (
        "no wgmma.fence",
        PRODUCTS,
        """// V has arrived
  wgmma_fence();""",
        """// V has arrived
  if (!(FAULTY)) wgmma_fence();""",
        "finding    wgmma after its registers were written, no wgmma.fence between",
        "wgmma<",
    ),
    (
        "more bytes expected than copied",
        PIPELINE,
        "mbarrier_arrive_expect(&full[stage], sizeof *tiles);",
        "mbarrier_arrive_expect(&full[stage], sizeof *tiles + 16 * (fault == 8) - 16 * (fault == 9));",
        r"DEADLOCK.* lacks 0 of 1 arrivals and 16 bytes",
        "mbarrier_wait(&shared.k_full",
    ),
    (
        "fewer bytes expected than copied",
        "",
        "",
        "",
        r"DEADLOCK.* tensor copies brought 16 bytes more than were expected",
        "mbarrier_wait(&shared.k_full",
    ),
    (
        "registers that nobody releases",
        SOURCE,
        "setmaxnreg_dec<Tile::PRODUCER_REGISTERS>();",
        "if (!(FAULTY)) setmaxnreg_dec<Tile::PRODUCER_REGISTERS>();",
        r"DEADLOCK.* setmaxnreg\.inc",
        "setmaxnreg_inc<",
    ),
]


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Program:
    tree = SourceTree(tmp_path_factory.mktemp("hopper"), built="cpu")
    for number, (_, path, old, new, _, _) in enumerate(FAULTS):
        if path:
            tree.add_fault(number, path, old, new)
    tree.compile_only(STEP, 64)
    return tree.step(STEP, *CHECKED)


@pytest.mark.parametrize("number", range(len(FAULTS)), ids=[fault[0] for fault in FAULTS])
def test_a_fault_is_named(faulty: Program, number: int) -> None:
    root = faulty.path.parents[2]
    done = faulty.run("-H", 2, "-n", 700, "-d", 64, "--report", cwd=root, env={"FAULT": str(number)})
    said = done.stdout + done.stderr
    if number == 0:
        assert done.returncode == RIGHT and "findings   0" in said
        return
    assert done.returncode != RIGHT
    *_, words, text = FAULTS[number]
    assert re.search(words, said, re.DOTALL), said
    places = re.findall(r"(?:at|after) (\S+\.cuh?):(\d+)", said)
    lines = {(root / file).read_text().splitlines()[int(line) - 1] for file, line in places}
    assert any(text in line for line in lines), lines
