"""Writes the lab's counts of all steps, side by side, as a page of Markdown.

Usage: python3 -m plots.tools.lab FILE.md DOCUMENT.md

Writes the whole page to FILE, and the tables of the first shape between the markers of DOCUMENT.
Needs the programs of the CPU backend (`make all BACKEND=cpu`). Runs each step, and one of them without
padded rows, on a few shapes with --report.
"""

import json
import re
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from plots.sections import with_section
from tests.lib.programs import REPOSITORY, RIGHT, WRONG, Program
from tests.lib.source_tree import CHECKED, SourceTree
from tests.lib.steps import having, source_of, step_names

SHAPES = ("-n 256 -d 64", "-n 384 -d 64 -m causal", "-n 200 -k 333 -d 128 -t bf16")
GPU = "h200"
(PADDED_STEP,) = having("lab")
PADDING = (
    "common/device/fragments.cuh",
    "constexpr int SMEM_STRIDE = HEAD_DIM + CHUNK;",
    "constexpr int SMEM_STRIDE = HEAD_DIM;",
)
LOADS = ("global_load", "copy_global", "tensor_load")
STORES = ("global_store", "tensor_store")
GLOBAL = (*LOADS, *STORES)
SHARED = ("shared_load", "shared_store", "ldmatrix", "copy_shared", "wgmma_read")
SECTOR_BYTES = 32


@dataclass(frozen=True)
class Report:
    """The records of one run; `name` labels its row in the tables."""

    name: str
    records: list[dict]

    def of(self, kind: str) -> list[dict]:
        return [record for record in self.records if record["record"] == kind]

    @property
    def run(self) -> dict:
        return self.of("run")[0]

    def sector_bytes(self, kinds: tuple[str, ...] = GLOBAL) -> int:
        return SECTOR_BYTES * sum(self.run[f"{kind}_sectors"] for kind in kinds)

    def sum_of(self, field: str) -> int:
        """The sum of a field over all kinds of shared memory access."""
        return sum(self.run[f"{kind}_{field}"] for kind in SHARED)


def report_of(program: Program, name: str, shape: str, scratch: Path) -> Report:
    """Runs a step with --report. Findings are no failure: the page shows them."""
    path = scratch / "report.jsonl"
    path.unlink(missing_ok=True)
    options = shape.replace("-t", program.dtype_option).split()
    done = program.run(
        *options, f"--report=json:{path},roofline:{GPU},races,bounds,init,alignment,blocks", cwd=REPOSITORY
    )
    if done.returncode not in (RIGHT, WRONG):
        raise SystemExit(f"lab: {name} {shape}: {done.stderr.strip()}")
    return Report(name, [json.loads(line) for line in path.read_text().splitlines()])


def without_padding(scratch: Path) -> Program:
    """That step without padding between the rows of Q, K and V in shared memory."""
    tree = SourceTree(scratch, built="cpu")
    tree.replace(*PADDING)
    tree.compile_only(PADDED_STEP, 64, 128, element="")  # those of SHAPES
    target = f"build/cpu/{PADDED_STEP}"
    done = tree.make("BACKEND=cpu", *CHECKED, target)
    if done.returncode != 0:
        raise SystemExit(f"lab: {target} without padding: {done.stderr.strip()}")
    return Program(PADDED_STEP, tree.root / "build" / "cpu")


def human(value: float) -> str:
    """A number with a prefix: 1500000 is 1.5 M."""
    for prefix in ("", "k", "M"):
        if value < 1000:
            return f"{value:.4g} {prefix}".rstrip()
        value /= 1000
    return f"{value:.4g} G"


def table(title: str, head: list[str], rows: Iterable[list[str]]) -> list[str]:
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return [title, "", *(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows)), ""]


def memory_row(report: Report) -> list[str]:
    run = report.run
    requests = sum(run[f"{kind}_requests"] for kind in GLOBAL)
    used = sum(run[f"{kind}_used_bytes"] for kind in GLOBAL)
    everything = report.sector_bytes()
    return [
        report.name,
        human(run["must_move_bytes"]),
        human(report.sector_bytes(LOADS)),
        human(report.sector_bytes(STORES)),
        f"{everything / SECTOR_BYTES / requests:.1f}",
        f"{100 * used / everything:.0f} %",
        f"{run['flops'] / everything:.1f}",
    ]


def shared_row(report: Report) -> list[str]:
    run = report.run
    return [
        report.name,
        *(human(run[f"{kind}_wavefronts"]) for kind in SHARED),
        human(report.sum_of("conflicts")),
        f"{max(run[f'{kind}_most_ways'] for kind in SHARED)}-way",
    ]


