"""Tests that need a GPU, or would take too long without one."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.lib.generators import rounded_inputs
from tests.lib.kinds import NAIVE
from tests.lib.problem import Problem
from tests.lib.programs import NO_GPU, RIGHT, USAGE, Program, read_records
from tests.lib.reference import attention, mistakes
from tests.lib.steps import step_names

pytestmark = pytest.mark.gpu_only("too slow without one, or about GPUs themselves")

NO_DEVICES = {"CUDA_VISIBLE_DEVICES": ""}


def check_sample(step: Program, directory: Path, *options: object, rows: int) -> dict:
    """Runs a problem too large to check in full; returns its JSON record."""
    path = directory / "record.json"
    step.run_right("--check", f"rows:{rows}", "-r", 0, "--json", path, *options, timeout=300)
    (record,) = read_records(path)
    assert record["right"] is True and record["rows_checked"] >= rows
    return record


def head_dim_of(step: Program) -> int:
    """128, or what the step takes."""
    return Problem(head_dim=128).for_step(step).head_dim


def test_more_heads_than_a_grid_dimension(step: Program, tmp_path: Path) -> None:
    """B * H > 65535, the limit of gridDim.y and gridDim.z."""
    p = Problem(batch=70000, seqlen=4, head_dim=64).for_step(step)
    result, record = step.solve(tmp_path / "out", *p.options(), timeout=300)
    assert record["rows"] == 4 * 70000
    assert mistakes(attention(p, *rounded_inputs(p)), result.o, result.lse) == []


def test_q_and_o_of_more_than_2_31_elements(step: Program, tmp_path: Path) -> None:
    """The last rows are beyond the reach of a 32-bit offset; the sample contains them."""
    seqlen = 17_000_000
    assert seqlen * 128 > 2**31
    check_sample(step, tmp_path, "-b", 1, "-H", 1, "-n", seqlen, "-k", 16, "-d", head_dim_of(step), rows=2000)


def test_k_and_v_of_more_than_2_31_elements(step: Program, tmp_path: Path) -> None:
    """Every other step has heads far apart, the others rows."""
    layout = ("bhnd", "bnhd")[step_names().index(step.name) % 2]
    heads, seqlen_kv = 1050, 16384
    assert heads * seqlen_kv * 128 > 2**31
    check_sample(
        step,
        tmp_path,
        "-b",
        1,
        "-H",
        heads,
        "-n",
        1,
        "-k",
        seqlen_kv,
        "-d",
        head_dim_of(step),
        "--layout",
        layout,
        rows=heads,
    )


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("mask", ["full", "causal"])
def test_longest_sequence(step: Program, tmp_path: Path, dtype: str, mask: str) -> None:
    """The largest shape in the figures."""
    check_sample(
        step,
        tmp_path,
        "-b",
        1,
        "-H",
        16,
        "-n",
        16384,
        "-d",
        head_dim_of(step),
        step.dtype_option,
        dtype,
        "-m",
        mask,
        rows=2000,
    )


def test_scores_that_do_not_fit_are_computed_and_timed_in_passes(tmp_path: Path) -> None:
    """S fills the free memory; the measurement must still have the memory it needs."""
    memory = (
        int(
            subprocess.run(
                ["nvidia-smi", "--query-gpu=memory.total", "--id=0", "--format=csv,noheader,nounits"],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
        << 20
    )
    seqlen = 8192
    heads = memory // (4 * seqlen * seqlen) + 1
    record = check_sample(
        Program(NAIVE), tmp_path, "-b", 1, "-H", heads, "-n", seqlen, "-d", 32, "-r", 3, "--min-time", 0, rows=50
    )
    assert record["samples"] >= 3 and record["kernel1_blocks"] < heads * (seqlen // 32) ** 2


def test_no_gpu(step: Program, tmp_path: Path) -> None:
    done = step.run("-o", tmp_path / "out", env=NO_DEVICES)
    assert done.returncode == NO_GPU
    assert re.fullmatch(rf"{step.name}: no GPU: .*BACKEND=cpu.*\n", done.stderr)
    assert list(tmp_path.iterdir()) == []


def test_wrong_options_are_reported_without_a_gpu(step: Program) -> None:
    """A wrong option is reported even where nothing can run; --help and --version work there."""
    assert step.run("--nonsense", env=NO_DEVICES).returncode == USAGE
    assert step.run("--help", env=NO_DEVICES).returncode == RIGHT
    assert step.run("--version", env=NO_DEVICES).returncode == RIGHT
