"""Measures the gain of each idea of a step: variants of steps, interleaved with the steps.

Usage: python3 -m plots.bench.variants BUILD COMMIT (`make variants` calls it, on a GPU)

A variant is a step with a patch of steps/variants. If it is for a table, its first lines say what
its row is called, for which head dimensions its kernel is another one, if not for all, and in the
page of which step the table is, if not in that of its own. Writes these tables, each with the step
of the page and the one that it builds on. Exits with 1 if an answer is wrong.
"""

import subprocess
import sys
from datetime import date
from pathlib import Path

from plots.bench.cases import DENSE, Case, case
from plots.bench.device import StepLibrary
from plots.bench.run import Benchmark
from plots.bench.turns import Plan
from plots.sections import with_section
from tests.lib.steps import source_of

PATCHES = Path(__file__).resolve().parents[2] / "steps/variants"
HEAD_DIMS, SEQLEN = (64, 128, 256), 4096
# The columns of tables: an order of blocks matters under the causal mask.
COLUMNS = {
    "forward": {f"D = {d}": case(SEQLEN, d) for d in HEAD_DIMS},
    "backward": {f"D = {d}, {mask}": case(SEQLEN, d, mask, "bf16", "backward") for d in HEAD_DIMS for mask in DENSE},
}
PROBLEMS = {"forward": "the problem above without a mask", "backward": "the problem above"}
PLAN = Plan(200.0, least=21)


def step_of(name: str) -> str:
    return name.partition("_")[0]


def read_variants() -> dict[str, dict[str, str]]:
    """By name, the lines above each patch."""
    return {
        path.stem: {"Page": step_of(path.stem)}
        | dict(line.split(": ", 1) for line in path.read_text().partition("--- ")[0].splitlines())
        for path in sorted(PATCHES.glob("*.patch"))
    }


def rows_of(page: str, variants: dict[str, dict[str, str]]) -> list[str]:
    """Programs in the table of a step's page, in order."""
    return [source_of(page).after, *(name for name, v in variants.items() if v["Page"] == page), page]


def table(rows: list[str], variants: dict[str, dict[str, str]], speeds: dict, columns: dict[str, Case]) -> list[str]:
    lines = ["| | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns)]
    for name in rows:
        told = variants.get(name, {"Row": f"step {name.removeprefix('step')}"})
        changed = told.get("Head dimensions", " ".join(map(str, HEAD_DIMS))).split()
        cells = [f"{speeds[name, c]:.0f}" if str(c.head_dim) in changed else "–" for c in columns.values()]
        lines.append(f"| {told['Row']} | {' | '.join(cells)} |")
    return lines


def main() -> int:
    folder, variants = Path(sys.argv[1]), read_variants()
    variants = {name: told for name, told in variants.items() if "Row" in told}
    tables = {page: rows_of(page, variants) for page in {v["Page"]: None for v in variants.values()}}
    speeds, wrong = {}, []
    for kind, columns in COLUMNS.items():
        names = sorted({name for page, rows in tables.items() if source_of(page).kind == kind for name in rows})
        steps = [
            StepLibrary((folder / ("variants" if name in variants else "") / f"lib{name}.so").resolve())
            for name in names
        ]
        benchmark = Benchmark(steps, {}, {}, PLAN)
        for problem in columns.values():
            for record in benchmark.records(problem):
                speeds[record["step"], problem] = record.get("tflops")
                wrong += [f"{record['step']} at {problem}"] * ("tflops" not in record)
    gpu = subprocess.run(
        ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader", "-i", "0"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    if wrong:
        print(f"variants: wrong or failed: {', '.join(wrong)}", file=sys.stderr)
        return 1
    for page, rows in tables.items():
        kind = source_of(page).kind
        lines = "\n".join(
            [
                f"TFLOP/s on {PROBLEMS[kind]}, all steps interleaved in another run, on an "
                f"{gpu}; compare only within this table ({date.today()}, commit {sys.argv[2]}):",
                "",
                *table(rows, variants, speeds, COLUMNS[kind]),
            ]
        )
        path = Path(f"docs/{page}.md")
        path.write_text(with_section(path.read_text(), "variants", "`make variants`", lines))
        print(f"{path}\n{lines}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
