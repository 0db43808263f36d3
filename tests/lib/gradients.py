"""The backward pass in NumPy, in fp64, and when gradients are right; no code is shared with the C
sources."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.lib.masks import preset
from tests.lib.problem import Problem
from tests.lib.programs import Program, read_records, write_inputs
from tests.lib.reference import FORMATS, UNIT, round_to

NAMES = ("dq", "dk", "dv")
# What a P is multiplied by before it is rounded, if dS is made of it: few of them are subnormal then.
P_FACTOR = {"fp16": 2048.0, "bf16": 1.0}
# distances() of right gradients: errors of 16 bits, and of O, which is rounded before D is made of it.
MOST = {"fp16": 1.5e-3, "bf16": 1.2e-2}


def forward(
    p: Problem, q: np.ndarray, k: np.ndarray, v: np.ndarray, attended: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """P, O and LSE; k and v have as many heads as q. `attended` is the mask, if p.mask is a file."""
    s = np.where(preset(p) if attended is None else attended, p.scale_used() * q @ k.swapaxes(-1, -2), -np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        lse = np.log(np.exp(s - s.max(-1, keepdims=True)).sum(-1, keepdims=True)) + s.max(-1, keepdims=True)
    lse = np.where(np.isnan(lse), -np.inf, lse)
    probs = np.exp(s - np.where(np.isinf(lse), 0, lse))
    return probs, probs @ v, lse[..., 0]


def gradients(
    p: Problem, q: np.ndarray, k: np.ndarray, v: np.ndarray, d_o: np.ndarray, attended: np.ndarray | None = None
) -> list[np.ndarray]:
    """dQ, dK and dV by the Jacobian of the softmax, without O and LSE of a kernel."""
    group = p.heads // p.kv_heads
    k, v = (np.repeat(x, group, axis=1) for x in (k, v))
    probs, _, _ = forward(p, q, k, v, attended)
    d_probs = d_o @ v.swapaxes(-1, -2)
    ds = probs * (d_probs - (probs * d_probs).sum(-1, keepdims=True))
    dq = p.scale_used() * ds @ k
    dk, dv = p.scale_used() * ds.swapaxes(-1, -2) @ q, probs.swapaxes(-1, -2) @ d_o
    return [dq, *(x.reshape(p.batch, p.kv_heads, group, *x.shape[2:]).sum(2) for x in (dk, dv))]


def draw(p: Problem, seed: int) -> list[np.ndarray]:
    """Q, K, V and dO: normal numbers, exact in fp16 and in bf16."""
    rng = np.random.default_rng(seed)
    shapes = p.q_shape(), p.kv_shape(), p.kv_shape(), p.q_shape()
    return [np.round(rng.normal(size=shape) * 32).clip(-128, 127) / 32 for shape in shapes]


def write(directory: Path, tensors: list[np.ndarray]) -> Path:
    """The directory that --input reads."""
    write_inputs(directory, *tensors[:3])
    np.save(directory / "do.npy", tensors[3])
    return directory


def solve(step: Program, directory: Path, *options: object, **more) -> tuple[list[np.ndarray], dict]:
    """Solves one problem, checked in full by the program: dQ, dK and dV, and the JSON record."""
    json_path = directory / "record.json"
    directory.mkdir(parents=True, exist_ok=True)
    step.run_right("--check", "all", "--output", directory, "--json", json_path, *options, **more)
    (record,) = read_records(json_path)
    return [np.load(directory / f"{name}.npy") for name in NAMES], record


def distances(found: list[np.ndarray], expected: list[np.ndarray]) -> list[float]:
    """Of each gradient, relative to its length."""
    return [
        float(np.linalg.norm(x.astype(np.float64) - y) / max(np.linalg.norm(y), 1e-30))
        for x, y in zip(found, expected, strict=True)
    ]


# --- When gradients are right -----------------------------------------------------------------------


@dataclass
class Answer:
    """One gradient, as the program's own reference computes it from O and LSE of a forward pass."""

    value: np.ndarray  # [B, H, N, D], fp64
    allowed_error: float  # 2 * r of the rule
    tolerance: np.ndarray  # of each row, [B, H, N]


def _norms(x: np.ndarray) -> np.ndarray:
    return np.sqrt(np.sum(x * x, axis=-1))


def _rounding(dtype: str, x: np.ndarray) -> np.ndarray:
    """The most that rounding to 16 bits moves x: a part of it, or half of the smallest number."""
    mantissa_bits, least_exponent, _ = FORMATS[dtype]
    return np.maximum(UNIT[dtype] * np.abs(x), np.minimum(np.abs(x), 2.0 ** (least_exponent - mantissa_bits - 1)))


def _rounded(dtype: str, x: np.ndarray, probs: np.ndarray) -> np.ndarray:
    """x in fp32, where it is 0 if it or P are subnormal, then in 16 bits."""
    x_32 = np.where(np.minimum(np.abs(x), probs) < 2.0**-126, 0, x.astype(np.float32).astype(np.float64))
    return round_to(dtype, x_32)


