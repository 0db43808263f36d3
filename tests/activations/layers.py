"""The parts that both models share, in double precision.

Double-precision results differ between machines in the order of a sum or the last bit of an
exponential. These differences are about 2^40 times smaller than the precision of the half-precision
numbers that are written, so they almost never change them.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Activations:
    """Inputs and results of the attention of one layer.

    Shapes are [H, N, D], with the number of query heads for q and o and of key/value heads for k
    and v; lse is [H, N]. q, k and v are in half precision, as the model used them; o and lse are
    doubles.
    """

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    o: np.ndarray
    lse: np.ndarray


def split_heads(x: np.ndarray, heads: int) -> np.ndarray:
    """[N, H * D] as [H, N, D]."""
    return x.reshape(len(x), heads, -1).transpose(1, 0, 2)


def join_heads(x: np.ndarray) -> np.ndarray:
    """[H, N, D] as [N, H * D]."""
    return x.transpose(1, 0, 2).reshape(x.shape[1], -1)


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, attended: np.ndarray, kv_heads_of: np.ndarray) -> Activations:
    """Attention on q, k and v rounded to half precision, as a GPU holds them.

    `attended` is [N, N], bool; query head h reads key/value head kv_heads_of[h].
    """
    q16, k16, v16 = (np.ascontiguousarray(x, np.float16) for x in (q, k, v))
    o = np.empty(q.shape)
    lse = np.empty(q.shape[:2])
    for head, kv_head in enumerate(kv_heads_of):
        queries, keys, values = (x.astype(np.float64) for x in (q16[head], k16[kv_head], v16[kv_head]))
        scores = np.where(attended, queries @ keys.T / np.sqrt(q.shape[-1]), -np.inf)
        row_max = scores.max(axis=-1, keepdims=True)
        probs = np.exp(scores - row_max)
        total = probs.sum(axis=-1, keepdims=True)
        o[head] = probs @ values / total
        lse[head] = (row_max + np.log(total))[:, 0]
    return Activations(q16, k16, v16, o, lse)
