"""The problems of `make check` reveal faults that the default problem does not."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.lib.kinds import MMA_STEPS
from tests.lib.programs import REPOSITORY, Program
from tests.lib.source_tree import PLAIN, SourceTree
from tests.lib.steps import source_of

pytestmark = pytest.mark.cpu_only("it builds changed steps for the CPU backend")

CHECK_STEPS = REPOSITORY / "tests/check_steps.sh"
CASES = REPOSITORY / "tests/sanitize.cases"
HEADS, FRAGMENTS = "common/device/heads.cuh", "common/device/fragments.cuh"
TILES = "common/device/store_rows.cuh"
FAULTS = {
    "tail": (
        FRAGMENTS,
        "causal_keys(problem, q) : problem.kv_len",
        "causal_keys(problem, q) : problem.kv_len + 64 * (FAULTY)",
    ),
    "causal": (HEADS, "last + 1", "last + !(FAULTY)"),
    "grouped heads": (
        HEADS,
        "= head / (problem.q_heads / problem.kv_heads)",
        "= FAULTY ? head % problem.kv_heads : head / (problem.q_heads / problem.kv_heads)",
    ),
    "empty rows": (TILES, "sum == 0.0f ?", "sum == 0.0f && !(FAULTY) ?"),
    "out of bounds": (
        TILES,
        "first + chunk.row + chunk.row_offset < rows",
        "FAULTY || first + chunk.row + chunk.row_offset < rows",
    ),
}

# It includes all three.
STEP = next(
    name for name in MMA_STEPS if f'#include "{TILES.removeprefix("common/")}"' in source_of(name).path.read_text()
)


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """Only two head dimensions are compiled; the program refuses problems with others."""
    tree = SourceTree(tmp_path_factory.mktemp("faulty"), built="cpu")
    for number, patch in enumerate(FAULTS.values(), 1):
        tree.add_fault(number, *patch)
    tree.compile_only(STEP, configs="CONFIG<__half, 64>, CONFIG<__nv_bfloat16, 128>")
    return tree.step(STEP, PLAIN)


@pytest.mark.parametrize("number", range(len(FAULTS) + 1), ids=["none", *FAULTS])
def test_faults_are_noticed(faulty: Program, number: int) -> None:
    done = faulty.run("--cases", CASES, "--heads", 2, "--repeat", 0, "--check", "all", env={"FAULT": str(number)})
    verdicts = [line.removeprefix(f"{CASES}:").split(": ")[1] for line in done.stdout.splitlines()]
    assert verdicts.count("refused") < len(verdicts) - 4
    assert ("WRONG" in verdicts or "failed" in verdicts) == (number != 0)


def check(program: Program, fault: int = 0) -> subprocess.CompletedProcess:
    """What `make check` runs."""
    return subprocess.run(
        [CHECK_STEPS, program.path],
        cwd=REPOSITORY,
        env={"FAULT": str(fault), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_refused_problems_are_not_wrong(faulty: Program) -> None:
    """They are counted, and each reason names what was refused."""
    done = check(faulty)
    refused = re.findall(r"^\S+: refused: (.+)$", done.stdout, re.MULTILINE)
    *lines, verdict = done.stdout.splitlines()
    assert done.returncode == 0
    assert verdict == f"{STEP}: right (it refuses {len(refused)} of {len(lines)} problems)"
    reasons = [line.split(": ", 1)[1] for line in done.stderr.splitlines()]
    assert len(reasons) == len(refused) > 0
    for options, reason in zip(refused, reasons, strict=True):
        head_dim = re.search(r"-d (\d+)", options)[1]
        dtype, taken, other = ("bf16", 128, 64) if "bf16" in options else ("fp16", 64, 128)
        assert reason == (
            f"--head-dim {head_dim}: {STEP} takes D = {taken}" + f" in {dtype}" * (head_dim == str(other))
        )


def test_a_wrong_answer_beside_refused_problems_is_wrong(faulty: Program) -> None:
    done = check(faulty, 1)
    assert done.returncode == 1
    assert re.search(rf"^{STEP}: WRONG \(it refuses \d+ of \d+ problems\)$", done.stdout, re.MULTILINE)


def test_one_configuration(tmp_path: Path) -> None:
    """A kernel of one's own may take none of the problems."""
    tree = SourceTree(tmp_path, built="cpu")
    tree.compile_only(STEP, configs="CONFIG<__half, 160>")
    done = check(tree.step(STEP, PLAIN))
    count = len(done.stdout.splitlines()) - 1
    assert done.returncode == 1 and f": --dtype bf16: {STEP} takes fp16\n" in done.stderr
    assert done.stdout.splitlines()[-1] == f"{STEP}: NOT CHECKED: it refuses all {count} problems"
