"""Compares the lab's counts with those of Nsight Compute on a GPU.

Usage: compare_counts.py COUNTS.jsonl [TABLE.jsonl]

COUNTS.jsonl is the output of counts.sh for the kernels of this source. Builds them for the CPU
backend, prints the table, writes it to TABLE.jsonl (default plots/results/h200_counts.jsonl), and
exits with 1 if a count differs by more than its tolerance.
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
from tests.lib.steps import settings

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "plots/results/h200_counts.jsonl"
PROGRAMS = ROOT / "build/cpu/counts"

# Counted on a GPU only: instructions that are in the machine code but not in the source, or that no
# lane executes.
GPU_ALONE = ("thread_index_reads", "block_barriers", "empty_shared_loads", "empty_copies",
             "global_loads", "global_stores")
PASSING = "what passes through the load/store unit without an access"

# All shared-memory wavefronts and conflicts as the hardware counted them: arbitration between warps
# adds a few, which differ from run to run. The hardware's conflicts are wavefronts, so they have
# the same tolerance.
#
# Nsight Compute gives some sectors of cp.async to an instruction that no lane executes, a different
# number in each run. What the L1 cache counted must then be exact instead: it holds these sectors.
# All other counts are exact.
INEXACT = {"shared_wavefronts", "measured_conflicts"}

# Of steps whose tables say [counts] units_alone, these are compared.
UNITS_ALONE = ("wgmma", "wgmma_wavefronts", "wgmma_conflicts", "tensor_loads", "tensor_stores",
               "tensor_load_sectors", "tensor_store_sectors")


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
        records = map(json.loads, path.read_text().splitlines())
        return {record["kernel"].split("<")[0]: record
                for record in records if record["file"] == ""}


def lab_counts(record: dict) -> Counter:
    """The lab's counts under the names that read_ncu.py gives to the GPU's."""
    loads, stores = record["shared_load_wavefronts"], record["shared_store_wavefronts"]
    return Counter({
        "mma": record["mma"],
        "ldmatrix": record["ldmatrix_requests"],
        "copies": record["copy_shared_requests"],
        "shuffles": record["shuffles"],
        "barriers": record["barriers"],
        "global_load_requests": record["global_load_requests"] + record["copy_global_requests"],
        "global_store_requests": record["global_store_requests"],
        "global_load_sectors": record["global_load_sectors"],
        "global_store_sectors": record["global_store_sectors"],
        "copy_sectors": record["copy_global_sectors"],
        "l1_load_sectors": record["global_load_sectors"] + record["copy_lookups"],
        "shared_load_requests": record["shared_load_requests"],
        "shared_store_requests": record["shared_store_requests"],
        "shared_load_wavefronts": loads + record["ldmatrix_wavefronts"],
        "shared_store_wavefronts": stores,
        "shared_conflicts": sum(record[f"{kind}_wavefronts"] - record[f"{kind}_ideal_wavefronts"]
                                for kind in ("shared_load", "shared_store", "ldmatrix")),
        "wgmma": 4 * record["wgmma"],  # by warps
        "tensor_loads": record["tensor_load_requests"],
        "tensor_stores": record["tensor_store_requests"],
        "tensor_load_sectors": record["tensor_load_sectors"],
        "tensor_store_sectors": record["tensor_store_sectors"],
        "wgmma_wavefronts": record["wgmma_read_wavefronts"],
        "wgmma_conflicts": (record["wgmma_read_wavefronts"]
                            - record["wgmma_read_ideal_wavefronts"]),
        "copy_requests": record["copy_global_requests"],
        "copy_wavefronts": record["copy_shared_wavefronts"],
        "copy_conflicts": (record["copy_shared_wavefronts"]
                           - record["copy_shared_ideal_wavefronts"]),
    })


@lru_cache(maxsize=None)
def expected_counts(step: str, options: str) -> dict[str, tuple[Counter, Counter]]:
    """By kernel, the lab's counts, and the known additional counts of the GPU."""
    result = {}
    for kernel, record in run_lab(step, options).items():
        lab = lab_counts(record)
        known = KNOWN.get((step, kernel))
        more = known.amount(lab, Shape.of(options)) if known else Counter()
        result[kernel] = lab, more
    return result


def passing(counted: dict[str, dict], copy_requests: int) -> int:
    """Wavefronts of shared memory that transfer nothing: one for each read of threadIdx, each
    barrier of a block, and each memory instruction without active lanes."""
    ncu = {count: record["ncu"] for count, record in counted.items()}
    waves = sum(ncu.get(count, 0) for count in GPU_ALONE)
    if "global_loads" in ncu:
        waves -= ncu["global_load_requests"] - copy_requests + ncu["global_store_requests"]
    return waves


