"""TFLOP/s over the sequence length: the steps of a chapter and the baselines, before all other steps."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from plots.figures import style
from plots.figures.labels import LINE, End, label_ends
from plots.figures.records import DENSE, QUERIES, Results, name_of
from plots.figures.style import Theme
from tests.lib.steps import source_of

NAME = "tflops"
DTYPE = "fp16"
ABOVE, BETWEEN, BELOW = 1.0, 0.64, 0.5  # inches around the panels


def curves_of(records: list[dict]) -> list[dict]:
    """The curves of the steps, then of the baselines; points are [N, TFLOP/s]."""
    curves: dict[str, dict] = {}
    for record in records:
        curve = curves.setdefault(
            name_of(record), {"name": name_of(record), "baseline": "baseline" in record, "points": []}
        )
        curve["points"].append([record["seqlen"], record["tflops"]])
    return sorted(curves.values(), key=lambda curve: (curve["baseline"], curve["name"]))


def data(results: Results, chapter: list[str], dtype: str = DTYPE) -> dict | None:
    """The data of all steps; None if no step of the chapter was measured."""
    chapter = [step for step in chapter if results.select(step=step, dtype=dtype)]
    head_dims = sorted({record["head_dim"] for record in results.records})
    panels = [
        {"head_dim": head_dim, "mask": mask, "curves": found}
        for head_dim in head_dims
        for mask in DENSE
        if (found := curves_of(results.panel(head_dim, mask, dtype)))
    ]
    return (
        {
            "figure": NAME,
            "chapter": chapter,
            "origin": results.origin(),
            "dtype": dtype,
            "pass": f"{source_of(chapter[0]).kind.capitalize()} pass",
            "panels": panels,
        }
        if panels and chapter
        else None
    )


def is_behind(curve: dict, found: dict) -> bool:
    return not curve["baseline"] and f"step{curve['name']}" not in found["chapter"]


def draw_curve(axes: Axes, curve: dict, found: dict, baselines: list[str], theme: Theme) -> list[End]:
    """Draws a curve. Returns its end and its label, if it has one."""
    if is_behind(curve, found):
        look = {"color": theme.behind, "linewidth": 1.2, "zorder": 1.5}
    elif curve["baseline"]:
        look = {
            "color": theme.baseline,
            "linewidth": 1.4,
            "marker": ".",
            "markersize": 4,
            "dashes": style.BASELINE_DASHES[baselines.index(curve["name"]) % len(style.BASELINE_DASHES)],
        }
    else:
        look = style.look_of(theme, f"step{curve['name']}")
    axes.plot(*zip(*curve["points"], strict=True), **look)
    end = curve["points"][-1]
    low, high = axes.get_ylim()
    if is_behind(curve, found) or not low <= end[1] <= high:
        return []
    return [End(*end, curve["name"], look["color"])]


def draw_panel(axes: Axes, panel: dict, found: dict, lengths: list[int], theme: Theme) -> None:
    style.log_ticks(axes, "x", lengths)
    axes.set_xlim(lengths[0] / 1.15, lengths[-1] * 1.1)
    shown = "no mask" if panel["mask"] == "full" else panel["mask"]
    axes.set_title(f"D = {panel['head_dim']}, {shown}", fontweight="bold")
    baselines = sorted(curve["name"] for curve in panel["curves"] if curve["baseline"])
    label_ends(axes, [end for curve in panel["curves"] for end in draw_curve(axes, curve, found, baselines, theme)])


def speeds_of(curves: list[dict]) -> list[float]:
    return [speed for curve in curves for _, speed in curve["points"]]


def draw(found: dict, theme: Theme) -> Figure:
    panels = found["panels"]
    every = [curve for panel in panels for curve in panel["curves"]]
    own = speeds_of([curve for curve in every if not curve["baseline"] and not is_behind(curve, found)])
    top = max(speeds_of(every))
    lengths = sorted({length for curve in every for length, _ in curve["points"]})
    lines = -(-len(panels) // len(DENSE))
    # A panel is tall enough for a column of all its labels.
    tall = max(2.0, LINE * max(sum(not is_behind(curve, found) for curve in panel["curves"]) for panel in panels))
    height = ABOVE + lines * tall + (lines - 1) * BETWEEN + BELOW
    figure = style.new_figure(
        height,
        f"Speed over the length of the sequence: {style.steps_text(found['chapter'])}",
        f"{found['pass']}, {found['dtype']}, B·N = {QUERIES}, TFLOP/s of the unmasked entries; all in turns.\n"
        f"{found['origin']}. Dashed: baselines."
        + " Grey: other steps."
        * any(is_behind(curve, found) for curve in every),
    )
    grid = figure.subplots(lines, len(DENSE), squeeze=False, sharey=True).ravel()
    figure.subplots_adjust(
        left=0.075, right=0.915, wspace=0.30, hspace=BETWEEN / tall, top=1 - ABOVE / height, bottom=BELOW / height
    )
    if 10 * max(own) < top:
        style.log_ticks(grid[0], "y", [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000])
        grid[0].set_ylim(min(own) / 1.3, 1.2 * top)
    else:
        grid[0].set_ylim(0.9 * min(own), 1.06 * max(own))
    for axes, panel in zip(grid, panels, strict=False):
        draw_panel(axes, panel, found, lengths, theme)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    for axes in grid[-len(DENSE) :]:
        axes.set_xlabel("N, queries and keys")
    for axes in grid[:: len(DENSE)]:
        axes.set_ylabel("TFLOP/s")
    return figure
