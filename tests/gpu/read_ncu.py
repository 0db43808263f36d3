"""Prints the counts of Nsight Compute in one run, one JSON object for each kernel and count.

Usage: read_ncu.py RAW.csv SOURCE.csv COMMIT STEP OPTIONS

The two files are pages of one report, as `ncu --import ... --page raw|source --csv` prints them.
Instructions and their theoretical costs are sums over the lines of the machine code; what the
hardware counted comes from the raw page.
"""

import csv
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

OPCODES = {
    "HMMA": "mma",
    "HGMMA": "wgmma",
    "QGMMA": "wgmma",
    "LDSM": "ldmatrix",
    "LDGSTS": "copies",
    "SHFL": "shuffles",
    "BAR": "barriers",
    "MEMBAR": "fences",
    "CCTL": "fences",
    "LD": "generic_loads",
}
SECTORS = {"LDG": "global_load_sectors", "STG": "global_store_sectors", "LDGSTS": "copy_sectors"}
# Executed, whether or not a lane was active.
MEMORY = {"LDG": "global_loads", "STG": "global_stores"}
WAVEFRONTS = {
    "LDS": "shared_load_wavefronts",
    "LDSM": "shared_load_wavefronts",
    "STS": "shared_store_wavefronts",
    "STSM": "shared_store_wavefronts",
    "ST": "shared_store_wavefronts",  # into another block of the cluster
}
METRICS = {
    "global_load_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "global_store_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "l1_load_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "shared_load_requests": "smsp__sass_inst_executed_op_shared_ld.sum",
    "shared_store_requests": "smsp__sass_inst_executed_op_shared_st.sum",
    "shared_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    "measured_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "tensor_loads": "sm__sass_inst_executed_op_tma_ld.sum",
    "tensor_stores": "sm__sass_inst_executed_op_tma_st.sum",
    "tensor_load_sectors": "l1tex__m_xbar2l1tex_read_sectors_mem_global_op_tma_ld.sum",
    "tensor_store_sectors": "l1tex__m_l1tex2xbar_write_sectors_mem_global_op_tma_st.sum",
    "wgmma_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_gmma.sum",
    "wgmma_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_gmma.sum",
}


def kernel_of(name: str) -> str:
    """`scores_kernel` for "void scores_kernel<__half>(...)"."""
    return re.search(r"\w+_kernel", name)[0]


def read_source(path: Path) -> dict[str, list[dict]]:
    """The lines of the machine code of each kernel's first launch."""
    kernels, rows, header = {}, [], None
    for cells in csv.reader(path.open()):
        if cells and cells[0] == "Kernel Name":
            rows, header = [], None
            kernels.setdefault(kernel_of(cells[1]), rows)
        elif header is None:
            header = cells
        else:
            rows.append(dict(zip(header, cells)))
    return kernels


def count_source(rows: list[dict]) -> Counter:
    """Counts of one kernel by opcode; instructions always predicated off count separately."""
    counts = Counter(
        dict.fromkeys(
            [
                *OPCODES.values(),
                *SECTORS.values(),
                *MEMORY.values(),
                *WAVEFRONTS.values(),
                "shared_conflicts",
                "shared_store_requests",
                "thread_index_reads",
                "empty_shared_loads",
                "empty_copies",
                "empty_local_accesses",
            ],
            0,
        )
    )
    for row in rows:
        words = row["Source"].split()
        opcode, *operands = words[words[0].startswith("@") :]
        opcode = opcode.split(".")[0]
        executed = int(row["Instructions Executed"])
        if words[0] == "@!PT":
            counts["empty_shared_loads"] += executed if opcode == "LDS" else 0
            continue
        if opcode == "LDGSTS":  # of a warp, all lanes copy, or none
            copying = int(row["Predicated-On Thread Instructions Executed"]) // 32
            counts["empty_copies"] += executed - copying
            if not (executed := copying):
                continue
        if opcode == "BAR" and words[0].startswith("@"):  # of a warp, all lanes wait, or none
            executed = int(row["Predicated-On Thread Instructions Executed"]) // 32
        if opcode in ("LDL", "STL") and int(row["Predicated-On Thread Instructions Executed"]) == 0:
            counts["empty_local_accesses"] += executed
        if opcode in MEMORY:
            counts[MEMORY[opcode]] += executed
        if opcode in OPCODES and not (opcode == "BAR" and operands[0].rstrip(",") != "0x0"):  # named
            counts[OPCODES[opcode]] += executed
        if opcode in SECTORS:
            counts[SECTORS[opcode]] += int(row["L2 Theoretical Sectors Global"])
        if opcode in WAVEFRONTS:
            wavefronts = int(row["L1 Wavefronts Shared"])
            counts[WAVEFRONTS[opcode]] += wavefronts
            counts["shared_conflicts"] += wavefronts - int(row["L1 Wavefronts Shared Ideal"])
        if opcode == "STSM":
            counts["shared_store_requests"] += executed
        if opcode == "S2R" and words[-1].startswith("SR_TID"):
            counts["thread_index_reads"] += executed
    return counts


def read_raw(path: Path) -> Iterator[tuple[str, int, dict[str, int]]]:
    """Each kernel, the warps of a block, and its counters. The second line holds the units."""
    header, _, *rows = csv.reader(path.open())
    for row in rows:
        values = dict(zip(header, row))
        threads = math.prod(map(int, re.findall(r"\d+", values["Block Size"])))
        yield (
            kernel_of(values["Kernel Name"]),
            threads // 32,
            {count: round(float(values[metric].replace(",", ""))) for count, metric in METRICS.items()},
        )


def main() -> None:
    raw, source, commit, step, options = sys.argv[1:]
    kernels = read_source(Path(source))
    seen = set()
    for kernel, warps, counters in read_raw(Path(raw)):
        if kernel in seen:
            continue
        seen.add(kernel)
        counts = count_source(kernels[kernel])
        counts["block_barriers"] = counts["barriers"] // warps
        counters["shared_store_requests"] += counts["shared_store_requests"]  # of stmatrix, which it leaves out
        for count, value in {**counts, **counters}.items():
            print(
                json.dumps(
                    {"step": step, "options": options, "kernel": kernel, "count": count, "ncu": value, "commit": commit}
                )
            )


if __name__ == "__main__":
    main()
