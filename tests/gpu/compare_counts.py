"""Compares what the lab counts with what Nsight Compute counted on a GPU.

Usage: compare_counts.py COUNTS.jsonl [TABLE.jsonl]

COUNTS.jsonl is what counts.sh wrote, for the kernels of this source. Builds them for the CPU
backend, prints the table, writes it to TABLE.jsonl (plots/results/h200_counts.jsonl unless named),
and exits with 1 if any count differs beyond its rule.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from functools import lru_cache
from pathlib import Path

from tests.gpu.known_differences import KNOWN, Shape

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "plots/results/h200_counts.jsonl"
PROGRAMS = ROOT / "build/cpu/counts"

# What only a GPU counts: instructions of the machine code that the source has not, or that no lane
# takes part in.
GPU_ALONE = ("thread_index_reads", "block_barriers", "empty_shared_loads", "global_loads",
             "global_stores")
PASSING = "what passes through the load/store unit without an access"

# All shared-memory wavefronts and conflicts as the hardware counted them: a few more, different
# from run to run, where warps meet. What it counts as conflicts are wavefronts, so they have the
# same room. All else is exact.
INEXACT = {"shared_wavefronts", "measured_conflicts"}


def build() -> None:
    """Makes the programs of the CPU backend that print the lab's counts."""
    subprocess.run(["make", "-s", "-C", ROOT, "BACKEND=cpu", "lab-counts"], check=True)


def run_lab(step: str, options: str) -> dict[str, dict]:
    """The lab's totals of each kernel."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "counts.jsonl"
        report = [] if step == "copies" else ["--report=traffic,banks"]  # copies.cu always counts
        subprocess.run([PROGRAMS / step, *options.split(), *report], check=True,
                       stdout=subprocess.DEVNULL, env={**os.environ, "LAB_COUNTS": str(path)})
        rows = map(json.loads, path.read_text().splitlines())
        return {row["kernel"].split("<")[0]: row for row in rows if row["file"] == ""}


def lab_counts(row: dict) -> Counter:
    """The lab's counts under the names that read_ncu.py gives those of the GPU."""
    loads, stores = row["shared_load_wavefronts"], row["shared_store_wavefronts"]
    return Counter({
        "mma": row["mma"],
        "ldmatrix": row["ldmatrix_requests"],
        "copies": row["copy_shared_requests"],
        "shuffles": row["shuffles"],
        "barriers": row["barriers"],
        "global_load_requests": row["global_load_requests"] + row["copy_global_requests"],
        "global_store_requests": row["global_store_requests"],
        "global_load_sectors": row["global_load_sectors"],
        "global_store_sectors": row["global_store_sectors"],
        "copy_sectors": row["copy_global_sectors"],
        "l1_load_sectors": row["global_load_sectors"] + row["copy_lookups"],
        "shared_load_requests": row["shared_load_requests"],
        "shared_store_requests": row["shared_store_requests"],
        "shared_load_wavefronts": loads + row["ldmatrix_wavefronts"],
        "shared_store_wavefronts": stores,
        "shared_conflicts": sum(row[f"{kind}_wavefronts"] - row[f"{kind}_ideal_wavefronts"]
                                for kind in ("shared_load", "shared_store", "ldmatrix")),
        "copy_requests": row["copy_global_requests"],
        "copy_wavefronts": row["copy_shared_wavefronts"],
        "copy_conflicts": (row["copy_shared_wavefronts"]
                           - row["copy_shared_ideal_wavefronts"]),
    })


@lru_cache(maxsize=None)
def expected_counts(step: str, options: str) -> dict[str, tuple[Counter, Counter]]:
    """By kernel, the lab's counts, and how many more are known to be on the GPU."""
    result = {}
    for kernel, row in run_lab(step, options).items():
        lab = lab_counts(row)
        known = KNOWN.get((step, kernel))
        more = known.amount(lab, Shape.of(options)) if known else Counter()
        result[kernel] = lab, more
    return result


