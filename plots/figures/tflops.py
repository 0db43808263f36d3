"""TFLOP/s over the sequence length, for every step and every baseline."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from plots.figures import style
from plots.figures.labels import LINE, End, label_ends
from plots.figures.records import DENSE, QUERIES, Results, name_of
from plots.figures.style import Theme

NAME = "tflops"
DTYPE = "fp16"
ABOVE, BETWEEN, BELOW = 1.0, 0.64, 0.5  # inches around the panels


def curves_of(records: list[dict]) -> list[dict]:
    """The curves of the steps, then of the baselines; points are [N, TFLOP/s]."""
    curves: dict[str, dict] = {}
    for record in records:
        curve = curves.setdefault(name_of(record), {
            "name": name_of(record), "baseline": "baseline" in record, "points": []})
        curve["points"].append([record["seqlen"], record["tflops"]])
    return sorted(curves.values(), key=lambda curve: (curve["baseline"], curve["name"]))


def data(results: Results) -> dict | None:
    head_dims = sorted({record["head_dim"] for record in results.records})
    panels = [{"head_dim": head_dim, "mask": mask, "curves": found}
              for head_dim in head_dims for mask in DENSE
              if (found := curves_of(results.panel(head_dim, mask, DTYPE)))]
    return {"figure": NAME, "origin": results.origin(), "panels": panels} if panels else None


def draw_curve(axes: Axes, curve: dict, names: dict[bool, list[str]], theme: Theme) -> End:
    """Draws a curve. Returns its end and its label."""
    index = names[curve["baseline"]].index(curve["name"])
    if curve["baseline"]:
        look = {"color": theme.baseline, "linewidth": 1.4, "marker": ".", "markersize": 4,
                "dashes": style.BASELINE_DASHES[index % len(style.BASELINE_DASHES)]}
    else:
        look = {"color": style.step_colour(theme, index), "marker": style.step_marker(index)}
    axes.plot(*zip(*curve["points"], strict=True), **look)
    return End(*curve["points"][-1], curve["name"], look["color"])


def draw_panel(axes: Axes, panel: dict, names: dict[bool, list[str]], lengths: list[int],
               theme: Theme) -> list[End]:
    style.log_ticks(axes, "x", lengths)
    axes.set_xlim(lengths[0] / 1.15, lengths[-1] * 1.1)
    shown = "no mask" if panel["mask"] == "full" else panel["mask"]
    axes.set_title(f"D = {panel['head_dim']}, {shown}", fontweight="bold")
    return [draw_curve(axes, curve, names, theme) for curve in panel["curves"]]


def draw(found: dict, theme: Theme) -> Figure:
    panels = found["panels"]
    every = [curve for panel in panels for curve in panel["curves"]]
    names = {is_baseline: sorted({curve["name"] for curve in every
                                  if curve["baseline"] == is_baseline})
             for is_baseline in (False, True)}
    lengths = sorted({length for curve in every for length, _ in curve["points"]})
    top = 1.06 * max(speed for curve in every for _, speed in curve["points"])
    lines = -(-len(panels) // len(DENSE))
    # A panel is tall enough for a column of all its labels.
    tall = max(2.0, LINE * max(len(panel["curves"]) for panel in panels))
    height = ABOVE + lines * tall + (lines - 1) * BETWEEN + BELOW
    figure = style.new_figure(
        height, "Speed over the length of the sequence",
        f"Forward pass, {DTYPE}, B·N = {QUERIES}, TFLOP/s of the unmasked entries; all in turns.\n"
        f"{found['origin']}{'. Dashed: baselines.' if names[True] else ''}")
    grid = figure.subplots(lines, len(DENSE), squeeze=False, sharey=True).ravel()
    figure.subplots_adjust(left=0.075, right=0.915, wspace=0.30, hspace=BETWEEN / tall,
                           top=1 - ABOVE / height, bottom=BELOW / height)
    grid[0].set_ylim(0, top)
    for axes, panel in zip(grid, panels, strict=False):
        label_ends(axes, draw_panel(axes, panel, names, lengths, theme))
    for axes in grid[len(panels):]:
        axes.set_visible(False)
    for axes in grid[-len(DENSE):]:
        axes.set_xlabel("N, queries and keys")
    for axes in grid[::len(DENSE)]:
        axes.set_ylabel("TFLOP/s")
    return figure
