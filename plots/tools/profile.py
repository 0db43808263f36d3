"""Reports what Nsight Compute counts in one forward pass of a step.

Usage: python3 -m plots.tools.profile PROGRAM [OPTION ...]

Options are those of the program and choose the problem. Needs a GPU and ncu. While ncu counts, it
keeps the clocks at their base, so times are longer than in the reports; compare the shares.
"""

import csv
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

ELAPSED = "avg.pct_of_peak_sustained_elapsed"
# Units that can bound a forward pass, and the metric of the share of its peak.
BUSY = {
    "tensor cores (mma)": f"sm__pipe_tensor_op_hmma_cycles_active.{ELAPSED}",
    "fp32 arithmetic": f"sm__inst_executed_pipe_fma.{ELAPSED}",
    "exp and conversions": f"sm__inst_executed_pipe_xu.{ELAPSED}",
    "shared memory and L1": f"l1tex__data_pipe_lsu_wavefronts.{ELAPSED}",
    "device memory": f"gpu__dram_throughput.{ELAPSED}",
    "issue of instructions": f"smsp__issue_active.{ELAPSED}",
}
TIME = "gpu__time_duration.sum"
DEVICE_BYTES, L2_BYTES = "dram__bytes.sum", "lts__t_bytes.sum"
# Hardware counters. Metrics that ncu derives from addresses report conflicts of cp.async that do
# not exist.
WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"
WARPS = "sm__warps_active.avg.pct_of_peak_sustained_active"
SPILLS = ("smsp__inst_executed_op_local_ld.sum", "smsp__inst_executed_op_local_st.sum")
REGISTERS = "launch__registers_per_thread"
METRICS = (*BUSY.values(), TIME, DEVICE_BYTES, L2_BYTES, WAVEFRONTS, CONFLICTS, WARPS, *SPILLS, REGISTERS)
PREFIXES = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def fail(text: str, code: int) -> NoReturn:
    print(f"profile: {text}", file=sys.stderr)
    sys.exit(code)


def in_base_units(text: str, unit: str) -> float:
    """1.5 "Gbyte" is 1500000000, 2 "ms" is 0.002; percentages are unchanged."""
    value = float(text.replace(",", ""))
    scaled = re.fullmatch(r"([numKMGT])(byte|s|second)", unit)
    return value * PREFIXES[scaled[1]] if scaled else value


def read_report(text: str) -> list[tuple[str, dict[str, float]]]:
    """Name and metrics of each launch, from ncu's raw page, whose second line has the units."""
    rows = list(csv.reader(line for line in text.splitlines() if line.startswith('"')))
    if len(rows) < 3:
        fail("ncu counted no kernel", 3)
    names, units = rows[:2]
    launches = []
    for row in rows[2:]:
        cells = {name: (value, unit) for name, value, unit in zip(names, row, units)}
        name = re.search(r"(\w+_kernel)(<[^()]*>)?", cells["Kernel Name"][0])
        launches.append((name[0], {metric: in_base_units(*cells[metric]) for metric in METRICS}))
    return launches


def amount(value: float, unit: str) -> str:
    """1500000 bytes is 1.50 MB; before a unit that is a word is a space: 1.50 M wavefronts."""
    for prefix in ("", "k", "M"):
        if value < 1000:
            return f"{value:.{2 if prefix else 0}f} {prefix}{' ' * (len(unit) > 1)}{unit}"
        value /= 1000
    return f"{value:.2f} G{' ' * (len(unit) > 1)}{unit}"


def in_words(name: str, counted: dict[str, float]) -> str:
    """The report of one launch."""
    seconds, moved = counted[TIME], counted[DEVICE_BYTES]
    wavefronts, conflicts = counted[WAVEFRONTS], counted[CONFLICTS]
    shares = sorted(((counted[metric], unit) for unit, metric in BUSY.items()), reverse=True)
    lines = [
        f"kernel     {name}, {counted[REGISTERS]:.0f} registers a thread",
        f"time       {1e3 * seconds:.3f} ms at the base clock, under the profiler",
        *(
            f"{'busy' if i == 0 else '':10} {share:5.1f} % of the peak of {unit}"
            for i, (share, unit) in enumerate(shares)
        ),
        f"warps      {counted[WARPS]:5.1f} % of those that a multiprocessor can hold",
        f"traffic    {amount(moved, 'B')} of device memory ({1e-9 * moved / seconds:.0f} GB/s)"
        f", {amount(counted[L2_BYTES], 'B')} through L2",
    ]
    if wavefronts > 0:
        lines.append(
            f"shared     {amount(wavefronts, 'wavefronts')}, "
            f"{100 * conflicts / wavefronts:.1f} % of them by bank conflicts"
        )
    spills = sum(counted[metric] for metric in SPILLS)
    lines.append(f"spills     {amount(spills, 'accesses of local memory') if spills else 'none'}")
    return "\n".join(lines)


def output_of(*command: object) -> str:
    """The output of a command; if it fails, exits with its first error."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return done.stdout
    said = done.stdout + done.stderr
    if "ERR_NVGPUCTRPERM" in said:
        fail(
            "ncu may not read the counters of this GPU: run it as root, or see "
            "https://developer.nvidia.com/ERR_NVGPUCTRPERM",
            3,
        )
    errors = re.findall(r"^==ERROR== (.*)", said, re.MULTILINE) or said.splitlines()
    fail(errors[0] if errors else f"{command[0]} failed", done.returncode)


def profile(program: Path, options: list[str]) -> list[tuple[str, dict[str, float]]]:
    """Counts one forward pass, without the kernels that prepare a mask."""
    names = re.findall(r"^kernel +(\w+):", output_of(program, *options, "--info"), re.MULTILINE)
    if shutil.which("ncu") is None:
        fail("ncu not found. Install it: Nsight Compute, which comes with the CUDA Toolkit", 2)
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report"
        output_of(
            "ncu",
            "--export",
            report,
            "--metrics",
            ",".join(METRICS),
            "--kernel-name",
            f"regex:^({'|'.join(names)})_kernel",
            "--launch-count",
            len(names),
            program,
            *options,
            "-c",
            "none",
            "-r",
            0,
        )
        return read_report(output_of("ncu", "--import", f"{report}.ncu-rep", "--page", "raw", "--csv"))


def main() -> int:
    program, options = Path(sys.argv[1]), sys.argv[2:]
    launches = profile(program, options)
    print(f"{program.name:10} {' '.join(options)}")
    for launch in launches:
        print(in_words(*launch))
    return 0


if __name__ == "__main__":
    sys.exit(main())
