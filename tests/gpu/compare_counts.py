"""Compares the lab's counts with those of Nsight Compute on a GPU.

Usage: compare_counts.py COUNTS.jsonl [TABLE.jsonl]

COUNTS.jsonl is the output of counts.sh for the kernels of this source. Builds them for the CPU
backend, prints the table, writes it to TABLE.jsonl (default plots/results/h200_counts.jsonl), and
exits with 1 if a count is outside of its bounds.

Almost all counts must be equal, and the bounds are then the lab's count. Others, with the reason:

- nvcc merges up to four loads or stores of 4 bytes into one of 16, or leaves out those whose value
  no lane needs: a GPU may execute a quarter of the lab's. It may split a store in two, unroll a
  loop so that lanes are at different places of it, or load without a condition what the source
  loads under one: up to twice as many. These still access neighbouring bytes, so the sectors of a
  request remain within 3/4; and each load more or fewer has at most one conflict.
- The hardware counters for all wavefronts of shared memory and all conflicts include arbitration
  between warps, which differs from run to run. Where reductions and TMA use the banks beside the
  loads, it is up to 6 % of the wavefronts. The hardware counts it in both, so the wavefronts are
  compared after what the conflicts have too many is added to the lab's: 1 % and 100 more or fewer.
- Nsight Compute gives some sectors of cp.async to an instruction that no lane executes, or to none,
  a different number in each run: up to 2 %. What the L1 cache counted holds these sectors.
- It says how many lanes copied, not how many warps. Where a part of a warp copies, a fraction of it
  is missing in the copies and is among those that no lane executes.
- Loads that wait for another block are as many as the wait takes, so what holds them is left out.
- The source loads a record of 16 words, and nvcc only those that a block needs: a block without work
  needs one of them. In steps with such records, what holds loads from global memory is kept for the
  sum of wavefronts, but not compared.

A count that was equal when the table was written must remain so: its bounds are in the table.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from functools import cache
from math import ceil, floor
from pathlib import Path

from tests.lib.steps import inherited

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "plots/results/h200_counts.jsonl"
PROGRAMS = ROOT / "build/cpu/counts"

# Counted on a GPU only: instructions that are in the machine code but not in the source, or that no
# lane executes.
GPU_ALONE = (
    "thread_index_reads",
    "block_barriers",
    "empty_shared_loads",
    "empty_copies",
    "empty_local_accesses",
    "fences",
    "generic_loads",
    "global_loads",
    "global_stores",
)
# These differ from run to run, even if they were equal in one.
VARYING = ("shared_wavefronts", "measured_conflicts", "copy_sectors")

# Of steps whose tables, or those of steps that they build on, say [counts] loads_records or waits_for_blocks, these
# are not compared; the second have no number that says anything.
WITH_RECORDS = ("global_loads", "global_load_requests", "global_load_sectors", "l1_load_sectors")
WITH_WAITS = (*WITH_RECORDS, "shared_wavefronts", "measured_conflicts")

# With [counts] units_alone, these are compared.
UNITS_ALONE = (
    "wgmma",
    "wgmma_wavefronts",
    "wgmma_conflicts",
    "tensor_loads",
    "tensor_stores",
    "tensor_load_sectors",
    "tensor_store_sectors",
)


def build() -> None:
    """Makes the programs of the CPU backend that print the lab's counts."""
    subprocess.run(["make", "-s", "-C", ROOT, "BACKEND=cpu", "lab-counts"], check=True)


def run_lab(step: str, options: str) -> dict[str, dict]:
    """The lab's totals of each kernel, on a device with the multiprocessors of an H200, so that persistent kernels
    have as many blocks as there."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "counts.jsonl"
        report = [] if step == "copies" else ["--report=traffic,banks"]  # copies.cu always counts
        subprocess.run(
            [PROGRAMS / step, *options.split(), *report],
            check=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "LAB_COUNTS": str(path), "SIMT_SMS": "132"},
        )
        records = map(json.loads, path.read_text().splitlines())
        return {record["kernel"].split("<")[0]: record for record in records if record["file"] == ""}


def lab_counts(record: dict) -> Counter:
    """The lab's counts under the names that read_ncu.py gives to the GPU's."""
    loads, stores = record["shared_load_wavefronts"], record["shared_store_wavefronts"]
    return Counter(
        {
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
            "ldmatrix_wavefronts": record["ldmatrix_wavefronts"],
            "shared_store_wavefronts": stores,
            "shared_conflicts": sum(
                record[f"{kind}_wavefronts"] - record[f"{kind}_ideal_wavefronts"]
                for kind in ("shared_load", "shared_store", "ldmatrix")
            ),
            "wgmma": 4 * record["wgmma"],  # by warps
            "tensor_loads": record["tensor_load_requests"],
            "tensor_stores": record["tensor_store_requests"],
            "tensor_load_sectors": record["box_sectors"],
            "tensor_store_sectors": record["tensor_store_sectors"],
            "wgmma_wavefronts": record["wgmma_read_wavefronts"],
            "wgmma_conflicts": (record["wgmma_read_wavefronts"] - record["wgmma_read_ideal_wavefronts"]),
            "copy_requests": record["copy_global_requests"],
            "copy_wavefronts": record["copy_shared_wavefronts"],
            "copy_conflicts": (record["copy_shared_wavefronts"] - record["copy_shared_ideal_wavefronts"]),
        }
    )


@cache
def expected_counts(step: str, options: str) -> dict[str, Counter]:
    """The lab's counts of each kernel."""
    return {kernel: lab_counts(record) for kernel, record in run_lab(step, options).items()}


