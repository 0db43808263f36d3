"""Checks some rows of a result against the exact answer, in NumPy and double precision on the host.
The rule of docs/correctness.md holds for steps and baselines, with e4m3 that for single rows."""

from collections.abc import Callable

import numpy as np

from plots.bench.cases import Case
from tests.lib.problem import Problem
from tests.lib.reference import attention

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


class Exact:
    """The exact rows of one case. `heads_of(batch, head)` returns Q, K and V of a head as doubles;
    `attended(queries)` the keys that each query attends, as bool [queries, N]."""

    def __init__(
        self,
        case: Case,
        heads_of: Callable[[int, int], tuple[np.ndarray, ...]],
        attended: Callable[[np.ndarray], np.ndarray],
    ) -> None:
        self.heads = []
        for batch, head, queries in sampled_rows(case):
            q, k, v = (x[None, None] for x in heads_of(batch, head))
            p = Problem(seqlen=len(queries), seqlen_kv=case.seqlen, head_dim=case.head_dim, dtype=case.dtype)
            answer = attention(p, q[:, :, queries], k, v, attended(queries))
            self.heads.append((batch, head, queries, answer))
        self.allowed = 2 * max(answer.rounding_error for *_, answer in self.heads)

    def judge(self, result_of: Callable[[int, int], HeadResult]) -> dict:
        """Returns fields of a record, named as by the programs, for the results of
        `result_of(batch, head)`. A number is None if it is not finite or needs a missing LSE."""
        errors, shares, lse_errors, right = [], [], [], True
        for batch, head, queries, answer in self.heads:
            o, lse = result_of(batch, head)
            right &= bool(np.isfinite(o).all())
            distance, norms = _norms(o[queries] - answer.o[0, 0]), _norms(answer.o[0, 0])
            some = norms > 0
            right &= not distance[~some].any()
            errors.append(distance[some] / norms[some])
            own = np.maximum(answer.most[0, 0], _norms(answer.base[0, 0] - answer.o[0, 0]))
            shares.append(distance[some] / np.minimum(self.allowed * norms, 2 * own)[some])
            if lse is not None:
                found, exact = lse[queries][some], answer.lse[0, 0][some]
                room = LSE_ABSOLUTE + LSE_RELATIVE * np.abs(exact)
                if answer.score_size is not None:  # with e4m3 tensor cores make scores inexact
                    room += 2.0**-13 * answer.score_size[0, 0][some]
                lse_errors.append(np.abs(found - exact) / room)
                right &= bool((lse[queries][~some] == -np.inf).all())
        error, share = np.concatenate(errors), float(np.concatenate(shares).max(initial=0))
        lse_error = float(np.concatenate(lse_errors).max(initial=0)) if lse_errors else None
        # Comparisons with NaN are false.
        right = right and share <= 1 and (lse_error is None or lse_error <= 1)
        numbers = {
            "max_error": float(error.max(initial=0)),
            "allowed_error": float(self.allowed),
            "max_error_share": share,
            "max_lse_error": lse_error,
        }
        return {
            "right": right,
            "rows_checked": sum(len(queries) for _, _, queries, _ in self.heads),
            **{name: x if x is not None and np.isfinite(x) else None for name, x in numbers.items()},
        }
