"""Inputs from q.npy, k.npy and v.npy, in every element type and format version."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.lib.reference import attention, bf16_bits, mistakes, round_to, rounded_input
from tests.lib.generators import draw_inputs
from tests.lib.problem import Problem
from tests.lib.programs import Program, write_inputs

PROBLEM = Problem(batch=2, heads=4, kv_heads=2, seqlen=37, seqlen_kv=50, head_dim=64, mask="causal")


@pytest.mark.parametrize(
    "dtype, file_type",
    [(dtype, file_type) for dtype in ("fp16", "bf16") for file_type in ("<f2", "<f4", "<f8")] + [("bf16", "<u2")],
)
def test_every_element_type(kind_step: Program, tmp_path: Path, dtype: str, file_type: str) -> None:
    """Values are rounded once, from the type of the file to that of the problem."""
    p = replace(PROBLEM, dtype=dtype).for_step(kind_step)
    if file_type == "<u2":
        values = [round_to("bf16", x) for x in draw_inputs(p)]
        stored = [bf16_bits(x) for x in values]
    else:
        values = stored = [x.astype(file_type) for x in draw_inputs(p)]
    values = [rounded_input(p.dtype, x.astype(float), p.kv_heads) for x in values]
    result, record = kind_step.solve(tmp_path / "out", *p.options_with_files(tmp_path / "in", *stored))
    assert mistakes(attention(p, *values), result.o, result.lse) == []
    assert record["input"] == str(tmp_path / "in")


def test_doubles_are_rounded_once(any_step: Program, tmp_path: Path) -> None:
    """Just above a tie of bf16: rounding to float first would give a tie, which rounds down."""
    x = 1 + 2.0**-8 + 2.0**-40
    assert round_to("bf16", np.array(x)) == 1 + 2.0**-7 != round_to("bf16", np.float32(x))
    one = np.full((1, 1, 1, 8), x)
    directory = write_inputs(tmp_path / "in", one, one, one)
    result, _ = any_step.solve(tmp_path / "out", "-i", directory, "--dtype", "bf16")
    assert (result.o == 1 + 2.0**-7).all()


def test_each_file_may_have_its_own_type(kind_step: Program, tmp_path: Path) -> None:
    p = PROBLEM.for_step(kind_step)
    q, k, v = (round_to("fp16", x) for x in draw_inputs(p))
    mixed = q, k.astype("<f4"), v.astype("<f2")
    result, _ = kind_step.solve(tmp_path / "mixed", *p.options_with_files(tmp_path / "in", *mixed))
    drawn, _ = kind_step.solve(tmp_path / "drawn", *p.options_with_files(tmp_path / "same", q, k, v))
    assert result.same_bits(drawn)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_output_becomes_the_next_input(kind_step: Program, tmp_path: Path, dtype: str) -> None:
    """O as Q, K and V of a second pass: the values written are read back unchanged."""
    p = Problem(heads=2, seqlen=40, dtype=dtype).for_step(kind_step)
    first, _ = kind_step.solve(tmp_path / "first", *p.options())
    second, _ = kind_step.solve(tmp_path / "second", *p.options_with_files(tmp_path / "in", *[first.o] * 3))
    o = rounded_input(p.dtype, first.o.astype(np.float64), p.kv_heads)
    assert mistakes(attention(p, o, o, o), second.o, second.lse) == []


def test_output_directory_is_created_and_used_again(any_step: Program, tmp_path: Path) -> None:
    out = tmp_path / "out"
    any_step.run_right("-o", out, "-n", 3, "--seed", 1)
    first = (out / "o.npy").read_bytes()
    any_step.run_right("-o", out, "-n", 3, "--seed", 2)
    assert sorted(path.name for path in out.iterdir()) == ["lse.npy", "o.npy"]
    assert (out / "o.npy").read_bytes() != first


def test_same_seed_same_bits_other_seed_other_bits(any_step: Program, tmp_path: Path) -> None:
    results = [any_step.solve(tmp_path / str(i), "-n", 20, "-s", seed)[0] for i, seed in enumerate((5, 5, 6))]
    assert results[0].same_bits(results[1]) and not results[0].same_bits(results[2])
