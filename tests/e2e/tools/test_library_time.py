"""A step takes as long through its library, called without PyTorch, as in its program."""

import statistics
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.tools.library_calls import Call, Device, Stopwatch, library_of, program_mask
from tests.lib.problem import Problem
from tests.lib.programs import Program, read_rows, write_inputs

pytestmark = pytest.mark.gpu_only("the CPU backend tells nothing about time")

TURNS = 5
# A pass takes some milliseconds: an event that waits for Python is none of them.
LONG = Problem(batch=4, heads=16, seqlen=4096, head_dim=128)


def program_ms(step: Program, directory: Path, inputs: Path) -> float:
    """The median of one run of the program."""
    path = directory / "row.json"
    path.unlink(missing_ok=True)
    done = step.run(*LONG.options_with_files(inputs), "--check", "none", "--json", path)
    assert (done.returncode, done.stderr) == (0, "")
    (row,) = read_rows(path)
    assert row["batch"] == LONG.batch and row["seqlen"] == LONG.seqlen
    return row["median_ms"]


@pytest.fixture(scope="module")
def tensors() -> list[np.ndarray]:
    """Q, K and V; none of them is grouped."""
    generator = np.random.default_rng(1)
    return [generator.standard_normal(LONG.q_shape(), np.float32).astype(np.float16)
            for _ in range(3)]


def test_library_takes_as_long_as_the_program(step: Program, tensors: list[np.ndarray],
                                              tmp_path: Path) -> None:
    """In turns, so that a drift of the clocks meets both; each turn has a ratio, and the median of
    those counts: a disturbed turn is one of five."""
    inputs = write_inputs(tmp_path / "in", *tensors)
    library = library_of(step.name)
    mask = (program_mask(step, LONG, tmp_path / "mask") if library.takes_block_masks else None)
    ratios = []
    with Device(library) as device:
        call, watch = Call(device, library, LONG, tensors, mask), Stopwatch(device)
        for turn in range(TURNS):
            times = {}
            for who in ("program", "library") if turn % 2 == 0 else ("library", "program"):
                times[who] = (program_ms(step, tmp_path, inputs) if who == "program"
                              else watch.median_ms(call))
            ratios.append(times["library"] / times["program"])
    assert statistics.median(ratios) == pytest.approx(1, abs=0.03), ratios