def passing(counted: dict[str, dict], copy_requests: int) -> int:
    """Wavefronts of shared memory that move nothing: one for each read of threadIdx, for each
    barrier of a block, and for each memory instruction that is left to no lane."""
    ncu = {count: row["ncu"] for count, row in counted.items()}
    waves = sum(ncu.get(count, 0) for count in GPU_ALONE)
    if "global_loads" in ncu:
        waves -= ncu["global_load_requests"] - copy_requests + ncu["global_store_requests"]
    return waves


def compare(counted: dict[str, dict]) -> list[dict]:
    """The table of one kernel at one shape; `counted` are the rows of read_ncu.py by count."""
    any_row = next(iter(counted.values()))
    step, kernel = any_row["step"], any_row["kernel"]
    lab, more = expected_counts(step, any_row["options"])[kernel]
    lab, more = lab.copy(), more.copy()
    reasons = {count: KNOWN[step, kernel].reason for count, amount in more.items() if amount}
    # The hardware's total holds what else passes through.
    extra = passing(counted, lab["copy_requests"])
    lab["shared_wavefronts"] = (lab["shared_load_wavefronts"] + lab["shared_store_wavefronts"]
                                + lab["copy_wavefronts"] + lab["shuffles"])
    more["shared_wavefronts"] = more["shared_load_wavefronts"] + extra
    reasons["shared_wavefronts"] = "; ".join(
        [*([reasons["shared_load_wavefronts"]] if more["shared_load_wavefronts"] else []),
         *([PASSING] if extra else [])])
    lab["measured_conflicts"] = lab["shared_conflicts"] + lab["copy_conflicts"]
    more["measured_conflicts"] = more["shared_conflicts"]
    for count in GPU_ALONE:
        more[count] = counted[count]["ncu"] if count in counted else 0
        reasons[count] = PASSING
    room = counted["shared_wavefronts"]["ncu"] // 100 + 100
    table = []
    for count, row in counted.items():
        allowed = room if count in INEXACT else 0
        difference = row["ncu"] - lab[count] - more[count]
        table.append({"step": step, "options": row["options"], "kernel": kernel, "count": count,
                      "ncu": row["ncu"], "lab": lab[count], "known": more[count],
                      "reason": reasons.get(count, "") if more[count] else "",
                      "allowed": allowed, "agrees": abs(difference) <= allowed,
                      "commit": row["commit"]})
    return table


def grouped(rows: list[dict]) -> list[dict[str, dict]]:
    """The rows of each kernel at each shape, by count."""
    groups: dict[tuple, dict[str, dict]] = {}
    for row in rows:
        key = row["step"], row["options"], row["kernel"]
        groups.setdefault(key, {})[row["count"]] = row
    return list(groups.values())


def print_table(table: list[dict]) -> None:
    """What is not 0, under a heading for each kernel and shape."""
    heading = None
    for row in table:
        if (row["step"], row["options"], row["kernel"]) != heading:
            heading = row["step"], row["options"], row["kernel"]
            print(f"\n{' '.join(heading)}")
            print(f"  {'count':<24}{'lab':>10}{'known':>9}{'ncu':>10}  differs")
        if row["ncu"] == row["lab"] == 0:
            continue
        off = row["ncu"] - row["lab"] - row["known"]
        verdict = "" if row["agrees"] else "  WRONG"
        print(f"  {row['count']:<24}{row['lab']:>10}{row['known']:>9}{row['ncu']:>10}  {off}"
              f"{verdict}  {row['reason']}".rstrip())


def main() -> int:
    if len(sys.argv) not in (2, 3):
        print("usage: compare_counts.py COUNTS.jsonl [TABLE.jsonl]", file=sys.stderr)
        return 2
    rows = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    out = Path(sys.argv[2]) if len(sys.argv) == 3 else TABLE
    build()
    table = [line for counted in grouped(rows) for line in compare(counted)]
    print_table(table)
    out.write_text("".join(json.dumps(line) + "\n" for line in table))
    wrong = sum(not line["agrees"] for line in table)
    compared = sum(line["count"] not in GPU_ALONE for line in table)
    print(f"\n{compared} counts compared, {wrong} differ beyond the rule; table in {out}")
    return 1 if wrong or not table else 0


if __name__ == "__main__":
    sys.exit(main())
