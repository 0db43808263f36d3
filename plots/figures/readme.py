"""Writes the README's table of steps and the pictures of the docs from the benchmark's records.

Usage: python3 -m plots.figures.readme README.md RESULTS-OF-A-GPU PICTURES

Writes the table and the picture of the ladder between markers in README.md, and two variants of each
figure to the directory PICTURES.
"""

import os
import sys
from pathlib import Path

from plots.figures import waterfall
from plots.figures.all import FIGURES, draw_figure
from plots.figures.records import HEADLINE, SHORT_NAMES, Results, load, name_of
from plots.figures.style import THEMES
from plots.sections import with_section
from tests.lib.steps import STEPS, source_of, step_names

MMA = "mma.sync"
OWN_CEILINGS = {"fp32 FFMA": "ffma", "wgmma": "wgmma", "wgmma e4m3": "wgmma_e4m3"}


# --- The table -----------------------------------------------------------------------------------

def of_ceiling(record: dict) -> str:
    """Percent of the mma.sync ceiling, and of the step's own ceiling if that is another."""
    share = f"{100 * record['tflops'] / record['ceiling_mma_tflops']:.0f} %"
    name = record["ceiling"]
    if name == MMA:
        return share
    if name == "device memory copy":
        own = record["must_move_bytes"] / record["median_ms"] * 1e-6 / record["ceiling_copy_gb_per_s"]
    else:
        own = record["tflops"] / record[f"ceiling_{OWN_CEILINGS[name]}_tflops"]
    return f"{share} ({100 * own:.0f} % of {name})"


def over(record: dict, short: str) -> str:
    """Median, first and last decile of the speedup over a baseline; a dash without one."""
    if record["dtype"] == "e4m3":
        short += "_fp8"
    if f"speed_over_{short}" not in record:
        return "–"
    middle, low, high = (f"{record[f'speed_over_{short}{end}']:#.3g}"
                         for end in ("", "_p10", "_p90"))
    return f"{middle} ({low} – {high})"


def table(results: Results) -> str:
    """The results table in Markdown, with a line on the origin of its numbers."""
    in_e4m3 = results.steps(**HEADLINE | {"dtype": "e4m3"}, mask="full")
    records = results.headline("full") + in_e4m3
    missing = sorted(set(step_names()) - {record["step"] for record in records})
    shorts = ["fa2", *["fa3"] * any("speed_over_fa3" in record for record in records)]
    heads = " | ".join(f"speedup over {SHORT_NAMES[short]}" for short in shorts)
    lines = [f"| step | idea | TFLOP/s | of mma.sync | {heads} | error / allowed |",
             f"|---|---|---|---|{'---|' * len(shorts)}---|"]
    for record in records:
        source = source_of(record["step"])
        page = f"docs/{record['step']}.md"
        lines.append(f"| [{name_of(record)}]({page}) "
                     f"[{source.title}]({STEPS.name}/{source.path.name}) | {source.idea} "
                     f"| {record['tflops']:.1f} | {of_ceiling(record)} "
                     f"| {' | '.join(over(record, short) for short in shorts)} "
                     f"| {record['max_error']:.1e} / {record['allowed_error']:.1e} |")
    for step in missing:
        source = source_of(step)
        name = step.removeprefix("step")
        page = STEPS.parent / "docs" / f"{step}.md"
        lines.append(f"| {f'[{name}](docs/{page.name})' if page.exists() else name} [{source.title}]"
                     f"({STEPS.name}/{source.path.name}) | {source.idea} |{' – |' * (3 + len(shorts))}")
    first = records[0]
    shape = ", ".join(f"{letter}={HEADLINE[name]}" for letter, name in
                      (("B", "batch"), ("H", "heads"), ("N", "seqlen"), ("D", "head_dim")))
    lines += ["", f"Forward pass, {HEADLINE['dtype']}, no mask, {shape} (batch entries, heads, "
              f"queries and keys, numbers per row), on one {first['device']} (CUDA "
              f"{first['cuda_runtime']}, {first['date'][:10]}, commit {first['commit']}). "
              "`mma.sync` is the instruction of the tensor cores, FFMA the ordinary fp32 "
              "multiply-add; shares are of what loops of nothing else reach on this GPU. FA2 is "
              "FlashAttention-2, PyTorch's attention kernel"
              f"{', and FA3 is FlashAttention-3' * (len(shorts) > 1)}: median of interleaved runs, "
              "first and last decile in brackets. Error: the largest of a row, and the largest that "
              "[the rule](docs/correctness.md) allows."]
    if any(record["ceiling"] == "wgmma" for record in records):
        lines[-1] += " `wgmma` is the instruction that compute capability 9.0 adds."
    if in_e4m3:
        lines[-1] += (f" Step {', '.join(map(name_of, in_e4m3))} and its baseline take e4m3 "
                      f"(commit {in_e4m3[0]['commit']}).")
    if missing:
        lines[-1] += f" Not measured yet: {', '.join(missing)}."
    return "\n".join(lines)


# --- The pictures --------------------------------------------------------------------------------

def markup(readme: Path, pictures: Path, found: dict) -> str:
    """The waterfall in HTML, in the page's light or dark theme, with its numbers as alt text."""
    light, dark = (Path(os.path.relpath(pictures / f"{waterfall.NAME}_{theme.name}.svg",
                                        readme.parent)) for theme in THEMES)
    told = [f"{step['step'].removeprefix('step')} {waterfall.speed_label(before, speed)}"
            for panel in found["panels"][:1] for step, (before, speed)
            in zip(panel["steps"], waterfall.changes(panel["steps"]), strict=True)]
    alt = " ".join(f"From step to step, TFLOP/s and speedup: {', '.join(told)}".split())
    masks = [step.removeprefix("step") for step in step_names() if source_of(step).adds_masks()]
    return ("<picture>\n"
            f'  <source media="(prefers-color-scheme: dark)" srcset="{dark.as_posix()}">\n'
            f'  <img src="{light.as_posix()}" width="800" alt="{alt}">\n'
            "</picture>\n\n"
            "Each bar begins at the speed of the step that this one builds on. Steps that add masks, "
            f"not speed, are not shown: {', '.join(masks)}.")


def main() -> int:
    readme, directory, pictures = map(Path, sys.argv[1:])
    results = load(directory)
    figures = {name: found for name, figure in FIGURES.items()
               if (found := figure.data(results)) is not None}
    text = readme.read_text(encoding="utf-8")
    for name, section in (("results", table(results)),
                          ("ladder", markup(readme, pictures, figures[waterfall.NAME]))):
        text = with_section(text, name, "`make readme` from plots/results", section)
    for name, found in figures.items():
        draw_figure(name, found, pictures, ("svg",))
    readme.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
