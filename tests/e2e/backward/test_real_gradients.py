"""Gradients through two layers of real models: queries, keys and values of tests/data."""

from dataclasses import replace

import numpy as np
import pytest

from tests.activations import fixtures, texts
from tests.lib.gradients import MOST, answers, distances, forward, gradients, mistakes, solve, write
from tests.lib.problem import Problem
from tests.lib.programs import Program
from tests.lib.reference import round_to

ROWS = 96  # the first tokens, of the first two key/value heads: several tiles of every step
LAYERS = ["minilm_layer0", "smollm2_layer18"]  # all tokens attend to all; grouped heads and a causal mask


def tensors_of(name: str) -> tuple[Problem, list[np.ndarray]]:
    """The problem, and Q, K, V and a random dO."""
    q, k, v = (np.load(texts.DATA / name / f"{tensor}.npy").astype(float) for tensor in "qkv")
    group = q.shape[1] // k.shape[1]
    q, k, v = q[:, : 2 * group, :ROWS], k[:, :2, :ROWS], v[:, :2, :ROWS]
    p = Problem(
        heads=q.shape[1],
        kv_heads=k.shape[1],
        seqlen=q.shape[2],
        head_dim=q.shape[3],
        mask=fixtures.provenance_of(texts.DATA / name)["mask"],
    )
    return p, [q, k, v, np.random.default_rng(1).normal(size=q.shape)]


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_gradients_through_a_layer(step: Program, tmp_path, name: str, dtype: str) -> None:
    """Of O and LSE that NumPy has computed, and rounded as a forward step does."""
    p, tensors = tensors_of(name)
    if not step.takes(p.head_dim):
        pytest.skip(f"no D={p.head_dim}")
    p, tensors = replace(p, dtype=dtype), [round_to(dtype, x) for x in tensors]
    group = p.heads // p.kv_heads
    _, o, lse = forward(p, tensors[0], *(np.repeat(x, group, axis=1) for x in tensors[1:3]))
    o, lse = round_to(dtype, o), lse.astype("<f4")
    directory = write(tmp_path / "in", tensors)
    np.save(directory / "o.npy", o)
    np.save(directory / "lse.npy", lse)
    found, _ = solve(step, tmp_path, "--input", directory, "--dtype", dtype, "--mask", p.mask)
    expected = answers(p, *tensors, o, lse.astype(np.float64), rounded_p=step.facts["rounded_p"])
    assert mistakes(expected, found) == []
    assert max(distances(found, gradients(p, *tensors))) < MOST[dtype]
