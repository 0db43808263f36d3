"""--report: right kernels have no findings and keep the limits of tests/lib/limits.py, wrong ones have
findings, and the report is reproducible."""

import re
from pathlib import Path

import pytest

from tests.lib.kinds import NAIVE
from tests.lib.limits import exceeded
from tests.lib.programs import DEVICE, RIGHT, WRONG, Program, read_records
from tests.lib.source_tree import CHECKED, SourceTree

pytestmark = pytest.mark.cpu_only("a GPU build refuses --report")
exhaustive = pytest.mark.exhaustive

# Whole tiles of keys, of which each step overlaps most, then incomplete ones. The CPU backend takes long
# for the naive step, which copies nothing that could overlap.
OVERLAP = [f"-H 1 -n 128 -d {head_dim} -m causal" for head_dim in (64, 128, 256)]
PROBLEMS = [
    *(f"-H 1 -n 66 -k 128 -d {head_dim}" for head_dim in (32, 64, 96, 128, 256)),
    "-n 77 -k 133 -m causal",
    "-n 65 -k 40 -d 128 -t bf16",
    "-n 70 -d 32 -G 1 -m causal --layout bnhd",
    # D = 96 and D = 256 have the most sectors a request
    "-H 1 -n 130 -k 133 -d 96",
    "-H 1 -n 192 -d 96 -m causal -t bf16",
    "-H 1 -n 66 -k 130 -d 256",
]


@pytest.mark.parametrize(
    "order", ["random:1", *(pytest.param(order, marks=exhaustive) for order in ("forward", "reverse", "random:2"))]
)
def test_right_kernels_have_no_findings_and_keep_their_limits(step: Program, tmp_path: Path, order: str) -> None:
    cases, path = tmp_path / "cases", tmp_path / "records"
    problems = PROBLEMS if step.name == NAIVE else PROBLEMS + OVERLAP
    problems = [
        problem.replace("-t", step.dtype_option)
        for problem in problems
        if step.takes(int(re.search(r"-d (\d+)|$", problem)[1] or 64))
    ]
    cases.write_text("\n".join(problems) + "\n")
    said = step.run_right("--report", "-j", path, "--cases", cases, env={"SIMT_ORDER": order}).stdout
    assert said.count("\nfindings   0\n") == said.count(": right: ") == len(problems)
    assert {
        problem: found
        for problem, record in zip(problems, read_records(path), strict=True)
        if (found := exceeded(record))
    } == {}


def test_counts_agree_with_those_of_the_runtime(kind_step: Program) -> None:
    """The lab counts by source line, the simulator in total."""
    report = kind_step.run_right("-n", 100, "--report").stdout
    whole = int(re.search(r"^ +mma +(\d+) ", report, re.MULTILINE)[1])
    by_kernel = sum(map(int, re.findall(r"^ +(\d+) mma \(", report, re.MULTILINE)))
    assert by_kernel == whole


@pytest.mark.parametrize(
    "part", ["races", "bounds", "init", "alignment", "blocks", "traffic", "banks", "traffic,banks"]
)
def test_parts_of_a_report(any_step: Program, part: str) -> None:
    any_step.run_right("-n", 64, f"--report={part}")


STEP = "steps/step03_mma_shared_kv.cu"
KEYS = "problem.k_strides.row,\n" + 48 * " " + "first_key, problem.kv_len"
# Of each fault the original text, the text that is faulty if FAULTY, and the finding.
FAULTS = {
    "K not waited for": (
        "cp_async_wait<0>();  // this thread's copies of K",
        "if (!(FAULTY)) cp_async_wait<0>();  // this thread's copies of K",
        "use of shared memory that a cp.async is on its way to",
    ),
    "no barrier after K": (
        "__syncthreads();  // all warps have read K",
        "if (!(FAULTY)) __syncthreads();  // all warps have read K",
        "cp.async into what another thread may still read",
    ),
    "K read past its end": (KEYS, KEYS + " + 8 * (FAULTY)", "global memory out of bounds"),
    "less shared memory than used": (
        "config->shared_bytes, stream",
        "config->shared_bytes - 64 * (FAULTY), stream",
        "shared memory out of bounds",
    ),
}


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """Step 03, which has the fault that the environment names."""
    tree = SourceTree(tmp_path_factory.mktemp("wrong"), built="cpu")
    for number, (old, new, _) in enumerate(FAULTS.values(), 1):
        tree.add_fault(number, STEP, old, new)
    tree.compile_only("step03", 32)
    return tree.step("step03", *CHECKED)


@pytest.mark.parametrize("number", range(len(FAULTS) + 1), ids=["none", *FAULTS])
def test_a_fault_is_a_finding(wrong: Program, number: int) -> None:
    env = {"FAULT": str(number)}
    assert wrong.run("-n", 100, "-d", 32, env=env).returncode in (RIGHT, WRONG, DEVICE)
    done = wrong.run("-n", 100, "-d", 32, "--report", cwd=wrong.path.parents[2], env=env)
    if number == 0:
        assert done.returncode == RIGHT and "\nfindings   0\n" in done.stdout
        return
    _, _, text = list(FAULTS.values())[number - 1]
    assert done.returncode == WRONG, done.stderr
    assert re.search(rf"^finding    {re.escape(text)}", done.stdout, re.MULTILINE), done.stdout
