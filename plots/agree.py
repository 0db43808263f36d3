"""How far two sweeps differ: the median of the ratios of their times, and the worst shapes.

Usage: agree.py A.jsonl B.jsonl

Exits with 1 if the median is more than 3 % off, with 2 if they share less than half of the
problems that the smaller one has.
"""

import json
import math
import sys
from pathlib import Path
from statistics import median, quantiles

from sweep_grid import case_in_words, identity_of

ALLOWED = 0.03
WORST = 5


def times_of(path: Path) -> dict[tuple, float]:
    """Median milliseconds of every timed row; ValueError, KeyError or TypeError if it has none."""
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    times = {identity_of(row): row["median_ms"] for row in rows if row.get("samples")}
    if not all(0 < milliseconds < math.inf for milliseconds in times.values()):
        raise ValueError
    return times


def compare(a: dict[tuple, float], b: dict[tuple, float]) -> tuple[str, bool]:
    """A report of some lines, and whether they agree. They must share two problems at least."""
    ratios = {identity: b[identity] / a[identity] for identity in a if identity in b}
    middle = median(ratios.values())
    tenths = quantiles(ratios.values(), n=10, method="inclusive")
    agree = abs(middle - 1) <= ALLOWED
    lines = [f"{len(ratios)} problems in both, {len(a) - len(ratios)} only in the first, "
             f"{len(b) - len(ratios)} only in the second",
             f"time of the second over that of the first: median {middle:.4f}, "
             f"p10 {tenths[0]:.4f}, p90 {tenths[-1]:.4f}",
             f"{'agree' if agree else 'DISAGREE'}: the median may be off by {ALLOWED:.0%}",
             "the farthest from 1:"]
    farthest = sorted(ratios, key=lambda identity: -abs(ratios[identity] - 1))[:WORST]
    lines += [f"  {ratios[identity]:.4f}  {case_in_words(identity)}" for identity in farthest]
    return "\n".join(lines), agree


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    times = []
    for path in map(Path, sys.argv[1:]):
        try:
            times.append(times_of(path))
        except OSError as error:
            print(f"agree: {path}: {error.strerror}", file=sys.stderr)
            return 2
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            print(f"agree: {path}: must hold the JSON rows of a sweep", file=sys.stderr)
            return 2
    shared, fewer = len(times[0].keys() & times[1].keys()), min(map(len, times))
    if shared < 2 or 2 * shared < fewer:
        print(f"agree: {' and '.join(sys.argv[1:])} share {shared} timed problems of {fewer}, "
              "must share half of them, and two at least", file=sys.stderr)
        return 2
    report, agree = compare(*times)
    print(report)
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
