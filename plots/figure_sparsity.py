"""The time of block masks over how much they mask, beside the full mask and FlexAttention.

Behind a mask's name: how much longer a block that is visited takes than one of the full mask. Ours
are all of the sweep; FlexAttention is as far from them as it was when it took turns with the step.
"""

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
AIM = 1.25  # at most this many times as long should a visited block take as one of the full mask


def shape_of(row: Row) -> tuple[int, int]:
    return row.head_dim, row.seqlen


def full_rows(run: Run, step: str) -> dict[tuple[int, int], Row]:
    """Of the step with the full mask, by shape."""
    return {shape_of(row): row for row in run.select(step=step, mask="full", dtype=DTYPE)}


def points_of(run: Run, step: str) -> dict[tuple[int, int], dict[str, list[float]]]:
    """By shape and mask: [share that is masked, time over the full mask's]."""
    points: dict[tuple[int, int], dict[str, list[float]]] = {}
    full = full_rows(run, step)
    for row in run.select(step=step, dtype=DTYPE):
        if row.mask != "full" and shape_of(row) in full:
            points.setdefault(shape_of(row), {})[row.mask] = [
                1 - row.density(), row.median_ms / full[shape_of(row)].median_ms]
    return points


def times_of_flex(run: Run | None, step: str) -> dict[tuple[int, int], dict[str, float]]:
    """FlexAttention's times over those of the step, which took turns with it, by shape and mask."""
    times: dict[tuple[int, int], dict[str, float]] = {}
    for row in run.select(step=step, dtype=DTYPE) if run else []:
        if row.speed_over_flex:
            times.setdefault(shape_of(row), {})[row.mask] = row.speed_over_flex
    return times


def times_of_blocks(run: Run, step: str) -> dict[tuple[int, int], dict[str, float]]:
    """Of a visited block over that of the full mask, by shape and mask: where it is another, by
    more than samples differ - the middle eight tenths of theirs do not meet."""
    times: dict[tuple[int, int], dict[str, float]] = {}
    full = full_rows(run, step)
    for row in run.select(step=step, dtype=DTYPE):
        one = full.get(shape_of(row))
        if one and row.mask_blocks and row.mask_blocks_active:
            share = row.mask_blocks_active / row.mask_blocks
            if row.p10_ms > share * one.p90_ms or row.p90_ms < share * one.p10_ms:
                times.setdefault(shape_of(row), {})[row.mask] = (row.median_ms / one.median_ms
                                                                 / share)
    return times


def data(results: Results) -> dict | None:
    """Of the last step that took random blocks."""
    steps = [row.step for row in (results.sweep.rows if results.sweep else [])
             if row.mask.startswith(RANDOM_BLOCKS)]
    if not steps:
        return None
    step = max(steps)
    full = full_rows(results.sweep, step)
    ours = points_of(results.sweep, step)
    per_block = times_of_blocks(results.sweep, step)
    flex = times_of_flex(results.compare, step)
    panels = [{"head_dim": shape[0], "seqlen": shape[1], "full_ms": full[shape].median_ms,
               "masks": masks, "per_block": per_block.get(shape, {}),
               "flex": {mask: [masks[mask][0], masks[mask][1] * times]
                        for mask, times in flex.get(shape, {}).items() if mask in masks}}
              for shape, masks in sorted(ours.items())
              if any(mask.startswith(RANDOM_BLOCKS) for mask in masks)]
    if not panels:
        return None
    beside = any(panel["flex"] for panel in panels)
    return {"figure": NAME, "step": step,
            "origin": results.origins() if beside else results.sweep.origin(),
            "blocks": sorted({(row.mask_block_q, row.mask_block_kv) for row
                              in results.sweep.select(step=step, dtype=DTYPE)
                              if row.mask_block_q}), "panels": panels}


def label_of(mask: str, panel: dict) -> str:
    """`document:8 +34 %`"""
    if mask not in panel["per_block"]:
        return mask
    return f"{mask} {100 * (panel['per_block'][mask] - 1):+.0f} %"


def marked(panel: dict) -> dict[str, list[float]]:
    """The points that have a label, by mask: of the random blocks the sparsest."""
    blocks = {mask: point for mask, point in panel["masks"].items()
              if mask.startswith(RANDOM_BLOCKS)}
    sparsest = max(blocks, key=lambda mask: blocks[mask])
    return {mask: point for mask, point in panel["masks"].items()
            if mask not in blocks or mask == sparsest}


def labels(found: dict) -> list[str]:
    """All that is written beside points."""
    return [label_of(mask, panel) for panel in found["panels"] for mask in marked(panel)]


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
    for mask, point in panel["masks"].items():
        if not mask.startswith(RANDOM_BLOCKS):
            axes.plot(*point, color=colour, marker="s", markersize=5.5)
        if mask in panel["flex"]:
            theirs = panel["flex"][mask]
            axes.plot(*zip(point, theirs, strict=True), color=beside, linewidth=1)
            axes.plot(*theirs, color=beside, marker="D", fillstyle="none", markersize=6)
    ends = []
    for mask, point in marked(panel).items():
        missed = panel["per_block"].get(mask, 1) > AIM
        ends.append(End(*point, label_of(mask, panel), colour, missed))
    label_ends(axes, ends)


def explanation(found: dict) -> str:
    """Four lines on what the marks are."""
    number = found["step"].removeprefix("step")
    sizes = [f"mask blocks of {q} x {kv}" for q, kv in found["blocks"]]
    flex = any(panel["flex"] for panel in found["panels"])
    facts = ", ".join([f"Step {number}", "forward pass", DTYPE, *sizes])
    return (f"{facts}.\n{found['origin']}\n"
            "blocks: random ones, at several densities. Dotted: time in proportion to the entries "
            f"left.{' Hollow: FlexAttention.' if flex else ''}\n"
            "%: how much longer a visited block takes than one of the full mask. Bold: over the "
            f"{100 * (AIM - 1):.0f} % aimed at.")


def draw(found: dict, theme: Theme) -> Figure:
    panels = found["panels"]
    lines = -(-len(panels) // COLUMNS)
    height = 1.5 + 2.75 * lines
    figure = style.new_figure(height, "What a mask saves", explanation(found))
    grid = figure.subplots(lines, COLUMNS, squeeze=False, sharey=True).ravel()
    figure.subplots_adjust(left=0.075, right=0.835, wspace=0.6, hspace=0.32,
                           top=1 - 1.35 / height, bottom=0.5 / height)
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
