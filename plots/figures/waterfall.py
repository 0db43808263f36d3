"""The speedup of each step over the one that it builds on, on the shape of the README's table.

The axis is logarithmic: bars of the same length are speedups by the same factor. Steps whose idea
is block masks are left out; the sparsity figure shows what a mask saves.
"""

import textwrap

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from plots.figures import style
from plots.figures.records import DENSE, HEADLINE, Results
from plots.figures.style import Theme
from tests.lib.steps import source_of

NAME = "waterfall"

TICKS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000]
BAR = 0.56  # height of a bar, relative to the distance of two bars
LEAST_BAR = 2.5  # points, so that a change by 0 is visible
LABEL, SLOWER = 92, 50  # widths of a bar's label and of "slower" in it: pixels at 100 per inch
TITLES = 2.45  # width of the titles left of the bars, in inches


def data(results: Results) -> dict | None:
    """The speeds of the steps, in order, for each mask, and the step that each is compared with:
    the nearest of those shown that it builds on. None if no step was measured."""
    panels = []
    for mask in DENSE:
        records = [record for record in results.headline(mask) if not source_of(record["step"]).block_masks]
        shown = {record["step"] for record in records}
        steps = []
        for record in records:
            after = source_of(record["step"]).after
            while after and after not in shown:
                after = source_of(after).after
            steps.append(
                {
                    "step": record["step"],
                    "after": after or None,
                    "title": source_of(record["step"]).title,
                    "tflops": record["tflops"],
                }
            )
        if records:
            panels.append({"mask": mask, "ceiling": records[0].get("ceiling_mma_tflops"), "steps": steps})
    return {"figure": NAME, "origin": results.origin(), "panels": panels} if panels else None


def changes(steps: list[dict]) -> list[tuple[float | None, float]]:
    """(speed before, speed) of each step; None before one that builds on nothing."""
    speeds = {step["step"]: step["tflops"] for step in steps}
    return [(speeds.get(step["after"]), step["tflops"]) for step in steps]


def speed_label(before: float | None, speed: float) -> str:
    if before is None:
        return f"{speed:.3g}"
    slower = " slower" if speed < before else ""
    return f"{speed:.3g}\N{EM SPACE}×{speed / before:.2f}{slower}"


def draw_bar(axes: Axes, at: int, before: float | None, speed: float, lines: list[float], theme: Theme) -> None:
    """Draws a bar from the speed before, or from the edge, to that of this step. A label on the left is
    also left of the lines that cross the row."""
    start = axes.get_xlim()[0] if before is None else before
    colour = theme.muted if before is None else theme.gain if speed >= before else theme.loss
    axes.barh(
        at, speed - start, left=start, height=BAR, color=colour, edgecolor=colour, linewidth=LEAST_BAR / 2, zorder=2
    )
    is_loss = before is not None and speed < before
    room = (LABEL + SLOWER * is_loss) * axes.figure.dpi / 100
    first = min(start, speed, *lines)
    left = axes.transData.transform((first, at))[0] - axes.bbox.x0 > room
    axes.annotate(
        speed_label(before, speed),
        (first if left else max(start, speed), at),
        (-5 if left else 5, 0),
        textcoords="offset points",
        fontsize=style.SMALL,
        ha="right" if left else "left",
        va="center",
        color=theme.loss if is_loss else theme.text,
        fontweight="bold" if is_loss else "normal",
    )


def draw_panel(axes: Axes, panel: dict, limits: tuple[float, float], theme: Theme) -> None:
    steps = panel["steps"]
    style.log_ticks(axes, "x", [tick for tick in TICKS if limits[0] <= tick <= limits[1]])
    axes.set_xlim(limits)
    axes.set_ylim(len(steps) - 0.4, -1.0)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    rows = {step["step"]: at for at, step in enumerate(steps)}
    for at, (before, speed) in enumerate(changes(steps)):
        if before is not None:
            axes.plot(
                [before, before],
                [rows[steps[at]["after"]] + BAR / 2, at - BAR / 2],
                color=theme.muted,
                linewidth=1,
                zorder=1,
            )
        lines = [
            other
            for below, (other, _) in enumerate(changes(steps))
            if other is not None and rows[steps[below]["after"]] < at < below
        ]
        draw_bar(axes, at, before, speed, lines, theme)
    if panel["ceiling"]:
        axes.axvline(panel["ceiling"], color=theme.muted, linewidth=1.2, dashes=(4, 3))
        axes.annotate(
            f"mma.sync alone: {panel['ceiling']:.0f}",
            (panel["ceiling"], -0.75),
            (-5, 0),
            textcoords="offset points",
            ha="right",
            va="center",
            fontsize=style.SMALL,
            color=theme.muted,
        )
    axes.set_xlabel("TFLOP/s")
    axes.set_title("no mask" if panel["mask"] == "full" else "causal", fontweight="bold")


def wrapped(step: dict) -> str:
    """The step's number and title, broken into lines."""
    return textwrap.fill(f"{step['step'].removeprefix('step')} {step['title']}", 33)


def draw(found: dict, theme: Theme) -> Figure:
    panels = found["panels"]
    height = 1.75 + 0.44 * max(len(panel["steps"]) for panel in panels)
    figure = style.new_figure(
        height,
        "From step to step",
        f"Forward pass, {HEADLINE['dtype']}, B={HEADLINE['batch']}, H={HEADLINE['heads']}, "
        f"N={HEADLINE['seqlen']}, D={HEADLINE['head_dim']}. {found['origin']}",
    )
    speeds = [step["tflops"] for panel in panels for step in panel["steps"]]
    tops = [panel["ceiling"] or 0 for panel in panels]
    limits = (min(speeds) / 2, 1.25 * max(*speeds, *tops))
    all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
    figure.subplots_adjust(
        left=TITLES / style.WIDTH, right=0.985, wspace=0.07, top=1 - 0.85 / height, bottom=0.52 / height
    )
    for axes, panel in zip(all_axes, panels, strict=True):
        draw_panel(axes, panel, limits, theme)
        names = [wrapped(step) for step in panel["steps"]] if axes is all_axes[0] else []
        axes.set_yticks(
            range(len(names)), names, color=matplotlib.rcParams["text.color"], fontsize=style.SMALL, ha="left"
        )
        axes.tick_params(axis="y", pad=(TITLES - 0.1) * 72)
    return figure