def passing(counted: dict[str, dict], copy_requests: int) -> int:
    """Wavefronts of shared memory that transfer nothing: one for each read of threadIdx, each
    barrier of a block, each fence, with what it does to the L1 cache, each generic load, which might
    be one from shared memory, and each memory instruction without active lanes."""
    ncu = {count: record["ncu"] for count, record in counted.items()}
    waves = sum(ncu.get(count, 0) for count in GPU_ALONE)
    if "global_loads" in ncu:
        waves -= ncu["global_load_requests"] - copy_requests + ncu["global_store_requests"]
    return waves


def bounds(lab: Counter, ncu: dict[str, int]) -> dict[str, tuple[float, float]]:
    """The least and the most of each count that need not be equal."""
    found = {}
    for kind in ("global_load", "global_store", "shared_load", "shared_store"):
        others = {
            "requests": lab["copy_requests"] if kind == "global_load" else 0,
            "wavefronts": lab["ldmatrix_wavefronts"] if kind == "shared_load" else 0,
        }
        for what, apart in others.items():
            plain = lab[f"{kind}_{what}"] - apart
            found[f"{kind}_{what}"] = apart + plain / 4, apart + 2 * plain
        requests = lab[f"{kind}_requests"] - others["requests"]
        executed = ncu.get(f"{kind}_requests", 0) - others["requests"]
        sectors = lab[f"{kind}_sectors"] / max(1, requests) * executed
        found[f"{kind}_sectors"] = sectors - executed * 3 / 4, sectors + executed * 3 / 4
        if kind == "global_store":  # of a store of 8 of 16 bytes a lane that is split, each half has all sectors
            more = lab["global_store_sectors"] + 16 * max(0, executed - requests)
            found["global_store_sectors"] = (
                found["global_store_sectors"][0],
                max(found["global_store_sectors"][1], more),
            )
    more = abs(ncu.get("shared_load_requests", 0) - lab["shared_load_requests"])
    found["shared_conflicts"] = lab["shared_conflicts"] - more, lab["shared_conflicts"] + more
    found["l1_load_sectors"] = tuple(
        lab["l1_load_sectors"] - lab["global_load_sectors"] + end for end in found["global_load_sectors"]
    )
    empty = ncu.get("empty_copies", 0)
    found["copies"] = lab["copies"] - empty, lab["copies"]
    found["copy_sectors"] = lab["copy_sectors"] * 0.98 - 2 * empty, lab["copy_sectors"] + 2 * empty
    wavefronts = ncu.get("shared_wavefronts", 0)
    room = wavefronts / 100 + 100
    found["shared_wavefronts"] = lab["shared_wavefronts"] - room, lab["shared_wavefronts"] + room
    found["measured_conflicts"] = (
        lab["measured_conflicts"] - room,
        lab["measured_conflicts"] + wavefronts * 0.06 + 100,
    )
    return found


def compare(counted: dict[str, dict]) -> list[dict]:
    """The table of one kernel at one shape; `counted` maps counts to records of read_ncu.py or of
    the table."""
    any_record = next(iter(counted.values()))
    step, kernel = any_record["step"], any_record["kernel"]
    kinds = inherited(step, "counts")
    if kinds.get("units_alone"):
        counted = {count: counted[count] for count in UNITS_ALONE if count in counted}
    if kinds.get("waits_for_blocks"):
        counted = {count: record for count, record in counted.items() if count not in WITH_WAITS}
    lab = expected_counts(step, any_record["options"])[kernel].copy()
    ncu = {count: record["ncu"] for count, record in counted.items()}
    # Whatever nvcc made of loads and stores is compared above, and is in these sums as it is.
    lab["shared_wavefronts"] = (
        ncu.get("shared_load_wavefronts", 0)
        + lab["copy_wavefronts"]
        + ncu.get("shared_store_wavefronts", 0)
        + lab["wgmma_wavefronts"]
        + lab["shuffles"]
        + passing(counted, lab["copy_requests"])
    )
    lab["measured_conflicts"] = ncu.get("shared_conflicts", 0) + lab["copy_conflicts"]
    lab["shared_wavefronts"] += ncu.get("measured_conflicts", 0) - lab["measured_conflicts"]
    apart = (*GPU_ALONE, *(WITH_RECORDS if kinds.get("loads_records") else ()))
    allowed = bounds(lab, ncu) | {count: (ncu.get(count, 0),) * 2 for count in apart}
    table = []
    for count, record in counted.items():
        least, most = allowed.get(count, (lab[count], lab[count]))
        is_equal = least <= record["ncu"] == lab[count] <= most and count not in VARYING
        was_equal = record.get("least") == record.get("most") == record.get("lab", -1)
        if is_equal or was_equal:
            least = most = lab[count]
        table.append(
            {
                "step": step,
                "options": record["options"],
                "kernel": kernel,
                "count": count,
                "ncu": record["ncu"],
                "lab": lab[count],
                "least": floor(least),
                "most": ceil(most),
                "agrees": least <= record["ncu"] <= most,
                "commit": record["commit"],
            }
        )
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
            print(f"  {'count':<24}{'lab':>10}{'least':>10}{'most':>10}{'ncu':>10}")
        if record["ncu"] == record["lab"] == 0:
            continue
        print(
            f"  {record['count']:<24}{record['lab']:>10}{record['least']:>10}"
            f"{record['most']:>10}{record['ncu']:>10}{'' if record['agrees'] else '  WRONG'}"
        )


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
    compared = [
        line
        for line in table
        if line["count"] not in GPU_ALONE and (line["ncu"] == line["lab"] or line["least"] < line["most"])
    ]
    equal = sum(line["ncu"] == line["lab"] for line in compared)
    print(f"\n{len(compared)} counts compared, {equal} equal, {wrong} out of bounds; table in {out}")
    return 1 if wrong or not table else 0


if __name__ == "__main__":
    sys.exit(main())
