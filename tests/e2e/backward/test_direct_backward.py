"""Backward steps called directly, with tensors that the command line cannot ask for: step_under_test.c."""

import os
import subprocess

import pytest

from tests.lib.direct import HALVES, PROBLEMS
from tests.lib.programs import RIGHT, STEP_DIR, Program


SAME_BITS_RUNS = int(os.environ.get("SAME_BITS_RUNS", "1"))


def lines_of(step: Program, trial: str) -> list[str]:
    """The line printed for each problem of a trial, or of a half: "padded 0"; no answer may be wrong."""
    done = subprocess.run(
        [STEP_DIR / "under_test" / step.name, *trial.split()], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stderr) == (RIGHT, ""), done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("trial, count", [*HALVES, ("wide", PROBLEMS // 4)])
def test_same_bits_wherever_the_tensors_lie(step: Program, trial: str, count: int) -> None:
    """With D = 64 and 128, or D = 256 for a step that takes nothing else."""
    if step.takes(64) == (trial == "wide"):
        pytest.skip("other head dimensions")
    lines = lines_of(step, trial)
    assert len(lines) == count and all(line.endswith(": same bits") for line in lines)


@pytest.mark.parametrize("trial, count", [("ragged", 3 * PROBLEMS // 4), ("pointers", PROBLEMS), ("strides", 12)])
def test_cuda_cores_take_any_row_and_pointer(step: Program, trial: str, count: int) -> None:
    if step.facts["needs_compute_capability"] is not None:
        pytest.skip("tensor cores need aligned rows")
    lines = lines_of(step, trial)
    assert len(lines) == count and all(line.endswith(": same bits") for line in lines)


def test_tensor_cores_refuse_pointers_that_16_bytes_cannot_reach(step: Program) -> None:
    if step.facts["needs_compute_capability"] is None:
        pytest.skip("CUDA cores take any pointer")
    lines = lines_of(step, "refusals")
    assert len(lines) == 8 * PROBLEMS  # Q, K, V, O, dO, dQ, dK and dV
    assert all(line.endswith(": cudaErrorMisalignedAddress") for line in lines)


def test_the_same_bits_again(step: Program) -> None:
    """Blocks that add to the same rows do so in one order. For 1,000 runs of step NN on a GPU:
    SAME_BITS_RUNS=1000 make test-e2e BACKEND=cuda PYTEST_ARGS='-k "same_bits_again and stepNN"'"""
    if not step.facts["deterministic"] or step.facts["needs_compute_capability"] is None:
        pytest.skip("it says that bits may differ, or adds in one block")
    lines = lines_of(step, "again")
    assert len(lines) == (4 if step.takes(64) else 2) * SAME_BITS_RUNS
    assert all(line.endswith(": same bits") for line in lines)
