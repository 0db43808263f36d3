"""Every step, compared with NumPy on combinations in which every pair of values occurs."""

from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from tests.lib.generators import draw_inputs, rounded_inputs
from tests.lib.pairwise import pairwise
from tests.lib.problem import Problem
from tests.lib.programs import BACKEND, PAIRWISE_SEED, Program, Result
from tests.lib.reference import attention, bf16_bits, mistakes, round_to, to_e4m3
from tests.lib.steps import settings


LENGTHS = [1, 2, 7, 31, 32, 33, 63, 64, 65, 127, 129, 257]
IN_EVERY_RUN = [1, 33, 64, 129, 193]  # the last is more than any tile; make test-all has those above
# How Nkv depends on Nq. Under a causal mask the first rows of "half" attend nothing.
KV_LENGTHS = {
    "equal": lambda n: n,
    "twice": lambda n: 2 * n,
    "half": lambda n: (n + 1) // 2,
    "one more": lambda n: n + 1,
    "one less": lambda n: max(n - 1, 1),
    "one": lambda n: 1,
}
HEAD_DIMS = [32, 64, 96, 128, 256]
ODD_HEAD_DIMS = [1, 17, 40, 80, 100, 255]


def parameters_of(step: Program, lengths: list[int]) -> dict[str, list]:
    longest = settings(step.name, "tests").get("longest", max(lengths))
    return {
        "seqlen": [n for n in lengths if n <= longest],
        "kv_length": list(KV_LENGTHS),
        "head_dim": [d for d in HEAD_DIMS + ODD_HEAD_DIMS[:: 1 if lengths == LENGTHS else 2] if step.takes(d)],
        "dtype": ["fp16", "bf16"],  # of O alone, where the inputs are e4m3
        **({"scales": ["head", "tensor"]} if step.facts["fp8"] else {}),
        "heads": [(1, 1), (2, 1), (4, 1), (2, 2), (4, 2), (4, 4)],
        "mask": ["full", "causal"],
        "batch": [1, 2],
        "layout": ["bhnd", "bnhd"],
        "scale": [None, 0.37, 0.05],
        "input": ["normal", "outlier", "spiky", "sink", "constant"],
    }


def to_problem(row: dict, seed: int) -> Problem:
    values = {name: value for name, value in row.items() if name not in ("kv_length", "heads")}
    heads, kv_heads = row["heads"]
    return Problem(
        **values, heads=heads, kv_heads=kv_heads, seed=seed, seqlen_kv=KV_LENGTHS[row["kv_length"]](row["seqlen"])
    )


def problems_of(step: Program, lengths: list[int]) -> list[Problem]:
    rows = pairwise(parameters_of(step, lengths), PAIRWISE_SEED)
    return [to_problem(row, seed=i).for_step(step) for i, row in enumerate(rows)]


@lru_cache(maxsize=1000)  # steps with the same problems share the answers
def expected(p: Problem):
    return attention(p, *rounded_inputs(p))


@pytest.fixture(
    scope="session",
    ids=["some lengths", "all lengths"],
    params=[IN_EVERY_RUN, pytest.param(LENGTHS, marks=pytest.mark.exhaustive)],
)
def problems(step: Program, request: pytest.FixtureRequest) -> list[Problem]:
    return problems_of(step, request.param)


@pytest.fixture(scope="session")
def solved(
    step: Program, problems: list[Problem], tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[Result, dict]]:
    """The results that the others are compared with: one thread, forward order."""
    directory = tmp_path_factory.mktemp("solved") / step.name
    return step.solve_all(
        directory, [p.options() for p in problems], env={"SIMT_ORDER": "forward", "SIMT_THREADS": "1"}
    )


def differing(problems: list[Problem], a: list, b: list) -> list[Problem]:
    """The problems whose results have different bits."""
    return [p for p, (x, _), (y, _) in zip(problems, a, b, strict=True) if not x.same_bits(y)]


def test_program_says_right(problems: list[Problem], solved: list) -> None:
    """The exit code has been checked before; the records must agree and name the problem."""
    for p, (_, record) in zip(problems, solved, strict=True):
        rows = p.batch * p.heads * p.seqlen
        assert record["right"] is True, p
        assert record["rows"] == record["rows_checked"] == rows, p
        assert record["rows_wrong"] == record["lse_wrong"] == record["rows_not_compared"] == 0, p
        # A mean of equal numbers may be rounded up.
        assert 0 <= record["mean_error"] <= record["max_error"] * (1 + 1e-12), p
        assert record["max_error_share"] <= 1 and record["max_lse_error"] <= 1, p
        for name in (
            "batch",
            "heads",
            "kv_heads",
            "seqlen",
            "seqlen_kv",
            "head_dim",
            "dtype",
            "mask",
            "layout",
            "input",
        ):
            assert record[name] == getattr(p, name), (name, p)
        assert record["o_dtype"] == p.o_dtype(), p
        assert max(record["mean_error_share"], record["mean_gain_share"]) <= (p.dtype == "e4m3"), p
        assert (record["scale"], record["seed"]) == (p.scale_used(), str(p.seed))


def test_numpy_says_right(problems: list[Problem], solved: list) -> None:
    wrong = {p: mistakes(expected(p), result.o, result.lse) for p, (result, _) in zip(problems, solved, strict=True)}
    assert {p: found for p, found in wrong.items() if found} == {}


