"""The error of every measurement of every step beside the allowed error."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from plots.figures import style
from plots.figures.records import Results, name_of
from plots.figures.style import Theme

NAME = "error"
DTYPES = ("fp16", "bf16")
SCALE = 1e4  # errors are shown in 1e-4


def data(results: Results) -> dict | None:
    """For each step [error, allowed] of every record, in the order of N."""
    panels = []
    for dtype in DTYPES:
        steps: dict[str, list] = {}
        for record in sorted(results.steps(dtype=dtype), key=lambda record: record["seqlen"]):
            steps.setdefault(name_of(record), []).append(
                [record["max_error"], record["allowed_error"]])
        if steps:
            panels.append({"dtype": dtype, "steps": dict(sorted(steps.items()))})
    return {"figure": NAME, "origin": results.origin(), "panels": panels} if panels else None


def draw_panel(axes: Axes, panel: dict, theme: Theme) -> None:
    """A dot for each measurement, a bar for the allowed error."""
    for at, pairs in enumerate(panel["steps"].values()):
        places = [at + 0.5 * ((i + 0.5) / len(pairs) - 0.5) for i in range(len(pairs))]
        axes.plot(places, [SCALE * error for error, _ in pairs], linestyle="", markersize=3,
                  color=style.step_colour(theme, at), marker=style.step_marker(at))
        for allowed in sorted({allowed for _, allowed in pairs}):
            axes.plot([at - 0.36, at + 0.36], [SCALE * allowed] * 2, color=theme.text, linewidth=2)
    top = max(allowed for pairs in panel["steps"].values() for _, allowed in pairs)
    axes.annotate("allowed", (-0.36, SCALE * next(iter(panel["steps"].values()))[0][1]), (0, 3),
                  textcoords="offset points", fontsize=style.SMALL, va="bottom")
    axes.set_xticks(range(len(panel["steps"])), panel["steps"])
    axes.set_xlim(-0.6, len(panel["steps"]) - 0.4)
    axes.set_ylim(0, 1.12 * SCALE * top)
    axes.grid(visible=False, axis="x")
    axes.set_title(f"{panel['dtype']}: all shapes and masks", fontweight="bold")
    axes.set_xlabel("step")


def draw(found: dict, theme: Theme) -> Figure:
    height = 3.9
    figure = style.new_figure(
        height, "How large the error is",
        f"The worst row of O of each measurement. {found['origin']}\n"
        "A dot for each measurement, those of short sequences on the left; bars: what is allowed.")
    grid = figure.subplots(1, len(found["panels"]), squeeze=False)[0]
    figure.subplots_adjust(left=0.075, right=0.98, wspace=0.18, top=1 - 1.0 / height,
                           bottom=0.6 / height)
    for axes, panel in zip(grid, found["panels"], strict=True):
        draw_panel(axes, panel, theme)
    grid[0].set_ylabel("relative error, 10\N{SUPERSCRIPT MINUS}\N{SUPERSCRIPT FOUR}")
    return figure
