"""Combinations that cover every pair of values: most bugs need at most two particular values."""

import random
from itertools import combinations


def pairs_of(row: dict) -> set:
    """The pairs of (parameter, value) that a row covers."""
    return set(combinations(row.items(), 2))


def all_pairs(parameters: dict[str, list]) -> set:
    """All pairs of values of different parameters."""
    return {((a, x), (b, y)) for a, b in combinations(parameters, 2) for x in parameters[a] for y in parameters[b]}


def _grow(parameters: dict[str, list], missing: set, start: tuple, rng: random.Random) -> dict:
    """A row with the pair `start`; each further value is chosen to cover the most missing pairs."""
    row = dict(start)
    others = [name for name in parameters if name not in row]
    rng.shuffle(others)
    order = {name: i for i, name in enumerate(parameters)}
    for name in others:

        def gain(value, name=name) -> int:
            new = (name, value)
            return sum(
                (pair if order[pair[0][0]] < order[pair[1][0]] else pair[::-1]) in missing
                for pair in ((old, new) for old in row.items())
            )

        values = rng.sample(parameters[name], len(parameters[name]))
        row[name] = max(values, key=gain)
    return {name: row[name] for name in parameters}


def pairwise(parameters: dict[str, list], seed: int, candidates: int = 5) -> list[dict]:
    """Rows that cover every pair, determined by the seed. Greedy, so not the fewest."""
    rng = random.Random(seed)
    missing = all_pairs(parameters)
    rows = []
    while missing:
        # A missing pair starts the row, so every row covers at least one more.
        starts = rng.sample(sorted(missing, key=repr), min(candidates, len(missing)))
        grown = [_grow(parameters, missing, start, rng) for start in starts]
        rows.append(max(grown, key=lambda row: len(pairs_of(row) & missing)))
        missing -= pairs_of(rows[-1])
    return rows
