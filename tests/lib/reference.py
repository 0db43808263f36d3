"""Attention in NumPy, and when an answer is right; no code is shared with the C sources."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.lib.problem import Problem

# Stored mantissa bits, exponent of the smallest normal number, exponent of the largest number.
FORMATS = {"fp16": (10, -14, 15), "bf16": (7, -126, 127), "e4m3": (3, -6, 8)}
# Unit roundoff: how wrong rounding makes a normal number, at most.
UNIT = {name: 2.0 ** -(mantissa_bits + 1) for name, (mantissa_bits, _, _) in FORMATS.items()}
# e4m3 has no infinity: its largest number takes the place of larger ones.
LARGEST_E4M3 = 448.0
# P of a kernel in e4m3 is rounded times this.
P_FACTOR = {"fp16": 1.0, "bf16": 1.0, "e4m3": 256.0}


def round_to(dtype: str, x: np.ndarray) -> np.ndarray:
    """x rounded once to a format, to nearest even, as doubles."""
    mantissa_bits, least_exponent, most_exponent = FORMATS[dtype]
    x = np.asarray(x, dtype=np.float64)
    _, exponent = np.frexp(x)  # x = m * 2^exponent with |m| in [0.5, 1)
    quantum_exponent = np.maximum(exponent - 1, least_exponent) - mantissa_bits
    rounded = np.ldexp(np.rint(np.ldexp(x, -quantum_exponent)), quantum_exponent)
    if dtype == "e4m3":
        return np.clip(rounded, -LARGEST_E4M3, LARGEST_E4M3)
    overflowed = np.abs(rounded) >= 2.0 ** (most_exponent + 1)
    return np.where(overflowed, np.copysign(np.inf, x), rounded)


def bf16_bits(x: np.ndarray) -> np.ndarray:
    """The bit patterns of numbers that bf16 holds exactly: the upper half of their floats."""
    return (x.astype("<f4").view("<u4") >> 16).astype("<u2")


def e4m3_value(bits: np.ndarray) -> np.ndarray:
    """The numbers of bit patterns, by the definition of the format."""
    bits = np.asarray(bits).astype(np.int64)
    exponent, mantissa = bits >> 3 & 15, bits & 7
    size = np.where(exponent == 0, np.ldexp(1.0 * mantissa, -9), np.ldexp(8.0 + mantissa, exponent - 10))
    return np.where(bits & 127 == 127, np.nan, np.where(bits & 128, -size, size))


def as_doubles(bits: np.ndarray, dtype: str) -> np.ndarray:
    """The numbers of a dtype whose bits are given, as doubles."""
    if dtype == "e4m3":
        return e4m3_value(np.arange(256))[bits]
    if dtype == "fp16":
        return bits.view(np.float16).astype(np.float64)
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def to_e4m3(x: np.ndarray, kv_heads: int, scales_of: str = "head") -> tuple[np.ndarray, np.ndarray]:
    """The bits of x [B, H, N, D] divided by its scales, and the scales [B, Hkv]: the largest
    magnitude of each key/value head, or of the tensor, becomes 448."""
    grouped = np.nan_to_num(np.abs(x.reshape(len(x), kv_heads, -1)))
    largest = grouped.max(axis=-1) if scales_of == "head" else np.full(grouped.shape[:2], grouped.max())
    scales = np.where(largest == 0, 1, largest / LARGEST_E4M3).astype(np.float32)
    rounded = round_to("e4m3", x / _spread(scales, x))
    positive = e4m3_value(np.arange(127))
    bits = np.where(np.isnan(x), 127, np.searchsorted(positive, np.abs(rounded)))
    return (bits + 128 * np.signbit(rounded)).astype(np.uint8), scales


def from_e4m3(bits: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """The numbers of bits [B, H, N, D] with scales [B, Hkv], as doubles."""
    return e4m3_value(bits) * _spread(scales, bits)


def _spread(scales: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Scales of key/value heads as [B, H, 1, 1]."""
    return np.repeat(scales.astype(np.float64), x.shape[1] // scales.shape[1], axis=1)[..., None, None]


def rounded_input(dtype: str, x: np.ndarray, kv_heads: int, scales_of: str = "head") -> np.ndarray:
    """A tensor as a kernel gets it, as doubles."""
    return from_e4m3(*to_e4m3(x, kv_heads, scales_of)) if dtype == "e4m3" else round_to(dtype, x)


@dataclass
class Answer:
    """The right result."""

    o: np.ndarray  # [B, Hq, Nq, D], fp64
    lse: np.ndarray  # [B, Hq, Nq], fp64
    rounding_error: float  # r of the rule: the largest error of the rounded result over the rows
    base: np.ndarray | None = None  # the rounded result
    # How far rounding may move a row, [B, Hq, Nq]: at most, and if the errors of P are independent.
    most: np.ndarray | None = None
    likely: np.ndarray | None = None
    score_size: np.ndarray | None = None  # [B, Hq, Nq], e4m3 only: as in reference.h
    # The same as `likely` along directions of length 1, [B, Hq, Nq, D].
    likely_along: Callable[[np.ndarray], np.ndarray] | None = None


def _row_norms(x: np.ndarray) -> np.ndarray:
    return np.sqrt(np.sum(x * x, axis=-1))


def _divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a / b, and 0 where b is 0: nothing is attended there, so a is 0 too."""
    return np.divide(a, b, out=np.zeros_like(a), where=b != 0)


def attention(p: Problem, q: np.ndarray, k: np.ndarray, v: np.ndarray, attended: np.ndarray | None = None) -> Answer:
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
    lse, sizes, most, likely = np.empty((4, *p.q_shape()[:3]))
    factor, unit = P_FACTOR[p.dtype], UNIT[p.dtype]
    finite = np.where(np.isfinite(v), v, 0)

    def probabilities(b: int, h: int) -> tuple[np.ndarray, np.ndarray]:
        """Not normalised, and the maximum of each row."""
        keys = k[b, h // group]
        scores = np.where(attended[b, h], p.scale_used() * (q[b, h] @ keys.T), -np.inf)
        row_max = scores.max(axis=-1, keepdims=True)
        row_max[row_max == -np.inf] = 0  # -inf - -inf would be NaN
        return np.exp(scores - row_max), row_max

    def likely_along(directions: np.ndarray) -> np.ndarray:
        found = np.empty(p.q_shape()[:3])
        for b, h in np.ndindex(found.shape[:2]):
            probs, _ = probabilities(b, h)
            along = directions[b, h] @ finite[b, h // group].T
            found[b, h] = 2 * unit * _row_norms(_divide(probs * along, probs.sum(axis=-1, keepdims=True)))
        return found

    for b in range(p.batch):
        for h in range(p.heads):
            keys, values = k[b, h // group], v[b, h // group]
            # NaN and Inf are propagated on purpose, and log(0) must be -inf.
            with np.errstate(invalid="ignore", divide="ignore"):
                probs, row_max = probabilities(b, h)
                # The hardware multiplies P rounded to the dtype, but sums the unrounded P in fp32. Its exp2
                # gives 0 for what is subnormal.
                probs_32 = np.where(probs < 2.0**-126, 0, probs.astype(np.float32).astype(np.float64))
                total = probs.sum(axis=-1, keepdims=True)
                total_32 = probs_32.sum(axis=-1, keepdims=True)
                o[b, h] = _divide(probs @ values, total)
                rounded = _divide(round_to(p.dtype, factor * probs_32) / factor @ values, total_32)
                base[b, h] = round_to(p.o_dtype(), rounded)
                lse[b, h] = (row_max + np.log(total))[:, 0]
                most[b, h] = unit * _row_norms(_divide(probs @ np.abs(values), total)) + UNIT[p.o_dtype()] * _row_norms(
                    o[b, h]
                )
                sizes_of_v = _row_norms(finite[b, h // group])
                likely[b, h] = unit * _row_norms(_divide(probs * sizes_of_v, total))
                if p.dtype != "e4m3":
                    continue
                sizes[b, h] = p.scale_used() * _row_norms(q[b, h]) * np.nan_to_num(
                    _row_norms(keys)
                ).max() + p.head_dim / 8 * np.abs(row_max[:, 0])
    norms = _row_norms(o)
    usable = (norms > 0) & np.isfinite(norms)  # neither empty rows nor NaN or Inf
    errors = np.minimum(_row_norms(base - o), likely + UNIT[p.o_dtype()] * norms)[usable] / norms[usable]
    least = 2.0**-6 if p.dtype == "e4m3" else UNIT[p.dtype]
    return Answer(
        o,
        lse,
        max(least, errors.max(initial=0.0)),
        base,
        most,
        likely,
        sizes if p.dtype == "e4m3" else None,
        likely_along,
    )


def _tolerances(answer: Answer, o: np.ndarray) -> np.ndarray:
    """How far a result may be from the right one, for each row."""
    usual = 2 * answer.rounding_error * _row_norms(answer.o)
    if answer.base is None:
        return usual
    errors = np.nan_to_num(o - answer.o, posinf=0, neginf=0)
    along = answer.likely_along(_divide(errors, _row_norms(errors)[..., None]))
    likely = np.maximum(answer.likely, along)
    return np.maximum(np.minimum(np.maximum(usual, likely), 2 * answer.most), 2 * _row_norms(answer.base - answer.o))


def mistakes(answer: Answer, o: np.ndarray, lse: np.ndarray) -> list[str]:
    """What is wrong with a result, in words; empty if it is right."""
    if o.shape != answer.o.shape or lse.shape != answer.lse.shape:
        return [f"shapes {o.shape} and {lse.shape}, not {answer.o.shape} and {answer.lse.shape}"]
    o, lse = o.astype(np.float64), lse.astype(np.float64)
    empty = answer.lse == -np.inf
    nan_rows = np.isnan(answer.lse)
    compared = ~empty & ~nan_rows

    in_e4m3 = answer.score_size is not None
    with np.errstate(invalid="ignore"):
        o_right = _row_norms(o - answer.o) <= _tolerances(answer, o)
        lse_right = np.abs(lse - answer.lse) <= (
            1e-4 + 1e-5 * np.abs(answer.lse) + (2.0**-13 * answer.score_size if in_e4m3 else 0)
        )
    o_right[empty] = (o[empty] == 0).all(axis=-1)
    lse_right[empty] = lse[empty] == -np.inf
    o_right[nan_rows] = np.isnan(o[nan_rows]).all(axis=-1)
    lse_right[nan_rows] = np.isnan(lse[nan_rows])

    found = []
    for name, right in (("O", o_right), ("LSE", lse_right)):
        if not right.all():
            b, h, q = np.argwhere(~right)[0]
            found.append(
                f"{name}: {np.count_nonzero(~right)} of {right.size} rows are wrong, "
                f"{np.count_nonzero(~right & compared)} of them neither empty nor NaN; "
                f"the first is (b={b}, h={h}, q={q})"
            )
    return found + (_wrong_averages(answer, o) if in_e4m3 else [])


def _wrong_averages(answer: Answer, o: np.ndarray) -> list[str]:
    """Of e4m3: rounding P to it makes large errors, which are random, so that averages over the rows
    of a head, and over all rows, are sharper than the limit of a row."""
    found, norms = [], _row_norms(answer.o)
    usable = (norms > 0) & np.isfinite(norms) & np.isfinite(o).all(axis=-1)
    divisor = np.where(usable, norms, 1)
    with np.errstate(invalid="ignore"):
        error, base = (_row_norms(x - answer.o) / divisor for x in (o, answer.base))
        gain = np.sum((o - answer.base) * answer.o, axis=-1) / divisor**2
    heads = [(f"head {index}", np.s_[index]) for index in np.ndindex(o.shape[:2])]
    for name, at in [("all heads", np.s_[:]), *heads]:
        some, count = usable[at], np.count_nonzero(usable[at])
        if count < 16:
            continue
        room = 4 * np.sqrt(np.sum(base[at][some] ** 2))
        if error[at][some].sum() > max(1.5 * base[at][some].sum() + room, count * 2.0**-7):
            found.append(f"O: the mean error of {name} is larger than rounding makes it")
        if abs(gain[at][some].sum()) > count * 2.0**-7 + 4 * np.sqrt(np.sum(gain[at][some] ** 2)):
            found.append(f"O: the rows of {name} have a wrong mean length: is a scale wrong?")
    return found
