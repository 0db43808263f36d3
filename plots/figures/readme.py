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

SHORTS = ("fa2", "cudnn", "fa3")


# --- The table -----------------------------------------------------------------------------------

def over(record: dict, short: str) -> str:
    """The median of the speedup over a baseline; a dash without one."""
    short += "_fp8" * (record["dtype"] == "e4m3")
    ratio = record.get(f"speed_over_{short}")
    return "–" if ratio is None else f"{ratio:#.3g}"


def table(results: Results) -> str:
    """The results table in Markdown, with a line on the origin of its numbers."""
    in_e4m3 = results.steps(**HEADLINE | {"dtype": "e4m3"}, mask="full")
    records = {record["step"]: record for record in results.headline("full") + in_e4m3}
    lines = ["| step | idea | TFLOP/s | " + " | ".join(f"× {SHORT_NAMES[short]}" for short in SHORTS)
             + " |", f"|---|---|---|{'---|' * len(SHORTS)}"]
    for step in step_names():
        source, record = source_of(step), records.get(step)
        numbers = ["–"] * (1 + len(SHORTS))
        if record:
            numbers = [f"{record['tflops']:.1f}", *(over(record, short) for short in SHORTS)]
        lines.append(f"| [{step.removeprefix('step')}](docs/{step}.md) [{source.title}]"
                     f"({STEPS.name}/{source.path.name}) | {source.idea} | {' | '.join(numbers)} |")
    first = next(iter(records.values()))
    shape = ", ".join(f"{letter}={HEADLINE[name]}" for letter, name in
                      (("B", "batch"), ("H", "heads"), ("N", "seqlen"), ("D", "head_dim")))
    lines += ["", f"Forward pass, {HEADLINE['dtype']}, no mask, {shape} (batch entries, heads, "
              f"queries and keys, numbers per row), on one {first['device']} (CUDA "
              f"{first['cuda_runtime']}, {first['date'][:10]}, commit {first['commit']}); × is the "
              "speedup over FlashAttention-2 and cuDNN as PyTorch has them, and over "
              "FlashAttention-3: medians of interleaved runs. The pages of steps without a number "
              "have those of other head dimensions."]
    if in_e4m3:
        lines[-1] += f" Step {', '.join(map(name_of, in_e4m3))} and its baseline take e4m3."
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
    masks = [step.removeprefix("step") for step in step_names() if source_of(step).block_masks]
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
