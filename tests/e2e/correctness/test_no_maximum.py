"""Steps without the running maximum: right on random numbers, wrong on real input."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.lib import no_maximum
from tests.lib.programs import REPOSITORY, RIGHT, WRONG, Program, read_records

pytestmark = pytest.mark.cpu_only("it builds changed steps for the CPU backend")
SCALAR, MMA = no_maximum.SHOWN_STEPS

DATA = REPOSITORY / "tests" / "data"
RANDOM = ["--heads", 2, "--seqlen", 300, "--mask", "causal"]
SMOLLM2 = ["--input", DATA / "smollm2_layer18", "--mask", "causal"]
MINILM = ["--input", DATA / "minilm_layer0"]
# The scale is 1.5 times the model's: exp() of its largest score then overflows.
SHARPER = ["--scale", 1.5 / 32**0.5]


@pytest.fixture(scope="module")
def variants(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Program]:
    root = tmp_path_factory.mktemp("no_maximum")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        built = {step: pool.submit(no_maximum.build, root / step, step) for step in no_maximum.PATCHES}
        return {step: future.result() for step, future in built.items()}


@pytest.mark.parametrize(
    "step, dtype, options",
    [
        (SCALAR, "fp16", RANDOM),
        (SCALAR, "bf16", RANDOM),
        (MMA, "fp16", RANDOM),
        (MMA, "bf16", RANDOM),
        # P in fp32, or in bf16 with the same range, has room for all scores of MiniLM. So the steps are
        # wrong only because of the missing maximum.
        (SCALAR, "fp16", MINILM),
        (MMA, "bf16", MINILM),
    ],
)
def test_enough_room(variants: dict, step: str, dtype: str, options: list) -> None:
    variants[step].run_right("--check", "all", "--dtype", dtype, *options)


@pytest.mark.parametrize(
    "step, dtype, options",
    [
        (MMA, "fp16", SMOLLM2),
        (MMA, "fp16", MINILM),
        (SCALAR, "fp16", MINILM + SHARPER),
        (MMA, "bf16", MINILM + SHARPER),
    ],
)
def test_overflow(variants: dict, tmp_path: Path, step: str, dtype: str, options: list) -> None:
    """The real step is right on the same input; without the maximum, Inf and NaN appear."""
    Program(step).run_right("--check", "all", "--dtype", dtype, *options)
    done = variants[step].run(
        "--check", "all", "--repeat", 0, "--dtype", dtype, *options, "--json", tmp_path / "record.json"
    )
    (record,) = read_records(tmp_path / "record.json")
    assert done.returncode == WRONG != RIGHT
    assert 0 < record["rows_wrong"] < record["rows"]
    assert record["values_nan"] + record["values_inf"] > 0