def test_program_and_numpy_allow_the_same_error(problems: list[Problem], solved: list) -> None:
    """2 * r of the rule, computed by two programs that share no code."""
    for p, (_, record) in zip(problems, solved, strict=True):
        # Near a tie exp() may be rounded differently, which changes r by less than one percent.
        assert record["allowed_error"] == pytest.approx(2 * expected(p).rounding_error, rel=0.01), p


def test_output_types(problems: list[Problem], solved: list) -> None:
    for p, (result, _) in zip(problems, solved, strict=True):
        assert result.o.dtype == ("<f2" if p.o_dtype() == "fp16" else "<f4")
        assert result.lse.dtype == "<f4" and result.lse.shape == p.q_shape()[:3]
        if p.o_dtype() == "bf16":
            assert not (result.o.view("<u4") & 0xFFFF).any(), f"not exact bf16: {p}"


def files_of(p: Problem, directory: Path) -> list[str]:
    """NumPy's inputs through files: both generators and both roundings agree to the last bit."""
    if p.dtype == "e4m3":
        pairs = [to_e4m3(x, p.kv_heads, p.scales) for x in draw_inputs(p)]
        options = p.options_with_files(directory, *(bits for bits, _ in pairs))
        for name, (_, scales) in zip("qkv", pairs, strict=True):
            np.save(directory / f"{name}_scales.npy", scales)
        return options
    bits = [x.astype("<f2") if p.dtype == "fp16" else bf16_bits(x) for x in rounded_inputs(p)]
    return p.options_with_files(directory, *bits)


def test_same_bits_otherwise(step: Program, problems: list[Problem], solved: list, tmp_path: Path) -> None:
    """In another order of threads, in the other layout, and from files; each alone, and with all of
    the problems, is below. Each warp completes its part of a wgmma alone."""
    problems, solved = problems[::3], solved[::3]
    lines = [files_of(p.with_other_layout(), tmp_path / f"in{i}") for i, p in enumerate(problems)]
    again = step.solve_all(
        tmp_path / "out", lines, "none", env={"SIMT_ORDER": "random:7", "SIMT_THREADS": "2", "SIMT_WGMMA": "warp"}
    )
    assert differing(problems, solved, again) == []


@pytest.mark.exhaustive
@pytest.mark.cpu_only("the order of CUDA threads can be chosen only there")
@pytest.mark.parametrize("order", ["forward 2", "reverse 1", "random:7 2"])
def test_same_bits_in_every_thread_order(
    step: Program, problems: list[Problem], solved: list, tmp_path: Path, order: str
) -> None:
    env = dict(zip(("SIMT_ORDER", "SIMT_THREADS"), order.split(), strict=True))
    again = step.solve_all(tmp_path / "out", [p.options() for p in problems], "none", env=env)
    assert differing(problems, solved, again) == []


@pytest.mark.gpu_only("on the CPU the test of thread orders runs everything again")
def test_same_bits_twice(step: Program, problems: list[Problem], solved: list, tmp_path: Path) -> None:
    again = step.solve_all(tmp_path / "out", [p.options() for p in problems], "none")
    assert differing(problems, solved, again) == []


@pytest.mark.exhaustive
def test_same_bits_in_both_layouts(step: Program, problems: list[Problem], solved: list, tmp_path: Path) -> None:
    others = [p.with_other_layout().options() for p in problems]
    assert differing(problems, solved, step.solve_all(tmp_path / "out", others, "none")) == []


@pytest.mark.exhaustive
def test_same_bits_from_files(step: Program, problems: list[Problem], solved: list, tmp_path: Path) -> None:
    lines = [files_of(p, tmp_path / f"in{i}") for i, p in enumerate(problems)]
    assert differing(problems, solved, step.solve_all(tmp_path / "out", lines, "none")) == []


def test_values_of_v_are_copied_unchanged_with_one_key(step: Program, tmp_path: Path) -> None:
    """With one key, O is that row of V, so the generator's bits are visible in the result."""
    kinds = [
        Problem(batch=2, heads=3, seqlen=2, seqlen_kv=1, head_dim=64, dtype=dtype, input=kind, seed=2**64 - 1).for_step(
            step
        )
        for dtype in ("fp16", "bf16")
        for kind in ("normal", "outlier", "spiky", "sink", "constant")
    ]
    solved = step.solve_all(tmp_path / "out", [p.options() for p in kinds])
    for p, (result, _) in zip(kinds, solved, strict=True):
        v = round_to(p.o_dtype(), rounded_inputs(p)[2])
        # With e4m3, the product with the scale of V is rounded once more.
        unit = {"fp16": 2.0**-10, "bf16": 2.0**-7}[p.o_dtype()] if p.dtype == "e4m3" else 0
        np.testing.assert_allclose(result.o, np.broadcast_to(v, p.q_shape()), rtol=unit, atol=0, err_msg=str(p))


def test_default_problem_is_right(step: Program) -> None:
    """./stepNN without any option."""
    done = step.run(*(() if BACKEND == "cpu" else ("--repeat", 0)))
    assert (done.returncode, done.stderr) == (0, "")
    assert "RIGHT" in done.stdout
