"""The style of all pictures: colours, sizes, file formats.

A picture is 800 pixels wide, as on a page of GitHub; no text is smaller than SMALL. It has no
background, because dark pages differ in theirs. Colour-blind readers can distinguish the colours, and
labels and markers give the same information.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tests.lib.steps import every_step

matplotlib.use("Agg")

WIDTH = 8.0  # inches, at 100 pixels per inch
PNG_DPI = 200  # twice that, for screens of high density
SMALL, NORMAL, LARGE = 8.5, 9.5, 12.0  # points
# Matplotlib comes with the first; the others, for readers without it, are not wider.
FONTS = ["DejaVu Sans", "Verdana", "Arial", "sans-serif"]

NEUTRAL = "#808080"  # for text on a page that may be white or black
# SVGs keep text as text, and the same data give the same bytes.
REPRODUCIBLE = {"svg.fonttype": "none", "svg.hashsalt": "plots"}


@dataclass(frozen=True)
class Theme:
    """Colours on a light or dark page: `steps` for the steps in turn, `behind` for those of other
    chapters, `baseline` for all baselines."""

    name: str
    text: str
    muted: str
    grid: str
    steps: tuple[str, ...]
    behind: str
    baseline: str
    gain: str
    loss: str


THEMES = (
    Theme(
        "light",
        text="#1f2328",
        muted="#59636e",
        grid="#d9dee3",
        steps=(
            "#dd1111",
            "#000099",
            "#007700",
            "#bb44aa",
            "#332200",
            "#5566ee",
            "#881133",
            "#6600bb",
            "#440055",
            "#0000ff",
            "#aa6600",
        ),
        behind="#c4cad0",
        baseline="#59636e",
        gain="#0a6ebd",
        loss="#b3400a",
    ),
    Theme(
        "dark",
        text="#e6edf3",
        muted="#9aa4ae",
        grid="#2b323a",
        steps=(
            "#ff6677",
            "#6688ff",
            "#00aa00",
            "#ff11ee",
            "#ccbb00",
            "#ccddff",
            "#ff99ff",
            "#00ddaa",
            "#ccff99",
            "#00ff00",
            "#ffaa33",
        ),
        behind="#4a525a",
        baseline="#9aa4ae",
        gain="#58b4ff",
        loss="#ff9a5c",
    ),
)
MARKERS = "osD^vPXp<*>h"  # one more than there are colours, so that pairs of both repeat late
BASELINE_DASHES = ((4, 1.5), (1, 1.2), (4, 1.5, 1, 1.5), (7, 2), (2, 2))


def look_of(theme: Theme, step: str) -> dict[str, str]:
    """Colour and marker of a step, which are the same in every figure. No other of the first 132 steps
    has both, and none of the next ten has one of them."""
    index = every_step().index(step)
    return {"color": theme.steps[index % len(theme.steps)], "marker": MARKERS[index % len(MARKERS)]}


def steps_text(steps: list[str]) -> str:
    """The first and the last, as in a title."""
    first, last = steps[0].removeprefix("step"), steps[-1].removeprefix("step")
    if first == last:
        return f"step {first}"
    return f"steps {first} {'and' if len(steps) == 2 else 'to'} {last}"


def settings(theme: Theme) -> dict[str, object]:
    """The settings of a theme for matplotlib.rc_context()."""
    return {
        **REPRODUCIBLE,
        "font.family": "sans-serif",
        "font.sans-serif": FONTS,
        "font.size": NORMAL,
        "axes.titlesize": NORMAL,
        "axes.labelsize": NORMAL,
        "xtick.labelsize": SMALL,
        "ytick.labelsize": SMALL,
        "figure.facecolor": "none",
        "axes.facecolor": "none",
        "savefig.facecolor": "none",
        "text.color": theme.text,
        "axes.labelcolor": theme.text,
        "axes.titlecolor": theme.text,
        "axes.edgecolor": theme.muted,
        "xtick.color": theme.muted,
        "ytick.color": theme.muted,
        "axes.grid": True,
        "grid.color": theme.grid,
        "grid.linewidth": 0.7,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlelocation": "left",
        "lines.linewidth": 1.8,
        "lines.markersize": 4.5,
    }


def new_figure(height: float, title: str, subtitle: str) -> Figure:
    """A figure with a title and a subtitle; `height` is in inches."""
    figure = Figure(figsize=(WIDTH, height))
    figure.text(0.012, 1 - 0.1 / height, title, fontsize=LARGE, fontweight="bold", va="top")
    figure.text(0.012, 1 - 0.36 / height, subtitle, fontsize=SMALL, va="top", color=matplotlib.rcParams["xtick.color"])
    return figure


def log_ticks(axes: Axes, which: str, ticks: list[float]) -> None:
    """Makes an axis logarithmic, with plain numbers at `ticks` only."""
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(matplotlib.ticker.FixedLocator(ticks))
    axis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(matplotlib.ticker.NullLocator())


def save(figure: Figure, directory: Path, name: str, data: dict, kinds: tuple[str, ...]) -> None:
    """Writes name.KIND for each of `kinds`, svg or png; the SVG's description is `data` as JSON."""
    about = {
        "svg": {
            "metadata": {"Date": None, "Creator": None, "Title": name, "Description": json.dumps(data, sort_keys=True)}
        },
        "png": {"dpi": PNG_DPI, "metadata": {"Software": None, "Title": name}},
    }
    directory.mkdir(parents=True, exist_ok=True)
    for kind in kinds:
        figure.savefig(directory / f"{name}.{kind}", **about[kind])
