"""Decode steps called directly, with tensors that the command line cannot ask for: decode_under_test.c."""

import os
import subprocess

import pytest

from tests.lib.programs import RIGHT, STEP_DIR, Program

RUNS = int(os.environ.get("SAME_BITS_RUNS", "1"))


def lines_of(step: Program, trial: str) -> list[str]:
    """The line printed for each problem of a trial; no answer may be wrong."""
    if not step.facts["deterministic"]:
        pytest.skip("it says that bits may differ")
    done = subprocess.run(
        [STEP_DIR / "under_test" / step.name, trial], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stderr) == (RIGHT, ""), done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("trial, each", [("padded", 1), ("guarded", 1), ("graph", 2)])
def test_same_bits_wherever_the_cache_lies(step: Program, trial: str, each: int) -> None:
    lines = lines_of(step, trial)
    assert lines and all(line.endswith(": same bits") for line in lines) and len(lines) % each == 0
    for size in (0, 16, 64) if step.facts["page_sizes"] else (0,):
        assert any(f" pages={size}: " in line for line in lines)


def test_pointers_that_16_bytes_cannot_reach(step: Program) -> None:
    """They are refused, or make no difference; O need not be written 16 bytes at a time."""
    lines = lines_of(step, "pointers")
    assert lines and all(line.endswith((": same bits", ": refused")) for line in lines)


def test_the_same_bits_again(step: Program) -> None:
    """For 1,000 runs of step NN on a GPU:
    SAME_BITS_RUNS=1000 make test-e2e BACKEND=cuda PYTEST_ARGS='-k "same_bits_again and stepNN"'"""
    lines = lines_of(step, "again")
    assert lines and len(lines) % RUNS == 0 and all(line.endswith(": same bits") for line in lines)


def test_gpus_without_what_a_step_needs_are_refused(step: Program) -> None:
    """The device reports compute capability 7.5, whose tensor cores have no bf16."""
    lines = lines_of(step, "old-gpu")
    assert {line[:4] for line in lines} == {"fp16", "bf16"}
    needs = {None: "", 75: "8.0 for bf16", 90: "9.0"}[step.facts["needs_compute_capability"]]
    for line in lines:
        if needs and (line.startswith("bf16") or needs == "9.0"):
            assert f": this GPU has compute capability 7.5: {step.name} needs {needs}" in line
        else:
            assert line.endswith(": taken")
