"""Rotary position embedding (Su et al. 2021), as models of the Llama family use it."""

import numpy as np


def _turn(a: np.ndarray, b: np.ndarray, positions: np.ndarray, base: float) -> tuple[np.ndarray, np.ndarray]:
    """Rotates the pairs (a, b), [H, N, D/2], by position times base^(-2 i / D)."""
    pairs = a.shape[-1]
    angles = np.outer(positions, base ** (-np.arange(pairs) / pairs))
    cos, sin = np.cos(angles), np.sin(angles)
    return a * cos - b * sin, b * cos + a * sin


def rotate_halves(x: np.ndarray, positions: np.ndarray, base: float) -> np.ndarray:
    """Columns d and d + D/2 of x, [H, N, D], are a pair."""
    half = x.shape[-1] // 2
    return np.concatenate(_turn(x[..., :half], x[..., half:], positions, base), axis=-1)


def rotate_neighbours(x: np.ndarray, positions: np.ndarray, base: float) -> np.ndarray:
    """Columns 2 d and 2 d + 1 are a pair, as llama.cpp stores them."""
    return np.stack(_turn(x[..., ::2], x[..., 1::2], positions, base), axis=-1).reshape(x.shape)


def halves_from_neighbours(rows: np.ndarray, heads: int) -> np.ndarray:
    """Reorders the rows of Wq or Wk, [H * D, width], from the order of rotate_neighbours() to that
    of rotate_halves()."""
    pairs = rows.reshape(heads, -1, 2, rows.shape[1])
    return pairs.transpose(0, 2, 1, 3).reshape(rows.shape)
