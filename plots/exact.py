"""The exact answer in some rows, and whether a contestant's is right there.

In NumPy and double precision on the host, so that it is no contestant's. The rule is that of
docs/correctness.md, for steps and peers alike; O is searched for NaN and infinities in all rows.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from compare_tasks import Rule, Task

sys.path.append(str(Path(__file__).resolve().parents[1]))
from tests.lib.reference import FORMATS, round_to  # noqa: E402

HEADS, EDGES, OTHERS = 4, 32, 32
TILE = 64  # the tiles of all contestants are this or a multiple of it
LSE_ABSOLUTE, LSE_RELATIVE = 1e-4, 1e-5


@dataclass(frozen=True)
class HeadRows:
    """Some rows of one head; all arrays begin with [rows]."""

    batch: int
    head: int
    queries: np.ndarray
    o: np.ndarray
    lse: np.ndarray
    norms: np.ndarray  # of o
    base_errors: np.ndarray  # of the result with the roundings of tensor cores, absolute
    own_limits: np.ndarray  # what rounding can do to the row by its own numbers


@dataclass(frozen=True)
class Verdict:
    """As the programs' rows tell it; max_lse_error is None where there is no LSE."""

    right: bool
    rows_checked: int
    max_error: float
    mean_error: float
    allowed_error: float
    max_error_share: float
    max_lse_error: float | None


def _norms(x: np.ndarray) -> np.ndarray:
    return np.linalg.norm(x, axis=-1)


def sampled_rows(task: Task) -> list[tuple[int, int, np.ndarray]]:
    """(batch, head, queries): of the first, the last and other heads the first and the last row,
    edges of tiles, and others."""
    shape, generator = task.shape(), np.random.default_rng(1)
    heads = np.linspace(0, shape.batch * shape.heads - 1, HEADS).astype(int)
    found = []
    for head in sorted(set(heads.tolist())):
        edges = TILE * generator.integers(1, shape.seqlen // TILE, EDGES)
        edges -= generator.integers(0, 2, EDGES)  # the first row of a tile, or the last of one
        others = generator.integers(0, shape.seqlen, OTHERS)
        queries = np.unique(np.concatenate([edges, others, [0, shape.seqlen - 1]]))
        found.append((head // shape.heads, head % shape.heads, queries))
    return found


def exact_rows(task: Task, batch: int, head: int, queries: np.ndarray, q: np.ndarray,
               k: np.ndarray, v: np.ndarray) -> HeadRows:
    """`q` [rows, D] holds the rows asked for, `k` and `v` [N, D] all keys of the head; doubles."""
    scale = float(np.float32(task.shape().scale()))  # as the kernels have it
    attended = _attended(task.rule(), queries, len(k))
    scores = np.where(attended, scale * (q @ k.T), -np.inf)
    row_max = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - row_max)
    total = weights.sum(axis=-1, keepdims=True)
    o = weights @ v / total
    base = round_to(task.dtype, round_to(task.dtype, weights) @ v / total)
    unit = 2.0 ** -(FORMATS[task.dtype][0] + 1)
    norms, base_errors = _norms(o), _norms(base - o)
    rounded = unit * (norms + _norms(weights @ np.abs(v) / total))
    return HeadRows(batch, head, queries, o, (row_max + np.log(total))[:, 0], norms, base_errors,
                    np.maximum(rounded, base_errors))


def _attended(rule: Rule, queries: np.ndarray, keys: int) -> np.ndarray:
    return rule(0, 0, queries[:, None], np.arange(keys)[None])


class Exact:
    """What is right for one task. `rows_of(name, batch, head, queries)` gives rows of "q", "k" or
    "v" as doubles; queries None: all."""

    def __init__(self, task: Task, rows_of: Callable[..., np.ndarray]) -> None:
        self.heads = [
            exact_rows(task, batch, head, queries, rows_of("q", batch, head, queries),
                       rows_of("k", batch, head, None), rows_of("v", batch, head, None))
            for batch, head, queries in sampled_rows(task)]
        unit = 2.0 ** -(FORMATS[task.dtype][0] + 1)
        self.allowed = 2 * max(unit, *((x.base_errors / x.norms).max() for x in self.heads))

    def judge(self, o_of: Callable[..., np.ndarray], lse_of: Callable[..., np.ndarray] | None,
              all_finite: bool) -> Verdict:
        """`o_of(batch, head, queries)`, and `lse_of` likewise, give what a contestant computed."""
        errors, shares, lse_errors = [], [], []
        for x in self.heads:
            distance = _norms(o_of(x.batch, x.head, x.queries) - x.o)
            errors.append(distance / x.norms)
            shares.append(distance / np.minimum(self.allowed * x.norms, 2 * x.own_limits))
            if lse_of is not None:
                lse_allowed = LSE_ABSOLUTE + LSE_RELATIVE * np.abs(x.lse)
                found = lse_of(x.batch, x.head, x.queries)
                lse_errors.append(np.abs(found - x.lse) / lse_allowed)
        error, share = np.concatenate(errors), float(np.max(np.concatenate(shares)))
        lse_error = float(np.max(np.concatenate(lse_errors))) if lse_errors else None
        # Comparisons with NaN are false.
        right = all_finite and share <= 1 and (lse_error is None or lse_error <= 1)
        return Verdict(right, len(error), float(error.max()), float(error.mean()), self.allowed,
                       share, lse_error)
