"""Tests of the tests' own tools: a check that never fails checks nothing."""

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.lib import generators as generator
from tests.lib.reference import (attention, bf16_bits, e4m3_value, from_e4m3, mistakes, round_to,
                                 to_e4m3)
from tests.lib.pairwise import all_pairs, pairs_of, pairwise
from tests.lib.problem import Problem


def test_rounding_to_fp16_is_numpys() -> None:
    every_half = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    middles = (every_half[1:] + every_half[:-1]) / 2
    x = np.concatenate([every_half, middles, np.nextafter(middles, 0), np.nextafter(middles, 9e9),
                        [65519.99, 65520, 1e300, np.inf, 1e-300]])
    x = np.concatenate([x, -x])
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16).astype(np.float64)
    np.testing.assert_array_equal(round_to("fp16", x), expected)
    assert np.isnan(round_to("fp16", np.array([np.nan])))[0]


def test_rounding_to_bf16_takes_the_nearest_and_of_two_the_even_one() -> None:
    every = (np.arange(0x7F80, dtype=np.uint32) << 16).view(np.float32).astype(np.float64)
    assert (round_to("bf16", every) == every).all()
    middles = (every[1:] + every[:-1]) / 2
    even = np.where(np.arange(len(middles)) % 2 == 0, every[:-1], every[1:])
    np.testing.assert_array_equal(round_to("bf16", middles), even)
    np.testing.assert_array_equal(round_to("bf16", np.nextafter(middles, 0)), every[:-1])
    np.testing.assert_array_equal(round_to("bf16", np.nextafter(middles, np.inf)), every[1:])
    np.testing.assert_array_equal(bf16_bits(every), np.arange(0x7F80))
    assert round_to("bf16", np.array([-3.4e38, -3.39e38]))[0] == -np.inf


def test_rounding_to_e4m3_takes_the_nearest_and_of_two_the_even_one() -> None:
    every = e4m3_value(np.arange(127))
    assert (every[0], every[1], every[8], every[56], every[126]) == (0, 2**-9, 2**-6, 1, 448)
    middles = (every[1:] + every[:-1]) / 2
    even = np.where(np.arange(len(middles)) % 2 == 0, every[:-1], every[1:])
    for sign in (1, -1):
        np.testing.assert_array_equal(round_to("e4m3", sign * every), sign * every)
        np.testing.assert_array_equal(round_to("e4m3", sign * middles), sign * even)
    np.testing.assert_array_equal(round_to("e4m3", np.nextafter(middles, 0)), every[:-1])
    np.testing.assert_array_equal(round_to("e4m3", np.nextafter(middles, 1e9)), every[1:])
    np.testing.assert_array_equal(round_to("e4m3", np.array([449, -np.inf])), [448, -448])


def test_scales_to_e4m3_are_those_of_heads_or_of_the_tensor() -> None:
    x = np.array([1.0, -2, 3, 0.001]).reshape(1, 4, 1, 1) * np.array([1, 0.5, np.nan])
    bits, scales = to_e4m3(x, 2)
    np.testing.assert_array_equal(scales, np.array([[2 / 448, 3 / 448]], np.float32))
    assert bits[0, 1].tolist() == [[0xFE, 0xF6, 0x7F]] and bits[0, 2, 0, 0] == 0x7E
    np.testing.assert_allclose(from_e4m3(bits, scales)[..., :2], x[..., :2], rtol=2**-4)
    assert np.isnan(from_e4m3(bits, scales)[..., 2]).all()
    np.testing.assert_array_equal(to_e4m3(x, 2, "tensor")[1], np.full((1, 2), np.float32(3 / 448)))
    assert to_e4m3(0 * x, 2)[1].tolist() == [[1, 1]]


def test_attention_by_hand() -> None:
    """Two keys with scores 0 and ln 3: probabilities 1/4 and 3/4."""
    p = Problem(seqlen=1, seqlen_kv=2, head_dim=1, scale=1.0)
    q, k = np.array([[[[1.0]]]]), np.array([[[[0.0], [math.log(3)]]]])
    answer = attention(p, q, k, np.array([[[[8.0], [4.0]]]]))
    assert answer.o.item() == pytest.approx(5)
    assert answer.lse.item() == pytest.approx(math.log(4))


def test_causal_is_aligned_to_the_last_key() -> None:
    assert Problem(seqlen=3, seqlen_kv=5, mask="causal").attended_keys().tolist() == [3, 4, 5]
    assert Problem(seqlen=5, seqlen_kv=3, mask="causal").attended_keys().tolist() == [0, 0, 1, 2, 3]
    assert Problem(seqlen=2, seqlen_kv=3).attended_keys().tolist() == [3, 3]


SMALL = Problem(batch=2, heads=4, kv_heads=2, seqlen=9, seqlen_kv=7, head_dim=8, mask="causal")


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_rule_accepts_the_rounded_answer(dtype: str) -> None:
    p = replace(SMALL, dtype=dtype)
    answer = attention(p, *generator.rounded_inputs(p))
    assert mistakes(answer, round_to(dtype, answer.o), answer.lse.astype(np.float32)) == []


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
