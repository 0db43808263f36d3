"""Steps without the running maximum: random numbers do not notice, real input does."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.lib import no_maximum
from tests.lib.programs import REPOSITORY, RIGHT, WRONG, Program, read_rows

pytestmark = pytest.mark.cpu_only("it builds changed steps for the CPU backend")

DATA = REPOSITORY / "tests" / "data"
RANDOM = ["--heads", 2, "--seqlen", 300, "--mask", "causal"]
SMOLLM2 = ["--input", DATA / "smollm2_layer18", "--mask", "causal"]
MINILM = ["--input", DATA / "minilm_layer0"]
# Half as sharp again as the model: its largest score is then beyond what exp() can hold.
SHARPER = ["--scale", 1.5 / 32**0.5]


@pytest.fixture(scope="module")
def variants(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Program]:
    root = tmp_path_factory.mktemp("no_maximum")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        built = {step: pool.submit(no_maximum.build, root / step, step)
                 for step in no_maximum.PATCHES}
        return {step: future.result() for step, future in built.items()}


@pytest.mark.parametrize("step, dtype, options", [
    ("step02", "fp16", RANDOM), ("step02", "bf16", RANDOM),
    ("step04", "fp16", RANDOM), ("step04", "bf16", RANDOM),
    # P in single precision, or as wide, has room for all scores of MiniLM. It must be the maximum
    # that is missing, and not something else that is wrong.
    ("step02", "fp16", MINILM), ("step04", "bf16", MINILM)])
def test_enough_room(variants: dict, step: str, dtype: str, options: list) -> None:
    variants[step].run_right("--check", "all", "--dtype", dtype, *options)


@pytest.mark.parametrize("step, dtype, options", [
    ("step04", "fp16", SMOLLM2), ("step04", "fp16", MINILM),
    ("step02", "fp16", MINILM + SHARPER), ("step04", "bf16", MINILM + SHARPER)])
def test_overflow(variants: dict, tmp_path: Path, step: str, dtype: str, options: list) -> None:
    """The real step is right on the very same; without the maximum, infinities and NaN appear."""
    Program(step).run_right("--check", "all", "--dtype", dtype, *options)
    done = variants[step].run("--check", "all", "--repeat", 0, "--dtype", dtype, *options,
                              "--json", tmp_path / "row.json")
    (row,) = read_rows(tmp_path / "row.json")
    assert done.returncode == WRONG != RIGHT
    assert 0 < row["rows_wrong"] < row["rows"]
    assert row["values_nan"] + row["values_inf"] > 0
