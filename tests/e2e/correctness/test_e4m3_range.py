"""Numbers that are far apart: P of one row, and scales, in e4m3."""

from pathlib import Path

import numpy as np
import pytest

from tests.lib.kinds import FP8_STEPS
from tests.lib.problem import Problem
from tests.lib.programs import Program, write_inputs
from tests.lib.reference import attention, from_e4m3, mistakes
from tests.lib.steps import step_names

fp8_steps = pytest.mark.parametrize("name", [name for name in step_names() if name in FP8_STEPS])
DIM = 64
ONE, HALF, EIGHTH, SIGN = 0x38, 0x30, 0x20, 0x80  # bits of e4m3


def solve(
    name: str, directory: Path, p: Problem, scales: tuple[float, float, float], *tensors: np.ndarray
) -> list[str]:
    """What is wrong with the result; the tensors are bits of e4m3, and have one scale each."""
    arrays = [np.full((1, 1), scale, np.float32) for scale in scales]
    write_inputs(directory, *(bits.astype(np.uint8) for bits in tensors))
    for letter, scale in zip("qkv", arrays, strict=True):
        np.save(directory / f"{letter}_scales.npy", scale)
    result, _ = Program(name).solve(directory / "out", *p.options_with_files(directory))
    values = [from_e4m3(bits, scale) for bits, scale in zip(tensors, arrays, strict=True)]
    return mistakes(attention(p, *values), result.o, result.lse)


@fp8_steps
@pytest.mark.parametrize(
    "keys, v_of_sinks, sinks, gap",
    [
        (1024, 0, 1, 14.01),
        (1024, 0, 1, 16.01),
        (1024, 0, 1, 17.01),
        (1024, 0, 2, 16.01),
        (65536, ONE, 1, 16.01),
        (65536, ONE, 1, 17.01),
        (65536, ONE, 2, 16.01),
    ],
)
def test_small_p_beside_large_ones(
    name: str, tmp_path: Path, keys: int, v_of_sinks: int, sinks: int, gap: float
) -> None:
    """The first keys have P = 1, all others 2^-gap, which must not become 0."""
    p = Problem(
        heads=1,
        seqlen=2,
        seqlen_kv=keys,
        head_dim=DIM,
        dtype="e4m3",
        out_dtype="bf16",
        scale=float(gap * np.log(2) / DIM),
    )
    q, k, v = (np.full((1, 1, rows, DIM), bits) for rows, bits in ((2, ONE), (keys, 0), (keys, ONE)))
    k[:, :, :sinks], v[:, :, :sinks] = ONE, v_of_sinks
    assert solve(name, tmp_path, p, (1, 1, 1), q, k, v) == []


@fp8_steps
@pytest.mark.parametrize(
    "scale, scales, keys",
    [
        (0.125, (1e-25, 1e-25, 1), 4096),  # their product is 0 in fp32
        (1.5, (3e38, 2e-38, 1), 4096),  # that of the softmax times that of Q is infinite
        (0.125, (1, 1, 1.3e-38), 65536),
    ],
)  # that of V divided by l is subnormal
def test_scales_whose_product_is_no_normal_number(
    name: str, tmp_path: Path, scale: float, scales: tuple[float, float, float], keys: int
) -> None:
    p = Problem(
        heads=1, seqlen=70, seqlen_kv=keys, head_dim=DIM, mask="causal", dtype="e4m3", out_dtype="bf16", scale=scale
    )
    draw = np.random.default_rng(5)
    q = draw.choice([ONE, SIGN | ONE], (1, 1, 70, DIM))
    k = draw.choice([EIGHTH, SIGN | EIGHTH], (1, 1, keys, DIM))
    v = draw.choice([HALF, ONE], (1, 1, keys, DIM))
    assert solve(name, tmp_path, p, scales, q, k, v) == []
