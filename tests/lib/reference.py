"""Attention in NumPy, and when an answer is right; no code is shared with the C sources."""

from dataclasses import dataclass

import numpy as np

from tests.lib.problem import Problem

# Stored mantissa bits, exponent of the smallest normal number, exponent of the largest number.
FORMATS = {"fp16": (10, -14, 15), "bf16": (7, -126, 127)}


def round_to(dtype: str, x: np.ndarray) -> np.ndarray:
    """x rounded once to fp16 or bf16, to nearest even, as doubles."""
    mantissa_bits, least_exponent, most_exponent = FORMATS[dtype]
    x = np.asarray(x, dtype=np.float64)
    _, exponent = np.frexp(x)  # x = m * 2^exponent with |m| in [0.5, 1)
    quantum_exponent = np.maximum(exponent - 1, least_exponent) - mantissa_bits
    rounded = np.ldexp(np.rint(np.ldexp(x, -quantum_exponent)), quantum_exponent)
    overflowed = np.abs(rounded) >= 2.0 ** (most_exponent + 1)
    return np.where(overflowed, np.copysign(np.inf, x), rounded)


def bf16_bits(x: np.ndarray) -> np.ndarray:
    """The bit patterns of numbers that bf16 holds exactly: the upper half of their floats."""
    return (x.astype("<f4").view("<u4") >> 16).astype("<u2")


@dataclass
class Answer:
    """The right result."""

    o: np.ndarray  # [B, Hq, Nq, D], fp64
    lse: np.ndarray  # [B, Hq, Nq], fp64
    rounding_error: float  # r of the rule: the largest error of the rounded result over the rows


def _row_norms(x: np.ndarray) -> np.ndarray:
    return np.sqrt(np.sum(x * x, axis=-1))


def _divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a / b, and 0 where b is 0: nothing is attended there, so a is 0 too."""
    return np.divide(a, b, out=np.zeros_like(a), where=b != 0)


def attention(p: Problem, q: np.ndarray, k: np.ndarray, v: np.ndarray,
              attended: np.ndarray | None = None) -> Answer:
    """The exact result, and how much the roundings of a tensor-core kernel may change it.

    `attended` is a dense mask, bool, of any shape that broadcasts to [B, Hq, Nq, Nkv]; without it
    the mask is the problem's, full or causal.
    """
    group = p.heads // p.kv_heads
    if attended is None:
        attended = np.arange(p.seqlen_kv) < p.attended_keys()[:, None]
    attended = np.broadcast_to(attended, (p.batch, p.heads, p.seqlen, p.seqlen_kv))
    o = np.empty(p.q_shape())
    base = np.empty(p.q_shape())
    lse = np.empty(p.q_shape()[:3])
    for b in range(p.batch):
        for h in range(p.heads):
            keys, values = k[b, h // group], v[b, h // group]
            # NaN and Inf are propagated on purpose, and log(0) must be -inf.
            with np.errstate(invalid="ignore", divide="ignore"):
                scores = np.where(attended[b, h], p.scale_used() * (q[b, h] @ keys.T), -np.inf)
                row_max = scores.max(axis=-1, keepdims=True)
                row_max[row_max == -np.inf] = 0  # -inf - -inf would be NaN
                probs = np.exp(scores - row_max)
                # The hardware multiplies P rounded to the dtype, but sums the unrounded P in fp32.
                probs_32 = probs.astype(np.float32).astype(np.float64)
                total = probs.sum(axis=-1, keepdims=True)
                total_32 = probs_32.sum(axis=-1, keepdims=True)
                o[b, h] = _divide(probs @ values, total)
                rounded = _divide(round_to(p.dtype, probs_32) @ values, total_32)
                base[b, h] = round_to(p.dtype, rounded)
                lse[b, h] = (row_max + np.log(total))[:, 0]
    return Answer(o, lse, _rounding_error(p.dtype, o, base))


def _rounding_error(dtype: str, o: np.ndarray, base: np.ndarray) -> float:
    unit = 2.0 ** -(FORMATS[dtype][0] + 1)
    norms = _row_norms(o)
    usable = (norms > 0) & np.isfinite(norms)  # neither empty rows nor NaN or Inf
    errors = _row_norms(base - o)[usable] / norms[usable]
    return max(unit, errors.max(initial=0.0))


def mistakes(answer: Answer, o: np.ndarray, lse: np.ndarray) -> list[str]:
    """What is wrong with a result, in words; empty if it is right."""
    if o.shape != answer.o.shape or lse.shape != answer.lse.shape:
        return [f"shapes {o.shape} and {lse.shape}, not {answer.o.shape} and {answer.lse.shape}"]
    o, lse = o.astype(np.float64), lse.astype(np.float64)
    empty = answer.lse == -np.inf
    nan_rows = np.isnan(answer.lse)
    compared = ~empty & ~nan_rows

    with np.errstate(invalid="ignore"):
        o_right = (_row_norms(o - answer.o)
                   <= 2 * answer.rounding_error * _row_norms(answer.o))
        lse_right = np.abs(lse - answer.lse) <= 1e-4 + 1e-5 * np.abs(answer.lse)
    o_right[empty] = (o[empty] == 0).all(axis=-1)
    lse_right[empty] = lse[empty] == -np.inf
    o_right[nan_rows] = np.isnan(o[nan_rows]).all(axis=-1)
    lse_right[nan_rows] = np.isnan(lse[nan_rows])

    found = []
    for name, right in (("O", o_right), ("LSE", lse_right)):
        if not right.all():
            b, h, q = np.argwhere(~right)[0]
            found.append(f"{name}: {np.count_nonzero(~right)} of {right.size} rows are wrong, "
                         f"{np.count_nonzero(~right & compared)} of them neither empty nor NaN; "
                         f"the first is (b={b}, h={h}, q={q})")
    return found
