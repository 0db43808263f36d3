"""TFLOP/s over the length of the sequence, of every step and every peer."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

import style
from labels import LINE, End, label_ends
from rows import MASKS, Results, Row, Run
from style import Theme

NAME = "tflops"
DTYPE = "fp16"
ABOVE, BETWEEN, BELOW = 1.15, 0.64, 0.5  # inches around the panels
SERIES = ("beside", "alone")
TOKENS = 16384  # B * N, as the grid has it


def of_panel(run: Run | None, head_dim: int, mask: str, dtype: str = DTYPE) -> list[Row]:
    """The grid's rows of one head dimension and mask."""
    if run is None:
        return []
    return [row for row in run.select(head_dim=head_dim, mask=mask, dtype=dtype, layout="bhnd",
                                      input="normal")
            if row.batch * row.seqlen == TOKENS and row.seqlen == row.seqlen_kv]


def points_of(rows: list[Row]) -> dict[str, dict[int, float]]:
    """TFLOP/s by N, for each contestant by name."""
    points: dict[str, dict[int, float]] = {}
    for row in sorted(rows, key=lambda row: row.seqlen):
        points.setdefault(row.name(), {})[row.seqlen] = row.tflops
    return points


def curves_of(results: Results, head_dim: int, mask: str) -> list[dict]:
    """Steps, then peers; points are [N, TFLOP/s].

    Speeds of two runs are not to be compared: where a step was measured in turns with the peers,
    its points are of that run, and those of the sweep are kept apart as `alone`.
    """
    compared = of_panel(results.compare, head_dim, mask)
    alone, beside = points_of(of_panel(results.sweep, head_dim, mask)), points_of(compared)
    peers = sorted({row.name() for row in compared if row.peer})
    steps = sorted((alone.keys() | beside.keys()) - set(peers))
    return [{"name": name, "peer": name in peers,
             "beside": [list(point) for point in beside.get(name, {}).items()],
             "alone": [[n, speed] for n, speed in alone.get(name, {}).items()
                       if n not in beside.get(name, {})]} for name in (*steps, *peers)]


def data(results: Results) -> dict | None:
    if results.sweep is None:
        return None
    runs = [run for run in (results.sweep, results.compare) if run]
    head_dims = sorted({row.head_dim for run in runs for row in run.rows})
    panels = [{"head_dim": head_dim, "mask": mask, "curves": found}
              for head_dim in head_dims for mask in MASKS
              if (found := curves_of(results, head_dim, mask))]
    if not panels:
        return None
    return {"figure": NAME, "origin": results.origins(),
            "panels": panels}


def draw_curve(axes: Axes, curve: dict, names: dict[str, list[str]], theme: Theme) -> End:
    """Returns where to write its name."""
    index = names["peers" if curve["peer"] else "steps"].index(curve["name"])
    if curve["peer"]:
        look = {"color": theme.peer, "linewidth": 1.4, "marker": ".", "markersize": 4,
                "dashes": style.PEER_DASHES[index % len(style.PEER_DASHES)]}
    else:
        look = {"color": style.step_colour(theme, index), "marker": style.step_marker(index)}
    if curve["beside"]:
        axes.plot(*zip(*curve["beside"], strict=True), **look)
    if curve["alone"]:
        axes.plot(*zip(*curve["alone"], strict=True),
                  **look | {"linewidth": 0 if curve["beside"] else 1}, fillstyle="none")
    return End(*max(curve["beside"] + curve["alone"]), curve["name"], look["color"])


def draw_panel(axes: Axes, panel: dict, names: dict[str, list[str]], lengths: list[int],
               theme: Theme) -> list[End]:
    style.log_ticks(axes, "x", lengths)
    axes.set_xlim(lengths[0] / 1.15, lengths[-1] * 1.1)
    shown = "no mask" if panel["mask"] == "full" else panel["mask"]
    axes.set_title(f"D = {panel['head_dim']}, {shown}", fontweight="bold")
    return [draw_curve(axes, curve, names, theme) for curve in panel["curves"]]


def draw(found: dict, theme: Theme) -> Figure:
    panels = found["panels"]
    every = [curve for panel in panels for curve in panel["curves"]]
    names = {kind: sorted({curve["name"] for curve in every if curve["peer"] == is_peer})
             for kind, is_peer in (("steps", False), ("peers", True))}
    lengths = sorted({length for curve in every for kind in SERIES for length, _ in curve[kind]})
    top = 1.06 * max(speed for curve in every for kind in SERIES for _, speed in curve[kind])
    lines = -(-len(panels) // len(MASKS))
    # Every label has its place beside its panel.
    tall = max(2.0, LINE * max(len(panel["curves"]) for panel in panels))
    height = ABOVE + lines * tall + (lines - 1) * BETWEEN + BELOW
    figure = style.new_figure(
        height, "Speed over the length of the sequence",
        f"Forward pass, {DTYPE}, B·N = {TOKENS}, TFLOP/s of the unmasked entries.\n"
        f"{found['origin']}\n"
        + ("Filled markers: in turns with the peers (dashed). Hollow: measured without them."
           if names["peers"] else "Without peers."))
    grid = figure.subplots(lines, len(MASKS), squeeze=False, sharey=True).ravel()
    figure.subplots_adjust(left=0.075, right=0.915, wspace=0.30, hspace=BETWEEN / tall,
                           top=1 - ABOVE / height, bottom=BELOW / height)
    grid[0].set_ylim(0, top)
    for axes, panel in zip(grid, panels, strict=False):
        label_ends(axes, draw_panel(axes, panel, names, lengths, theme))
    for axes in grid[len(panels):]:
        axes.set_visible(False)
    for axes in grid[-len(MASKS):]:
        axes.set_xlabel("N, queries and keys")
    for axes in grid[::len(MASKS)]:
        axes.set_ylabel("TFLOP/s")
    return figure