def issue_row(report: Report) -> list[str]:
    run = report.run
    share = f"{100 * run['mma_under_copy'] / run['mma']:.0f} %" if run["mma"] else "-"
    tensor_copies = run["tensor_load_requests"] + run["tensor_store_requests"]
    return [
        report.name,
        human(run["mma"]),
        share,
        human(run["wgmma"]),
        human(run["ldmatrix_requests"]),
        human(run["copy_shared_requests"]),
        human(tensor_copies),
        human(run["shuffles"]),
        human(run["barriers"]),
        str(run["findings"]),
    ]


def bound_row(report: Report) -> list[str]:
    bounds = {record["unit"]: record for record in report.of("bound")}
    binding = max(bounds, key=lambda unit: bounds[unit]["least_ms"])
    return [
        report.name,
        *(f"{1e3 * record['least_ms']:.3f}" if record["work"] else "-" for record in bounds.values()),
        binding,
    ]


def lesson(reports: list[Report]) -> list[str]:
    """A summary of the tables, with numbers from them."""
    by_name = {report.name: report for report in reports}
    padded, bare = by_name[PADDED_STEP], reports[-1]
    names = [name for name in step_names() if name in by_name]
    first = max(names, key=lambda name: by_name[name].run["must_move_bytes"])  # S and P
    second = next(name for name in names if source_of(name).after == first)
    moves, then = (human(by_name[name].run["must_move_bytes"]) for name in (first, second))
    loads = bare.run["ldmatrix_wavefronts"] / padded.run["ldmatrix_wavefronts"]
    return [
        f"- From {first} to {second} what must move falls from {moves}B to {then}B: S and P stay on the chip.",
        f"- Without its padding {PADDED_STEP} has {human(bare.sum_of('conflicts'))} conflicts in "
        f"place of {human(padded.sum_of('conflicts'))}; ldmatrix takes {loads:.1f} times the "
        f"wavefronts.",
        "",
    ]


def tables_of(reports: list[Report]) -> list[str]:
    (gpu,) = {record["gpu"] for report in reports for record in report.of("bound")}
    units = [record["unit"] for record in reports[0].of("bound")]
    return [
        *lesson(reports),
        *table(
            "Device memory, in bytes: what must move; the sectors of all loads, cp.async and "
            "TMA copies, and of all stores; floating-point operations for each byte of these "
            "sectors. A TMA copy is one request:",
            ["", "must move", "loaded", "stored", "sectors a request", "used", "FLOP a byte"],
            map(memory_row, reports),
        ),
        *table(
            "Shared memory, in wavefronts:",
            ["", "loads", "stores", "ldmatrix", "cp.async", "wgmma", "conflicts", "worst"],
            map(shared_row, reports),
        ),
        *table(
            "Instructions that warps issue; wgmma count once per warpgroup, TMA copies once per box:",
            [
                "",
                "mma",
                "with a copy in flight",
                "wgmma",
                "ldmatrix",
                "cp.async",
                "TMA copies",
                "shuffles",
                "barriers",
                "findings",
            ],
            map(issue_row, reports),
        ),
        *table(
            f"Bounds, not times: microseconds that each unit of one {gpu} needs at least:",
            ["", *units, "bound by"],
            map(bound_row, reports),
        ),
    ]


def page(by_shape: dict[str, list[Report]]) -> str:
    commits = sorted(
        {report.run["commit"] for reports in by_shape.values() for report in reports if report.name in step_names()}
    )
    lines = [
        "# All steps in the lab",
        "",
        "Written by `make lab` from `--report=json:FILE` of the CPU backend, commit "
        f"{', '.join(commits)}. What the counts mean: [the lab](../docs/lab.md). B=1, H=2, "
        "and fp16 unless the options differ.",
        "",
    ]
    for shape, reports in by_shape.items():
        lines += [f"## `{shape}`", "", *tables_of(reports)]
    return "\n".join(lines)


def main() -> int:
    file, document = map(Path, sys.argv[1:])
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        programs = {name: Program(name, REPOSITORY / "build" / "cpu") for name in step_names()}
        programs[f"{PADDED_STEP}, rows without padding"] = without_padding(scratch)
        by_shape = {
            shape: [
                report_of(program, name, shape, scratch)
                for name, program in programs.items()
                if program.takes(int(re.search(r"-d (\d+)", shape)[1]))
            ]
            for shape in SHAPES
        }
    file.write_text(page(by_shape))
    first = "\n".join(tables_of(by_shape[SHAPES[0]])).strip()
    document.write_text(with_section(document.read_text(), "lab", "`make lab`", first))
    return 0


if __name__ == "__main__":
    sys.exit(main())
