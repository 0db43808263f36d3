"""The parts of `make activations` that need none of its packages."""

from pathlib import Path

import numpy as np

from tests.lib.reference import attention
from tests.lib.problem import Problem
from tests.activations import fixtures
from tests.activations.layers import Activations, attend, split_heads
from tests.activations.rotary import halves_from_neighbours, rotate_halves, rotate_neighbours

BASE = 10_000.0
rng = np.random.default_rng(6)


# --- The rotary embedding -------------------------------------------------------------------------

def test_rotation_is_that_of_complex_numbers() -> None:
    """Columns d and d + D/2 are a complex number, times exp(i position base^(-2d/D))."""
    x = rng.normal(size=(2, 5, 8))
    positions = np.array([0, 1, 2, 7, 1000])
    turns = np.exp(1j * positions[:, None] * BASE ** (-2 * np.arange(4) / 8))
    turned = (x[..., :4] + 1j * x[..., 4:]) * turns
    expected = np.concatenate([turned.real, turned.imag], axis=-1)
    assert np.allclose(rotate_halves(x, positions, BASE), expected, rtol=0, atol=1e-12)


def test_stored_weights_are_reordered() -> None:
    """rotate_neighbours() on stored weights gives the scores of rotate_halves() on ordered ones."""
    x = rng.normal(size=(7, 12))
    stored = [rng.normal(size=(3 * 8, 12)) for _ in "qk"]
    positions = np.arange(7)

    def scores(rotate, weights) -> np.ndarray:
        q, k = (rotate(split_heads(x @ w.T, 3), positions, BASE) for w in weights)
        return q @ k.transpose(0, 2, 1)

    expected = scores(rotate_neighbours, stored)
    ordered = [halves_from_neighbours(w, 3) for w in stored]
    assert np.allclose(scores(rotate_halves, ordered), expected, rtol=0, atol=1e-9)
    assert not np.allclose(scores(rotate_halves, stored), expected, atol=0.1)


# --- Attention and its files ----------------------------------------------------------------------

def activations(length: int = 20) -> Activations:
    q, k, v = (rng.normal(size=(heads, length, 32)) for heads in (6, 2, 2))
    return attend(q, k, v, np.tri(length, dtype=bool), np.arange(6) // 3)


def test_attention_is_that_of_the_programs() -> None:
    a = activations()
    p = Problem(heads=6, kv_heads=2, seqlen=20, head_dim=32, mask="causal")
    expected = attention(p, *(x[None].astype(np.float64) for x in (a.q, a.k, a.v)))
    assert a.q.dtype == a.k.dtype == a.v.dtype == np.float16
    # The programs hold the scale in single precision.
    assert np.allclose(a.o, expected.o[0], rtol=0, atol=1e-6)
    assert np.allclose(a.lse, expected.lse[0], rtol=0, atol=1e-6)


def test_stored_files_are_compared(tmp_path: Path) -> None:
    fresh, kept = tmp_path / "fresh", tmp_path / "kept"
    for name in ("one", "two"):
        fixtures.write(fresh / name, activations(), {"mask": "causal"})
    (kept / "texts").mkdir(parents=True)
    (kept / "texts" / "poem.txt").write_text("a\n")
    fixtures.keep(fresh, kept, ["one"])
    assert fixtures.changed_files(kept) == []
    assert fixtures.differences(fresh, kept, ["one"]) == []
    assert not (kept / "two").exists()
    np.save(fresh / "one" / "v.npy", np.zeros(3))
    assert fixtures.differences(fresh, kept, ["one"]) == ["one/v.npy"]
    fixtures.keep(fresh, kept, ["one"])
    assert fixtures.differences(fresh, kept, ["one"]) == []
    (kept / "one" / "o_rows.npy").unlink()
    (kept / "one" / "more.npy").write_text("")
    assert fixtures.differences(fresh, kept, ["one"]) == ["one/more.npy", "one/o_rows.npy"]
    assert len(fixtures.differences(fresh, kept, ["two"])) == 6
