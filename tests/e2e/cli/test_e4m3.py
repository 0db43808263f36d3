"""Options and files of steps whose inputs are e4m3."""

from pathlib import Path

import numpy as np
import pytest

from tests.e2e.cli.test_bad_files import refused
from tests.lib.generators import draw_inputs
from tests.lib.kinds import FP8_STEPS
from tests.lib.problem import Problem
from tests.lib.programs import Program, write_inputs
from tests.lib.reference import attention, from_e4m3, mistakes, rounded_input, to_e4m3
from tests.lib.steps import step_names

PROBLEM = Problem(batch=2, heads=4, kv_heads=2, seqlen=37, seqlen_kv=50, head_dim=64, mask="causal", dtype="e4m3")
fp8_steps = pytest.mark.parametrize("name", [name for name in step_names() if name in FP8_STEPS])


@pytest.mark.parametrize(
    "options, told",
    [
        (["--scales", "head"], "--scales: {} has no inputs in e4m3"),
        (["--out-dtype", "bf16"], "--out-dtype: {} has no inputs in e4m3"),
        (["--dtype", "e4m3"], "--dtype e4m3: must be fp16 or bf16"),
    ],
)
def test_other_steps_refuse_the_options(any_step: Program, tmp_path: Path, options: list, told: str) -> None:
    assert refused(any_step, tmp_path, *options).endswith(f": {told.format(any_step.name)}\n")


@fp8_steps
@pytest.mark.parametrize(
    "options, told",
    [
        (["--dtype", "bf16"], "--dtype bf16: must be e4m3"),
        (["--out-dtype", "e4m3"], "--out-dtype e4m3: must be fp16 or bf16"),
        (["--scales", "row"], "--scales row: must be head or tensor"),
    ],
)
def test_wrong_values_of_options(name: str, tmp_path: Path, options: list, told: str) -> None:
    assert refused(Program(name), tmp_path, *options).endswith(f": {told}\n")


def stored_e4m3(directory: Path) -> list[tuple[np.ndarray, np.ndarray]]:
    pairs = [to_e4m3(x, PROBLEM.kv_heads) for x in draw_inputs(PROBLEM)]
    write_inputs(directory, *(bits for bits, _ in pairs))
    for name, (_, scales) in zip("qkv", pairs, strict=True):
        np.save(directory / f"{name}_scales.npy", scales)
    return pairs


@fp8_steps
def test_bits_and_scales_are_used_as_they_are(name: str, tmp_path: Path) -> None:
    """Also scales that the host would not choose, and beside a file of numbers."""
    pairs = stored_e4m3(tmp_path / "in")
    scales = 3 * pairs[1][1]
    np.save(tmp_path / "in/k_scales.npy", scales)
    v = draw_inputs(PROBLEM)[2].astype("<f4")
    np.save(tmp_path / "in/v.npy", v)
    result, record = Program(name).solve(tmp_path / "out", *PROBLEM.options_with_files(tmp_path / "in"))
    values = from_e4m3(*pairs[0]), from_e4m3(pairs[1][0], scales), rounded_input("e4m3", v, 2)
    assert mistakes(attention(PROBLEM, *values), result.o, result.lse) == []
    assert (record["dtype"], record["o_dtype"]) == ("e4m3", "fp16")
    elements = 4 * 2 * 37 * 64, 2 * 2 * 2 * 50 * 64
    assert record["least_bytes"] == 3 * elements[0] + elements[1] + 4 * 4 * 2 * 37


@fp8_steps
@pytest.mark.parametrize(
    "scales, told",
    [
        (None, "cannot open: No such file or directory"),
        (np.ones((2, 4), "<f4"), "must be [B, Hkv], one scale for each key/value head: [2, 2]"),
        (np.ones((2, 2), "<f8"), "element type '<f8': expected <f4"),
        (np.array([[1, 1], [0, 1]], "<f4"), "element [1, 0] is 0, must be from 1.18e-38 to 3.4e38"),
        (np.array([[1, np.nan], [1, 1]], "<f4"), "element [0, 1] is nan, must be from 1.18e-38 to 3.4e38"),
    ],
)
def test_wrong_scales(name: str, tmp_path: Path, scales: np.ndarray | None, told: str) -> None:
    stored_e4m3(tmp_path / "in")
    path = tmp_path / "in/k_scales.npy"
    path.unlink()
    if scales is not None:
        np.save(path, scales)
    assert refused(Program(name), tmp_path, "--input", path.parent).endswith(f": {path}: {told}\n")


@fp8_steps
@pytest.mark.parametrize("value", [np.inf, -2e41])
def test_numbers_that_no_scale_suffices_for(name: str, tmp_path: Path, value: float) -> None:
    q, k, v = draw_inputs(PROBLEM)
    v[1, 0, 2, 3] = value
    directory = write_inputs(tmp_path / "in", q, k, v)
    told = refused(Program(name), tmp_path, "--input", directory)
    assert f"v.npy: element [1, 0, 2, 3] is {value:g}, beyond the largest e4m3" in told


@fp8_steps
def test_nan_does_not_change_the_scale(name: str, tmp_path: Path) -> None:
    q, k, v = draw_inputs(PROBLEM)
    q[1, 0, 30, 5] = np.nan
    directory = write_inputs(tmp_path / "in", q, k, v)
    result, record = Program(name).solve(tmp_path / "out", *PROBLEM.options_with_files(directory))
    values = [rounded_input("e4m3", x, PROBLEM.kv_heads) for x in (q, k, v)]
    assert mistakes(attention(PROBLEM, *values), result.o, result.lse) == []
    assert (record["nan_inputs"], record["rows_nan_expected"]) == (1, 1)


def test_bits_of_e4m3_are_no_fp16(any_step: Program, tmp_path: Path) -> None:
    stored_e4m3(tmp_path / "in")
    assert "q.npy: element type '|u1': expected" in refused(any_step, tmp_path, "--input", tmp_path / "in")


@fp8_steps
def test_hint_where_o_is_too_large_for_fp16(name: str, tmp_path: Path) -> None:
    q, k, v = draw_inputs(PROBLEM)
    directory = write_inputs(tmp_path / "in", q, k, 2e5 * v)
    options = PROBLEM.options_with_files(directory)
    done = Program(name).run("--repeat", 0, *options)
    assert done.returncode == 1
    assert ": fp16 ends at 65504; --out-dtype bf16 has room\n" in done.stderr
    Program(name).solve(tmp_path / "bf16", *options, "--out-dtype", "bf16")
