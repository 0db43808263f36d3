"""Tests of the tests' own tools: a check that never fails checks nothing.

What the tools compute is compared with the programs, which share no code with them, elsewhere.
"""

from dataclasses import replace

import numpy as np
import pytest

from tests.lib import generators as generator
from tests.lib.reference import attention, mistakes, round_to
from tests.lib.pairwise import all_pairs, pairs_of, pairwise
from tests.lib.problem import Problem


SMALL = Problem(batch=2, heads=4, kv_heads=2, seqlen=9, seqlen_kv=7, head_dim=8, mask="causal")


def test_rule_for_e4m3() -> None:
    """The rounded answer is right; P with a bit less and a scale wrong by 2 % are not."""
    p = Problem(heads=2, seqlen=100, seqlen_kv=300, head_dim=32, dtype="e4m3")
    q, k, v = generator.rounded_inputs(p)
    answer = attention(p, q, k, v)
    assert mistakes(answer, answer.o, answer.lse) == mistakes(answer, answer.base, answer.lse) == []
    assert "is a scale wrong?" in mistakes(answer, 1.02 * answer.base, answer.lse)[0]
    probs = np.exp(p.scale_used() * q @ k.swapaxes(2, 3))
    mantissa, exponent = np.frexp(probs)
    short = np.ldexp(np.rint(8 * mantissa) / 8, exponent) @ v / probs.sum(axis=-1, keepdims=True)
    assert "the mean error of all heads" in " ".join(mistakes(answer, short, answer.lse))
    assert "LSE: 200 of 200" in mistakes(answer, answer.base, answer.lse + 0.01)[0]


def test_rule_refuses_bf16_where_fp16_was_asked_for() -> None:
    answer = attention(SMALL, *generator.rounded_inputs(SMALL))
    assert mistakes(answer, round_to("bf16", answer.o), answer.lse)


@pytest.mark.parametrize("index, value", [
    ((0, 0, 0, 3), 1e-8), ((1, 3, 8, 7), np.nan), ((1, 2, 5, 0), np.inf), ((0, 1, 4, 2), 99.0),
], ids=["empty row not zero", "NaN", "Inf", "wrong value"])
def test_rule_finds_one_wrong_element_of_o(index: tuple, value: float) -> None:
    answer = attention(SMALL, *generator.rounded_inputs(SMALL))
    o = answer.o.copy()
    o[index] = value
    (found,) = mistakes(answer, o, answer.lse)
    assert found.startswith("O: 1 of 72 rows") and "(b={}, h={}, q={})".format(*index) in found


@pytest.mark.parametrize("index, value", [((0, 0, 1), 0.0), ((1, 3, 8), np.nan), ((0, 2, 6), 0.01)],
                         ids=["empty row", "NaN", "wrong value"])
def test_rule_finds_one_wrong_lse(index: tuple, value: float) -> None:
    answer = attention(SMALL, *generator.rounded_inputs(SMALL))
    lse = answer.lse.copy()
    lse[index] = value if lse[index] == -np.inf else lse[index] + value
    (found,) = mistakes(answer, answer.o, lse)
    assert found.startswith("LSE: 1 of 72 rows")


def test_rule_requires_nan_where_nan_is_expected() -> None:
    q, k, v = generator.rounded_inputs(SMALL)
    q[1, 1, 8, 0] = np.nan
    answer = attention(SMALL, q, k, v)
    assert np.isnan(answer.o[1, 1, 8]).all() and np.count_nonzero(np.isnan(answer.lse)) == 1
    assert mistakes(answer, answer.o, answer.lse) == []
    assert len(mistakes(answer, np.nan_to_num(answer.o), np.nan_to_num(answer.lse, neginf=-np.inf))
               ) == 2


def test_rule_finds_a_lost_key() -> None:
    """The last key of 200 is left out: the smallest error of a wrong tile boundary."""
    p = Problem(seqlen=64, seqlen_kv=200, dtype="bf16")
    q, k, v = generator.rounded_inputs(p)
    lost = attention(replace(p, seqlen_kv=199), q, k[:, :, :-1], v[:, :, :-1])
    assert mistakes(attention(p, q, k, v), lost.o, lost.lse)


def test_pairwise_covers_every_pair() -> None:
    parameters = {"a": [1, 2, 3, 4], "b": ["x", "y", "z"], "c": [True, False], "d": [None, 1.5]}
    rows = pairwise(parameters, seed=5)
    assert set().union(*map(pairs_of, rows)) == all_pairs(parameters)
    assert len(all_pairs(parameters)) == 12 + 8 + 8 + 6 + 6 + 4
    assert len(rows) < 4 * 3 * 2 * 2
    assert rows == pairwise(parameters, seed=5) != pairwise(parameters, seed=6)
