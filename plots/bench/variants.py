"""Measures the gain of each idea of a step: variants of steps, interleaved with the steps.

Usage: python3 -m plots.bench.variants BUILD COMMIT (`make variants` calls it, on a GPU)

A variant is a step with a patch of steps/variants. If it is for a table, its first lines say what
its row is called, for which head dimensions its kernel is another one, if not for all, and in the
page of which step the table is, if not in that of its own. Writes these tables, each with the step
of the page and the one that it builds on. Exits with 1 if a variant computes another answer than its step.
"""

import subprocess
import sys
from datetime import date
from pathlib import Path

import numpy as np

from plots.bench.cases import case
from plots.bench.contestants import Inputs, Outputs, StepCall
from plots.bench.step_library import Device, StepLibrary
from plots.bench.turns import Plan, Stopwatch, measure
from plots.sections import with_section
from tests.lib.steps import source_of

PATCHES = Path(__file__).resolve().parents[2] / "steps/variants"
HEAD_DIMS, SEQLEN = (64, 128, 256), 4096
PLAN = Plan(200.0, least=21)
ROUNDING = 2.0**-10  # of O, whose entries are below 1


def step_of(name: str) -> str:
    return name.partition("_")[0]


def read_variants() -> dict[str, dict[str, str]]:
    """By name, the lines above each patch."""
    return {path.stem: {"Page": step_of(path.stem)} | dict(
        line.split(": ", 1) for line in path.read_text().partition("--- ")[0].splitlines())
        for path in sorted(PATCHES.glob("*.patch"))}


def rows_of(page: str, variants: dict[str, dict[str, str]]) -> list[str]:
    """Programs in the table of a step's page, in order."""
    return [source_of(page).after, *(name for name, v in variants.items() if v["Page"] == page), page]


def table(rows: list[str], variants: dict[str, dict[str, str]], speeds: dict) -> list[str]:
    lines = ["| | " + " | ".join(f"D = {d}" for d in HEAD_DIMS) + " |",
             "|---|" + "---|" * len(HEAD_DIMS)]
    for name in rows:
        told = variants.get(name, {"Row": f"step {name.removeprefix('step')}"})
        changed = told.get("Head dimensions", " ".join(map(str, HEAD_DIMS))).split()
        cells = [f"{speeds[name, d]:.0f}" if str(d) in changed else "–" for d in HEAD_DIMS]
        lines.append(f"| {told['Row']} | {' | '.join(cells)} |")
    return lines


def main() -> int:
    folder, variants = Path(sys.argv[1]), read_variants()
    variants = {name: told for name, told in variants.items() if "Row" in told}
    tables = {page: rows_of(page, variants) for page in {v["Page"]: None for v in variants.values()}}
    needed = {name for rows in tables.values() for name in rows} | {step_of(name) for name in variants}
    steps = {name: StepLibrary((folder / ("variants" if name in variants else "") /
                                f"lib{name}.so").resolve()) for name in sorted(needed)}
    device, speeds, wrong = Device(next(iter(steps.values()))), {}, []
    for head_dim in HEAD_DIMS:
        problem = case(SEQLEN, head_dim)
        inputs, outputs, answers = Inputs(device, problem), Outputs(device, problem), {}
        calls = {name: StepCall(step, inputs, outputs, None) for name, step in steps.items()}
        for name, call in calls.items():
            outputs.poison()
            call()
            answers[name] = outputs.head(0, 0)[0]
        wrong += [name for name in variants
                  if not np.allclose(answers[name], answers[step_of(name)], rtol=0, atol=ROUNDING)]
        operations = 4 * problem.batch * problem.heads * SEQLEN**2 * head_dim
        for name, times in measure(calls, Stopwatch(device), PLAN).times.items():
            speeds[name, head_dim] = operations / times.summary()["median_ms"] * 1e-9
    gpu = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader", "-i", "0"],
                         capture_output=True, text=True, check=True).stdout.strip()
    if wrong:
        print(f"variants: other answers than their steps: {', '.join(wrong)}", file=sys.stderr)
        return 1
    for page, rows in tables.items():
        lines = "\n".join([
            "TFLOP/s on the problem above without a mask, all steps interleaved in another run, on an "
            f"{gpu}; compare only within this table ({date.today()}, commit {sys.argv[2]}):", "",
            *table(rows, variants, speeds)])
        path = Path(f"docs/{page}.md")
        path.write_text(with_section(path.read_text(), "variants", "`make variants`", lines))
        print(f"{path}\n{lines}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