def compare(counted: dict[str, dict]) -> list[dict]:
    """The table of one kernel at one shape; `counted` maps counts to records of read_ncu.py."""
    any_record = next(iter(counted.values()))
    step, kernel = any_record["step"], any_record["kernel"]
    if settings(step, "counts").get("units_alone"):
        counted = {count: counted[count] for count in UNITS_ALONE if count in counted}
    lab, more = expected_counts(step, any_record["options"])[kernel]
    lab, more = lab.copy(), more.copy()
    reasons = {count: KNOWN[step, kernel].reason for count, amount in more.items() if amount}
    # The hardware's total includes those that transfer nothing.
    extra = passing(counted, lab["copy_requests"])
    lab["shared_wavefronts"] = (lab["shared_load_wavefronts"] + lab["shared_store_wavefronts"]
                                + lab["copy_wavefronts"] + lab["wgmma_wavefronts"]
                                + lab["shuffles"])
    more["shared_wavefronts"] = (more["shared_load_wavefronts"] + more["shared_store_wavefronts"]
                                 + more["shuffles"] + extra)
    reasons["shared_wavefronts"] = "; ".join(
        [*([reasons["shared_load_wavefronts"]] if more["shared_load_wavefronts"] else []),
         *([PASSING] if extra else [])])
    lab["measured_conflicts"] = lab["shared_conflicts"] + lab["copy_conflicts"]
    more["measured_conflicts"] = more["shared_conflicts"]
    for count in GPU_ALONE:
        more[count] = counted[count]["ncu"] if count in counted else 0
        reasons[count] = PASSING
    rooms = {count: counted["shared_wavefronts"]["ncu"] // 100 + 100
             for count in INEXACT & counted.keys()}
    l1_load_sectors = lab["l1_load_sectors"] + more["l1_load_sectors"]
    if counted.get("l1_load_sectors", {}).get("ncu") == l1_load_sectors:
        rooms["copy_sectors"] = 2 * more["empty_copies"]
    table = []
    for count, record in counted.items():
        allowed = rooms.get(count, 0)
        difference = record["ncu"] - lab[count] - more[count]
        table.append({"step": step, "options": record["options"], "kernel": kernel, "count": count,
                      "ncu": record["ncu"], "lab": lab[count], "known": more[count],
                      "reason": reasons.get(count, "") if more[count] else "",
                      "allowed": allowed, "agrees": abs(difference) <= allowed,
                      "commit": record["commit"]})
    return table


def grouped(records: list[dict]) -> list[dict[str, dict]]:
    """The records of each kernel at each shape, by count."""
    groups: dict[tuple, dict[str, dict]] = {}
    for record in records:
        key = record["step"], record["options"], record["kernel"]
        groups.setdefault(key, {})[record["count"]] = record
    return list(groups.values())


def print_table(table: list[dict]) -> None:
    """Prints the counts that are not 0, with a heading for each kernel and shape."""
    heading = None
    for record in table:
        if (record["step"], record["options"], record["kernel"]) != heading:
            heading = record["step"], record["options"], record["kernel"]
            print(f"\n{' '.join(heading)}")
            print(f"  {'count':<24}{'lab':>10}{'known':>9}{'ncu':>10}  differs")
        if record["ncu"] == record["lab"] == 0:
            continue
        off = record["ncu"] - record["lab"] - record["known"]
        verdict = "" if record["agrees"] else "  WRONG"
        print(f"  {record['count']:<24}{record['lab']:>10}{record['known']:>9}"
              f"{record['ncu']:>10}  {off}{verdict}  {record['reason']}".rstrip())


def main() -> int:
    if len(sys.argv) not in (2, 3):
        print("usage: compare_counts.py COUNTS.jsonl [TABLE.jsonl]", file=sys.stderr)
        return 2
    records = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    out = Path(sys.argv[2]) if len(sys.argv) == 3 else TABLE
    build()
    table = [line for counted in grouped(records) for line in compare(counted)]
    print_table(table)
    out.write_text("".join(json.dumps(line) + "\n" for line in table))
    wrong = sum(not line["agrees"] for line in table)
    compared = sum(line["count"] not in GPU_ALONE for line in table)
    print(f"\n{compared} counts compared, {wrong} differ beyond the rule; table in {out}")
    return 1 if wrong or not table else 0


if __name__ == "__main__":
    sys.exit(main())
