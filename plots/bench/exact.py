"""Checks some rows of a result against the exact answer, in NumPy and double precision on the host.
The rule of docs/correctness.md holds for steps and baselines, with e4m3 that for single rows."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np

from plots.bench.cases import Case
from tests.lib.reference import P_FACTOR, UNIT, round_to

HEADS, EDGES, OTHERS = 4, 32, 32
TILE = 64  # the tiles of all steps and baselines are multiples of this
LSE_ABSOLUTE, LSE_RELATIVE = 1e-4, 1e-5

# The result of one head: O [N, D], and LSE [N] or None.
HeadResult = tuple[np.ndarray, np.ndarray | None]


def _norms(x: np.ndarray) -> np.ndarray:
    return np.linalg.norm(x, axis=-1)


def sampled_rows(case: Case) -> list[tuple[int, int, np.ndarray]]:
    """(batch, head, queries) for the first, the last and other heads. Queries are the first, the
    last, and random ones, half of them at edges of tiles."""
    generator = np.random.default_rng(1)
    heads = np.linspace(0, case.batch * case.heads - 1, HEADS).astype(int)
    found = []
    for head in sorted(set(heads.tolist())):
        edges = TILE * generator.integers(0, -(-case.seqlen // TILE), EDGES)
        edges -= generator.integers(0, 2, EDGES)  # the first row of a tile, or the last of one
        others = generator.integers(0, case.seqlen, OTHERS)
        queries = np.unique(np.concatenate([edges, others, [0, case.seqlen - 1]]) % case.seqlen)
        found.append((head // case.heads, head % case.heads, queries))
    return found


def exact_rows(case: Case, attended: np.ndarray, where: tuple[int, int, np.ndarray],
               q: np.ndarray, k: np.ndarray, v: np.ndarray) -> SimpleNamespace:
    """Exact rows of one head. `q` [rows, D] has the rows, `k` and `v` [N, D] all keys, in doubles;
    `attended` is [rows, N]. `base_errors` are the errors of the reference that rounds as tensor
    cores do, `own_limits` the largest rounding errors by a row's own numbers; both are absolute."""
    scale = float(np.float32(case.head_dim**-0.5))  # fp32, as in the kernels
    scores = np.where(attended, scale * (q @ k.T), -np.inf)
    row_max = scores.max(axis=-1, keepdims=True)
    row_max[row_max == -np.inf] = 0
    probs = np.exp(scores - row_max)
    total = probs.sum(axis=-1, keepdims=True)
    divisor = np.where(total > 0, total, 1)  # O is 0 where nothing is attended
    o = probs @ v / divisor
    factor = P_FACTOR[case.dtype]
    base = round_to(case.o_dtype(), round_to(case.dtype, factor * probs) / factor @ v / divisor)
    norms, base_errors = _norms(o), _norms(base - o)
    rounded = (UNIT[case.o_dtype()] * norms
               + UNIT[case.dtype] * _norms(probs @ np.abs(v) / divisor))
    # With e4m3: how inexact tensor cores make the scores, and so LSE.
    room = 2.0**-13 * (scale * _norms(q) * _norms(k).max()
                       + case.head_dim / 8 * np.abs(row_max[:, 0])) * (case.dtype == "e4m3")
    with np.errstate(divide="ignore"):
        lse = (row_max + np.log(total))[:, 0]
    batch, head, queries = where
    return SimpleNamespace(batch=batch, head=head, queries=queries, o=o, lse=lse, norms=norms,
                           base_errors=base_errors, own_limits=np.maximum(rounded, base_errors),
                           lse_room=room)


class Exact:
    """The exact rows of one case. `heads_of(batch, head)` returns Q, K and V of a head as doubles;
    `attended(queries)` the keys that each query attends, as bool [queries, N]."""

    def __init__(self, case: Case, heads_of: Callable[[int, int], tuple[np.ndarray, ...]],
                 attended: Callable[[np.ndarray], np.ndarray]) -> None:
        self.case, self.heads = case, []
        for batch, head, queries in sampled_rows(case):
            q, k, v = heads_of(batch, head)
            self.heads.append(exact_rows(case, attended(queries), (batch, head, queries),
                                         q[queries], k, v))
        least = 2.0**-6 if case.dtype == "e4m3" else UNIT[case.dtype]
        shares = np.concatenate([x.base_errors[x.norms > 0] / x.norms[x.norms > 0]
                                 for x in self.heads])
        self.allowed = 2 * max(least, shares.max(initial=0))

    def judge(self, result_of: Callable[[int, int], HeadResult]) -> dict:
        """Returns fields of a record, named as by the programs, for the results of
        `result_of(batch, head)`. A number is None if it is not finite or needs a missing LSE."""
        errors, shares, lse_errors, right = [], [], [], True
        for x in self.heads:
            o, lse = result_of(x.batch, x.head)
            right &= bool(np.isfinite(o).all())
            distance, some = _norms(o[x.queries] - x.o), x.norms > 0
            right &= not distance[~some].any()
            errors.append(distance[some] / x.norms[some])
            shares.append(distance[some] / np.minimum(self.allowed * x.norms,
                                                      2 * x.own_limits)[some])
            if lse is not None:
                found, exact = lse[x.queries][some], x.lse[some]
                lse_errors.append(np.abs(found - exact)
                                  / (LSE_ABSOLUTE + LSE_RELATIVE * np.abs(exact)
                                     + x.lse_room[some]))
                right &= bool((lse[x.queries][~some] == -np.inf).all())
        error, share = np.concatenate(errors), float(np.concatenate(shares).max(initial=0))
        lse_error = float(np.concatenate(lse_errors).max(initial=0)) if lse_errors else None
        # Comparisons with NaN are false.
        right = right and share <= 1 and (lse_error is None or lse_error <= 1)
        numbers = {"max_error": float(error.max(initial=0)), "allowed_error": float(self.allowed),
                   "max_error_share": share, "max_lse_error": lse_error}
        return {"right": right, "rows_checked": sum(len(x.queries) for x in self.heads),
                **{name: x if x is not None and np.isfinite(x) else None
                   for name, x in numbers.items()}}
