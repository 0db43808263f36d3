"""Edge cases: fully masked rows, NaN and Inf, little memory, odd sizes."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.lib.generators import rounded_inputs
from tests.lib.kinds import FACTS, FP8_STEPS, PERSISTENT_STEPS, SCALAR_STEPS
from tests.lib.problem import Problem
from tests.lib.programs import DEVICE, USAGE, WRONG, Program, read_records, read_result
from tests.lib.reference import attention, mistakes, round_to
from tests.lib.steps import settings, step_names
from tests.e2e.cli.test_bad_input import files_in

TWO_HEADS = Problem(batch=2, heads=2, seqlen=70, head_dim=64, mask="causal")


@pytest.mark.parametrize("seqlen, seqlen_kv", [(70, 1), (70, 5), (200, 33), (2, 1), (65, 64)])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_rows_that_attend_nothing_are_zero(
    step: Program, tmp_path: Path, seqlen: int, seqlen_kv: int, dtype: str
) -> None:
    """Causal with fewer keys than queries: the first Nq - Nkv rows attend to no key."""
    p = Problem(batch=2, heads=2, seqlen=seqlen, seqlen_kv=seqlen_kv, dtype=dtype, mask="causal").for_step(step)
    result, record = step.solve(tmp_path / "out", *p.options())
    empty = seqlen - seqlen_kv
    assert not result.o[:, :, :empty].any()
    assert (result.lse[:, :, :empty] == -np.inf).all()
    assert np.isfinite(result.lse[:, :, empty:]).all()
    assert result.o[:, :, empty:].any(axis=-1).all()
    assert record["right"] is True


@pytest.mark.parametrize(
    "name", [name for name in step_names() if Program(name).takes(64) and settings(name, "tests").get("rare_maximum")]
)
def test_large_p_are_rounded_too(name: str, tmp_path: Path) -> None:
    """In peaked rows a rarely raised m leaves the largest P above 1, so it is rounded, too; and a
    few large elements of V nearly cancel in a column."""
    p = Problem(heads=2, kv_heads=1, seqlen=1815, seqlen_kv=1444, dtype="bf16", mask="causal")
    random = np.random.default_rng(77700398)
    q, k, v = (random.standard_normal(shape) for shape in (p.q_shape(), p.kv_shape(), p.kv_shape()))
    v *= 1 + 9 * (random.random(p.kv_shape()) < 0.01)
    inputs = [x.astype(np.float16) for x in (3 * q, k, v)]
    result, record = Program(name).solve(tmp_path / "out", *p.options_with_files(tmp_path / "in", *inputs))
    assert record["max_error"] > record["allowed_error"]  # of another row
    right = attention(p, *(round_to("bf16", x) for x in inputs))
    assert mistakes(right, result.o, result.lse) == []


def test_nan_in_one_query(step: Program, tmp_path: Path) -> None:
    """NaN is accepted, counted and reported; it affects its own row only."""
    p = TWO_HEADS.for_step(step)
    q, k, v = rounded_inputs(p)
    q[1, 0, 40, 5] = np.nan
    options = p.options_with_files(tmp_path / "in", q, k, v)
    result, record = step.solve(tmp_path / "out", *options)
    assert mistakes(attention(p, q, k, v), result.o, result.lse) == []
    assert np.argwhere(np.isnan(result.lse)).tolist() == [[1, 0, 40]]
    assert (record["nan_inputs"], record["rows_nan_expected"], record["right"]) == (1, 1, True)

    report = step.run_right("--check", "all", *options).stdout
    assert "NaN among them: 1" in report
    assert re.search(r"\b1 of them hold NaN", report)


def test_nan_in_one_key(step: Program, tmp_path: Path) -> None:
    """Under the causal mask the rows before it have no NaN."""
    p = TWO_HEADS.for_step(step)
    q, k, v = rounded_inputs(p)
    k[0, 1, 30, 0] = np.nan
    result, record = step.solve(tmp_path / "out", *p.options_with_files(tmp_path / "in", q, k, v))
    assert mistakes(attention(p, q, k, v), result.o, result.lse) == []
    nan = np.isnan(result.lse)
    assert nan[0, 1, 30:].all() and nan.sum() == 40
    assert (record["nan_inputs"], record["rows_nan_expected"]) == (1, 40)


@pytest.mark.parametrize("name", ["q", "k"])
def test_infinity_in_queries_and_keys(step: Program, tmp_path: Path, name: str) -> None:
    """A score of -inf counts as masked; one of +inf makes its row NaN."""
    if step.name in FP8_STEPS:
        pytest.skip("e4m3 has no infinity")
    p = TWO_HEADS.for_step(step)
    inputs = dict(zip("qkv", rounded_inputs(p), strict=True))
    inputs[name][1, 0, 2, 5] = np.inf
    result, record = step.solve(tmp_path / "out", *p.options_with_files(tmp_path / "in", *inputs.values()))
    answer = attention(p, *inputs.values())
    assert np.isnan(answer.lse).any()
    assert mistakes(answer, result.o, result.lse) == []
    assert (record["nan_inputs"], record["right"]) == (0, True)


def multiplies_masked_keys(step: Program) -> bool:
    """Tensor cores compute whole tiles: a masked value has probability 0, and 0 * NaN is NaN."""
    return step.name not in SCALAR_STEPS


@pytest.mark.parametrize("key, value, nan_inputs", [(0, np.inf, 0), (37, -np.inf, 0), (37, np.nan, 1), (69, np.nan, 1)])
def test_values_that_are_no_numbers_in_v(
    step: Program, tmp_path: Path, key: int, value: float, nan_inputs: int
) -> None:
    """They change the rows that attend that key and, on tensor cores, other rows of the tile too.

    The checker does not compare rows that mask the key, because the value may change them too.
    """
    if step.name in FP8_STEPS and np.isinf(value):
        pytest.skip("e4m3 has no infinity")
    p = TWO_HEADS.for_step(step)
    q, k, v = rounded_inputs(p)
    v[1, 1, key, 3] = value
    options = p.options_with_files(tmp_path / "in", q, k, v)
    result, record = step.solve(tmp_path / "out", *options)
    assert (record["nan_inputs"], record["right"]) == (nan_inputs, True)
    not_compared = record["rows_not_compared"]
    reached = ~np.isfinite(result.o[1, 1].astype(np.float64))
    assert reached[key:, 3].all() and not reached[:, :3].any() and not reached[:, 4:].any()
    if multiplies_masked_keys(step):
        assert 70 - key <= not_compared <= 70
        report = step.run_right("-c", "all", *options).stdout
        assert re.search(rf"\b{not_compared} rows not compared", report)
        assert re.search(rf"RIGHT: {280 - not_compared} of 280 rows", report)
    else:
        assert not_compared == 0 and not reached[:key].any()
    assert record["rows_checked"] == 280 - not_compared

    v[1, 1, key, 3] = 0
    answer = attention(p, q, k, v)
    result.o[1, 1, :, 3] = answer.o[1, 1, :, 3] = answer.base[1, 1, :, 3] = 0
    assert mistakes(answer, result.o, result.lse) == []


@pytest.mark.parametrize("scale", [1e-30, 30.0])
def test_extreme_scales(step: Program, tmp_path: Path, scale: float) -> None:
    """All keys equal, or one key dominant: the exponential neither overflows nor gives 0/0."""
    p = Problem(heads=2, seqlen=66, seqlen_kv=65, dtype="bf16", mask="causal", scale=scale).for_step(step)
    result, _ = step.solve(tmp_path / "out", *p.options())
    assert mistakes(attention(p, *rounded_inputs(p)), result.o, result.lse) == []


def test_large_scores_do_not_overflow(step: Program, tmp_path: Path) -> None:
    """Scores above 1000: exp() of them is infinite, but softmax subtracts the maximum."""
    p = Problem(heads=2, seqlen=64, head_dim=64, dtype="bf16").for_step(step)
    q, k, v = rounded_inputs(p)
    q, k = q * 32, k * 32  # a power of two, so still exact in bf16
    result, _ = step.solve(tmp_path / "out", *p.options_with_files(tmp_path / "in", q, k, v))
    assert mistakes(attention(p, q, k, v), result.o, result.lse) == []


def test_head_dims_that_are_no_multiple_of_8(step: Program, tmp_path: Path) -> None:
    """The scalar steps take them; the others refuse them and name the option."""
    for head_dim in (1, 3, 7, 9, 33, 63, 65, 129, 250):
        p = replace(Problem(heads=2, seqlen=35).for_step(step), head_dim=head_dim)
        if step.name in SCALAR_STEPS:
            result, _ = step.solve(tmp_path / str(head_dim), *p.options())
            assert mistakes(attention(p, *rounded_inputs(p)), result.o, result.lse) == []
        else:
            done = step.run(*p.options())
            assert done.returncode == USAGE
            assert re.fullmatch(rf"{step.name}: --head-dim {head_dim}: .+\n", done.stderr)


MEMORY = "the size of device memory can be chosen only there"
IN_PASSES = Program(next(name for name, facts in FACTS.items() if facts["intermediate_bytes_per_entry"] > 0))
SLICES = Problem(batch=2, heads=3, seqlen=100, head_dim=32, mask="causal")
SLICE_BYTES = 4 * 100 * 100  # S of one head, fp32


@pytest.mark.cpu_only(MEMORY)
@pytest.mark.parametrize("memory, passes", [("300K", 2), ("250K", 3), ("220K", 6)])
def test_a_step_with_s_in_memory_goes_in_passes_where_memory_is_short(tmp_path: Path, memory: str, passes: int) -> None:
    whole, record = IN_PASSES.solve(tmp_path / "whole", *SLICES.options())
    assert record["workspace_bytes"] == 6 * SLICE_BYTES
    out = tmp_path / "out"
    done = IN_PASSES.run_right("-c", "all", "-o", out, *SLICES.options(), env={"SIMT_MEMORY": memory})
    assert f"{passes} passes" in done.stdout
    assert read_result(out).same_bits(whole)


@pytest.mark.cpu_only(MEMORY)
def test_it_says_how_much_memory_it_lacks(tmp_path: Path) -> None:
    """Not even the scores of one head fit next to the tensors."""
    out = tmp_path / "out"
    done = IN_PASSES.run(*SLICES.options(), "-o", out, "-j", tmp_path / "j", env={"SIMT_MEMORY": "200K"})
    assert done.returncode == DEVICE
    assert re.fullmatch(rf"{IN_PASSES.name}: .*\b{SLICE_BYTES} bytes.*\n", done.stderr)
    assert files_in(tmp_path) == []


@pytest.mark.cpu_only(MEMORY)
def test_tensors_that_do_not_fit(kind_step: Program, tmp_path: Path) -> None:
    p = replace(SLICES, head_dim=64).for_step(kind_step)
    done = kind_step.run(*p.options(), "-o", tmp_path / "out", env={"SIMT_MEMORY": "64K"})
    assert done.returncode == DEVICE
    assert re.fullmatch(rf"{kind_step.name}: .*\b\d+ bytes.*\n", done.stderr)
    assert files_in(tmp_path) == []


@pytest.mark.cpu_only(MEMORY)
def test_fused_steps_need_no_memory_beside_the_tensors(step: Program, tmp_path: Path) -> None:
    """But for the counter of persistent thread blocks."""
    p = replace(SLICES, head_dim=64).for_step(step)
    _, record = step.solve(tmp_path / "out", *p.options())
    counter = 4 * record["batch"] * record["heads"] if step.name in PERSISTENT_STEPS else 0
    assert (record["workspace_bytes"] > counter) == (step.name == IN_PASSES.name)
    assert record["extra_bytes"] == record["workspace_bytes"]


@pytest.mark.cpu_only("a GPU build refuses --time-limit")
def test_more_heads_than_a_grid_dimension_are_launched(step: Program) -> None:
    """B * H > 65535; the first kernel is stopped soon, and a grid that is too large never starts."""
    done = step.run("-b", 70000, "-H", 1, "-n", 1, "-k", 1, "-i", "constant", "--time-limit", 0.1)
    assert done.returncode == DEVICE and re.search(r"time limit .* of \d+ blocks done", done.stderr)


# The other steps start more threads for each head: 70,000 heads take them a minute on the CPU.
@pytest.mark.exhaustive
@pytest.mark.cpu_only("test_gpu_only.py does the same with every step")
def test_more_heads_than_a_grid_dimension(tmp_path: Path) -> None:
    """B * H > 65535, the limit of gridDim.y and gridDim.z."""
    p = Problem(batch=70000, seqlen=1, seqlen_kv=2, head_dim=32)
    result, record = Program(SCALAR_STEPS[-1]).solve(tmp_path / "out", *p.options())
    assert record["rows"] == 70000
    assert mistakes(attention(p, *rounded_inputs(p)), result.o, result.lse) == []


def test_a_run_with_nothing_to_compare_is_not_right(tmp_path: Path) -> None:
    """NaN in all rows, also in the reference; or V so small that rounding P causes an error as
    large as O. Such a run is not right."""
    problem = replace(TWO_HEADS, mask="full")
    q, k, v = rounded_inputs(problem)
    nan = v.copy()
    nan[:, :, 0, :] = np.nan
    path = tmp_path / "record.json"
    taking = [step for step in map(Program, step_names()) if step.takes(problem.head_dim)]
    for name, values in (("nan", nan), ("subnormal", v * 2.0**-24)):
        for step in taking:
            p = problem.for_step(step)
            if name == "subnormal" and p.dtype == "e4m3":  # its scales make V larger
                continue
            done = step.run(
                "-c", "all", "--repeat", 0, "-j", path, *p.options_with_files(tmp_path / name, q, k, values)
            )
            assert done.returncode == WRONG and "check      NOT JUDGED: " in done.stdout
            assert read_records(path)[-1]["right"] is None


@pytest.mark.cpu_only("SIMT_SHARED stands for a smaller GPU")
@pytest.mark.parametrize("head_dim", [64, 128, 200, 256])
def test_smaller_tiles_where_shared_memory_is_short(tmp_path: Path, head_dim: int) -> None:
    """Compute capability 7.5 has 64 KB: a scalar step takes every head dimension there too."""
    problem = replace(TWO_HEADS, head_dim=head_dim)
    inputs = rounded_inputs(problem)
    result, record = Program(SCALAR_STEPS[-1]).solve(tmp_path / "out", *problem.options(), env={"SIMT_SHARED": "64K"})
    assert record["kernel1_shared_bytes"] <= 65536 and record["right"]
    assert mistakes(attention(problem, *inputs), result.o, result.lse) == []
