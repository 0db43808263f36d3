"""Draws how real input differs from random input, and what it does to the error of every step.

Usage: python3 -m plots.tools.real_input.figure RECORDS DIRECTORY

RECORDS is where measure.py has written. Writes real_input.svg and .png to DIRECTORY.
"""

import sys
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from plots.tools.real_input.inputs import INPUTS
from tests.lib.programs import read_rows

# Random input is grey; one colour a real input.
COLOURS = {"random_64": "#777777", "smollm2_layer12": "#0072b2", "smollm2_layer18": "#d55e00",
           "random_32": "#bbbbbb", "minilm_layer0": "#009e73"}
PANELS = (("row_max", "largest score of a row"), ("entropy", "entropy of a row, nats"),
          ("first_key", "weight on the first key"))
DTYPES = ("fp16", "bf16")


def draw_distribution(axes: Axes, scores: list[dict], field: str, label: str) -> None:
    """Cumulative: the share of rows, upwards, that stay below a value."""
    for row in scores:
        shares = np.linspace(0, 1, len(row[field]))
        axes.plot(row[field], shares, color=COLOURS[row["name"]], linewidth=1.6)
    axes.set_xlabel(label)
    axes.set_ylim(0, 1)
    if field == "row_max":
        axes.set_xscale("symlog", linthresh=10)
        axes.set_xticks([0, 5, 10, 50], ["0", "5", "10", "50"])


def draw_errors(axes: Axes, errors: list[dict], dtype: str) -> None:
    """For each step a group of bars: from the median row to the worst."""
    steps = sorted({row["step"] for row in errors})
    for at, step in enumerate(steps):
        for i, given in enumerate(INPUTS):
            (row,) = [row for row in errors
                      if (row["step"], row["dtype"], row["name"]) == (step, dtype, given.name)]
            x = at + (i - 2) * 0.15
            middle = row["errors"][len(row["errors"]) // 2]
            axes.plot([x, x], [middle, row["max_error"]], color=COLOURS[given.name], linewidth=3,
                      solid_capstyle="butt")
            axes.plot(x, row["allowed_error"], "_", color="black", markersize=6)
    axes.set_xticks(range(len(steps)), [step.removeprefix("step") for step in steps])
    axes.set_xlabel("step")
    axes.set_ylabel(f"error in {dtype}: median to worst row")
    axes.set_ylim(0)
    axes.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))


def draw(scores: list[dict], errors: list[dict]) -> Figure:
    figure = Figure(figsize=(11, 7), layout="constrained")
    upper, lower = figure.subfigures(2, 1)
    for axes, (field, label) in zip(upper.subplots(1, len(PANELS), sharey=True), PANELS):
        draw_distribution(axes, scores, field, label)
        if field == PANELS[0][0]:
            axes.set_ylabel("share of rows")
    for axes, dtype in zip(lower.subplots(1, len(DTYPES)), DTYPES):
        draw_errors(axes, errors, dtype)
    lines = [Line2D([], [], color=COLOURS[given.name], linewidth=3, label=given.title)
             for given in INPUTS]
    lines.append(Line2D([], [], color="black", marker="_", linestyle="", label="allowed"))
    lower.legend(handles=lines, loc="outside lower center", ncols=len(lines), frameon=False)
    return figure


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    rows, directory = map(Path, sys.argv[1:])
    directory.mkdir(parents=True, exist_ok=True)
    figure = draw(read_rows(rows / "scores.jsonl"), read_rows(rows / "errors.jsonl"))
    for suffix in ("svg", "png"):
        path = directory / f"real_input.{suffix}"
        figure.savefig(path, dpi=150)
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
