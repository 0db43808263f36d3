"""The time of block masks over how much they mask, beside the full mask and FlexAttention."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

import style
from labels import End, label_ends
from rows import Results, Row, Run
from style import Theme

NAME = "sparsity"
DTYPE = "fp16"
COLUMNS = 2
RANDOM_BLOCKS = "blocks:"


def shape_of(row: Row) -> tuple[int, int]:
    return row.head_dim, row.seqlen


def full_times(run: Run, step: str) -> dict[tuple[int, int], float]:
    """Of the step with the full mask, in ms, by shape."""
    return {shape_of(row): row.median_ms for row in run.select(step=step, mask="full", dtype=DTYPE)}


def points_of(run: Run | None, of_full: str, **contestant: str) -> dict[tuple[int, int], dict]:
    """By shape and mask: [share that is masked, time over `of_full`'s full mask in this run]."""
    points: dict[tuple[int, int], dict] = {}
    if run is not None:
        full = full_times(run, of_full)
        for row in run.select(dtype=DTYPE, **contestant):
            if row.mask != "full" and shape_of(row) in full:
                points.setdefault(shape_of(row), {})[row.mask] = [
                    1 - row.density(), row.median_ms / full[shape_of(row)]]
    return points


def data(results: Results) -> dict | None:
    """Of the last step that took random blocks."""
    steps = [row.step for row in (results.sweep.rows if results.sweep else [])
             if row.mask.startswith(RANDOM_BLOCKS)]
    if not steps:
        return None
    step = max(steps)
    full = full_times(results.sweep, step)
    ours = points_of(results.sweep, step, step=step)
    # Beside a peer stands what was measured in turns with it.
    for shape, points in points_of(results.compare, step, step=step).items():
        ours.setdefault(shape, {}).update(points)
    flex = points_of(results.compare, step, peer="FlexAttention")
    panels = [{"head_dim": head_dim, "seqlen": seqlen, "full_ms": full[head_dim, seqlen],
               "masks": masks, "flex": {mask: point for mask, point
                                        in flex.get((head_dim, seqlen), {}).items()
                                        if mask in masks}}
              for (head_dim, seqlen), masks in sorted(ours.items())
              if any(mask.startswith(RANDOM_BLOCKS) for mask in masks)]
    if not panels:
        return None
    return {"figure": NAME, "origin": results.origins(), "step": step,
            "blocks": sorted({(row.mask_block_q, row.mask_block_kv) for row
                              in results.sweep.select(step=step, dtype=DTYPE)
                              if row.mask_block_q}), "panels": panels}


def draw_panel(axes: Axes, panel: dict, theme: Theme) -> None:
    colour, beside = theme.gain, theme.loss
    axes.set_title(f"D = {panel['head_dim']}, N = {panel['seqlen']}", fontweight="bold")
    axes.plot([0, 1], [1, 0], color=theme.muted, linewidth=1, linestyle=(0, (2, 2)))
    axes.axhline(1, color=theme.text, linewidth=1.3)
    axes.annotate(f"break-even: full mask, {panel['full_ms']:.3g} ms", (1, 1), (-3, -4),
                  textcoords="offset points", fontsize=style.SMALL, va="top", ha="right")
    blocks = sorted(point for mask, point in panel["masks"].items()
                    if mask.startswith(RANDOM_BLOCKS))
    axes.plot(*zip(*blocks, strict=True), color=colour, marker="o", markersize=3.5)
    ends = [End(*blocks[-1], "blocks", colour)]
    for mask, point in panel["masks"].items():
        if not mask.startswith(RANDOM_BLOCKS):
            axes.plot(*point, color=colour, marker="s", markersize=5.5)
            ends.append(End(*point, mask, colour))
        if mask in panel["flex"]:
            theirs = panel["flex"][mask]
            axes.plot([point[0], theirs[0]], [point[1], theirs[1]], color=beside, linewidth=1)
            axes.plot(*theirs, color=beside, marker="D", fillstyle="none", markersize=6)
    label_ends(axes, ends)


def explanation(found: dict) -> str:
    """Two lines on what the marks are."""
    number = found["step"].removeprefix("step")
    sizes = [f"mask blocks of {q} x {kv}" for q, kv in found["blocks"]]
    flex = any(panel["flex"] for panel in found["panels"])
    facts = ", ".join([f"Step {number}", "forward pass", DTYPE, *sizes])
    return (f"{facts}. {found['origin']}\n"
            "blocks: random ones, at several densities. Dotted: time in proportion to the entries "
            f"left.{' Hollow: FlexAttention.' if flex else ''}")


def draw(found: dict, theme: Theme) -> Figure:
    panels = found["panels"]
    lines = -(-len(panels) // COLUMNS)
    height = 1.15 + 2.75 * lines
    figure = style.new_figure(height, "What a mask saves", explanation(found))
    grid = figure.subplots(lines, COLUMNS, squeeze=False).ravel()
    figure.subplots_adjust(left=0.075, right=0.86, wspace=0.46, hspace=0.32,
                           top=1 - 1.0 / height, bottom=0.5 / height)
    top = max(point[1] for panel in panels for kind in ("masks", "flex")
              for point in panel[kind].values())
    for axes, panel in zip(grid, panels, strict=False):
        axes.set_xlim(0, 1)
        axes.set_ylim(0, max(1.2, 1.08 * top))
        draw_panel(axes, panel, theme)
    for axes in grid[len(panels):]:
        axes.set_visible(False)
    for axes in grid[max(0, len(panels) - COLUMNS):len(panels)]:
        axes.set_xlabel("share of entries masked")
    for axes in grid[::COLUMNS]:
        axes.set_ylabel("time over full mask's")
    return figure