def _answer(
    dtype: str,
    factor: float,
    x: np.ndarray,
    y: np.ndarray,
    fp32: np.ndarray,
    probs: np.ndarray,
    summed: Callable[[np.ndarray], np.ndarray],
    rounded_p: bool = False,
) -> Answer:
    """The gradient factor * x y; `fp32` is of the shape of x, and its product with the lengths of y
    is the size of what fp32 rounds. x has `probs` as a factor, which is rounded first with `rounded_p`. `summed` adds
    up the query heads of each group."""
    unit, y_norms = UNIT[dtype], _norms(y)
    value, wrong, normal, x_base = factor * summed(x @ y), _rounding(dtype, x), unit * np.abs(x), x
    likely_wrong = wrong
    if rounded_p:
        larger = P_FACTOR[dtype]
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(probs > 0, x / probs, 0)
        of_p = _rounding(dtype, larger * probs) / larger * np.abs(ratio)
        wrong, likely_wrong, normal = wrong + of_p, np.hypot(wrong, of_p), np.hypot(normal, normal)
        x_base = _rounded(dtype, larger * probs, probs) / larger * ratio
    base = round_to(dtype, factor * summed(_rounded(dtype, x_base, probs) @ y))
    most = _norms(factor * summed(wrong @ np.abs(y)) + _rounding(dtype, value))
    likely, likely_if_normal = (
        2 * factor * np.sqrt(summed((e * e) @ (y_norms**2)[..., None])[..., 0]) for e in (likely_wrong, normal)
    )
    size = factor * summed(fp32 @ y_norms[..., None])[..., 0]
    norms, of_base = _norms(value), _norms(base - value)
    mantissa_bits, least_exponent, _ = FORMATS[dtype]
    some = norms > np.maximum(2.0**-21 * size, 2.0 ** (least_exponent - mantissa_bits))
    usual = np.minimum(of_base[some], likely_if_normal[some] + unit * norms[some]) / norms[some]
    allowed = 2 * max(unit, usual.max(initial=0.0))
    rule = np.maximum(np.minimum(np.maximum(allowed * norms, likely), 2 * most), 2 * of_base)
    return Answer(value, allowed, rule + 2.0**-21 * size)


def answers(
    p: Problem,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    d_o: np.ndarray,
    o: np.ndarray,
    lse: np.ndarray,
    attended: np.ndarray | None = None,
    names: Sequence[str] = NAMES,
    rounded_p: bool = False,
) -> list[Answer]:
    """dQ, dK and dV, or those of them that are named, from all that a backward step gets, with the tolerances of
    docs/correctness.md, for a step that makes dS of P in 16 bits if `rounded_p`. `attended` is the mask, where there are only some of the queries and keys of the problem."""
    attended = preset(p) if attended is None else attended
    group, scale = p.heads // p.kv_heads, p.scale_used()
    keys, values = (np.repeat(x, group, axis=1) for x in (k, v))
    with np.errstate(over="ignore", invalid="ignore"):  # where nothing is attended, LSE is -inf
        probs = np.where(attended, np.exp(scale * q @ keys.swapaxes(-1, -2) - lse[..., None]), 0)
    ds = probs * (d_o @ values.swapaxes(-1, -2) - (d_o * o).sum(-1, keepdims=True))
    sizes = _norms(d_o)[..., None] * (_norms(values)[..., None, :] + _norms(o)[..., None])

    of_scores = np.where(probs > 0, (1 + p.head_dim / 64) * np.abs(lse)[..., None], 0)
    flushed = np.where(attended, 2.0**-105, 0)  # what becomes 0 in fp32, in units of the 2^-21 of _answer()
    of_ds, of_probs = probs * sizes + of_scores * np.abs(ds) + flushed, probs * (1 + of_scores) + flushed

    def transposed(x: np.ndarray) -> np.ndarray:
        return x.swapaxes(-1, -2)

    def summed(x: np.ndarray) -> np.ndarray:
        return x.reshape(p.batch, p.kv_heads, group, *x.shape[2:]).sum(2)

    of = {
        "dq": (scale, ds, keys, of_ds, probs, lambda x: x),
        "dk": (scale, transposed(ds), q, transposed(of_ds), transposed(probs), summed),
        "dv": (1.0, transposed(probs), d_o, transposed(of_probs), transposed(probs), summed),
    }
    return [_answer(p.dtype, *of[name], rounded_p=rounded_p and name != "dv") for name in names]


def mistakes(expected: list[Answer], found: list[np.ndarray]) -> list[str]:
    """What is wrong with dQ, dK and dV, in words; empty if they are right."""
    texts = []
    for name, answer, x in zip(NAMES, expected, found, strict=True):
        if x.shape != answer.value.shape:
            texts.append(f"{name}: the shape is {x.shape}, not {answer.value.shape}")
            continue
        right = _norms(x.astype(np.float64) - answer.value) <= answer.tolerance
        if not right.all():
            texts.append(
                f"{name}: {np.count_nonzero(~right)} of {right.size} rows are wrong, the first "
                f"is {tuple(map(int, np.argwhere(~right)[0]))}"
            )
    return texts
