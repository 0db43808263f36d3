"""The time of block masks over the share of masked entries, with the full mask and FlexAttention.

After a mask's name: how much longer a visited block takes than a block of the full mask. A mask,
the full mask and FlexAttention were measured in interleaved rounds; times are relative to the full
mask's time in the same rounds.
"""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from plots.figures import style
from plots.figures.labels import End, label_ends
from plots.figures.records import Results, density
from plots.figures.style import Theme

NAME = "sparsity"
DTYPE = "fp16"
COLUMNS = 2
RANDOM_BLOCKS = "blocks:"
AIM = 1.25  # goal for the time of a visited block, relative to a block of the full mask


def panel_of(records: list[dict], full_ms: float) -> dict:
    """The data of one shape. Points are [masked share, time / full mask's time]. `per_block` has
    the relative time of a visited block, if the deciles of the rounds show that it is not 1."""
    masks, per_block, flex = {}, {}, {}
    for record in records:
        name, share = record["mask"], record["mask_blocks_active"] / record["mask_blocks"]
        time, *deciles = (1 / record[f"speed_over_full{end}"] for end in ("", "_p90", "_p10"))
        masks[name] = [1 - density(record), time]
        if not deciles[0] <= share <= deciles[1]:
            per_block[name] = time / share
        if "speed_over_flex" in record:
            flex[name] = [masks[name][0], time * record["speed_over_flex"]]
    return {
        "head_dim": records[0]["head_dim"],
        "seqlen": records[0]["seqlen"],
        "full_ms": full_ms,
        "masks": masks,
        "per_block": per_block,
        "flex": flex,
    }


def data(results: Results) -> dict | None:
    """The data of the last step that was measured with random blocks; None if there is none."""
    masked = [record for record in results.steps(dtype=DTYPE) if "speed_over_full" in record]
    drawn = [record for record in masked if record["mask"].startswith(RANDOM_BLOCKS)]
    if not drawn:
        return None
    step, panels = drawn[-1]["step"], []
    # Of runs with a later step the full mask is that of the later one.
    commits = {record["commit"] for record in drawn}
    masked = [record for record in masked if record["step"] == step and record["commit"] in commits]
    for head_dim, seqlen in sorted({(record["head_dim"], record["seqlen"]) for record in masked}):
        shape = {"step": step, "head_dim": head_dim, "seqlen": seqlen, "dtype": DTYPE}
        full = results.select(**shape, mask="full")
        records = [record for record in results.select(**shape) if record in masked]
        if full and any(record["mask"].startswith(RANDOM_BLOCKS) for record in records):
            panels.append(panel_of(records, full[0]["median_ms"]))
    blocks = sorted({(record["mask_block_q"], record["mask_block_kv"]) for record in masked})
    return (
        {"figure": NAME, "step": step, "origin": results.origin(), "blocks": blocks, "panels": panels}
        if panels
        else None
    )


def label_of(mask: str, panel: dict) -> str:
    """The label of a mask: `document:8 +34 %`."""
    if mask not in panel["per_block"]:
        return mask
    return f"{mask} {100 * (panel['per_block'][mask] - 1):+.0f} %"


def marked(panel: dict) -> dict[str, list[float]]:
    """The points to label, by mask; of the random blocks only the sparsest."""
    blocks = {mask: point for mask, point in panel["masks"].items() if mask.startswith(RANDOM_BLOCKS)}
    sparsest = max(blocks, key=lambda mask: blocks[mask])
    return {mask: point for mask, point in panel["masks"].items() if mask not in blocks or mask == sparsest}


def draw_panel(axes: Axes, panel: dict, theme: Theme) -> None:
    colour, beside = theme.gain, theme.loss
    axes.set_title(f"D = {panel['head_dim']}, N = {panel['seqlen']}", fontweight="bold")
    axes.plot([0, 1], [1, 0], color=theme.muted, linewidth=1, linestyle=(0, (2, 2)))
    axes.axhline(1, color=theme.text, linewidth=1.3)
    axes.annotate(
        f"break-even: full mask, {panel['full_ms']:.3g} ms",
        (1, 1),
        (-3, 3),
        textcoords="offset points",
        fontsize=style.SMALL,
        va="bottom",
        ha="right",
    )
    blocks = sorted(point for mask, point in panel["masks"].items() if mask.startswith(RANDOM_BLOCKS))
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
    """The subtitle: four lines that explain the marks."""
    sizes = ", ".join(f"{q} x {kv}" for q, kv in found["blocks"])
    flex = any(panel["flex"] for panel in found["panels"])
    return (
        f"Step {found['step'].removeprefix('step')}, forward pass, {DTYPE}, mask blocks of "
        f"{sizes}.\n{found['origin']}\n"
        "blocks: random ones, at several densities. Dotted: time in proportion to the entries "
        f"left.{' Hollow: FlexAttention.' if flex else ''}\n"
        "%: how much longer a visited block takes than one of the full mask. Bold: over the "
        f"{100 * (AIM - 1):.0f} % aimed at."
    )


def draw(found: dict, theme: Theme) -> Figure:
    panels = found["panels"]
    lines = -(-len(panels) // COLUMNS)
    height = 1.5 + 2.75 * lines
    figure = style.new_figure(height, "What a mask saves", explanation(found))
    grid = figure.subplots(lines, COLUMNS, squeeze=False, sharey=True).ravel()
    figure.subplots_adjust(left=0.075, right=0.82, wspace=0.65, hspace=0.32, top=1 - 1.35 / height, bottom=0.5 / height)
    top = max(point[1] for panel in panels for kind in ("masks", "flex") for point in panel[kind].values())
    for axes, panel in zip(grid, panels, strict=False):
        axes.set_xlim(0, 1)
        axes.set_ylim(0, max(1.2, 1.08 * top))
        draw_panel(axes, panel, theme)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    for axes in grid[max(0, len(panels) - COLUMNS) : len(panels)]:
        axes.set_xlabel("share of entries masked")
    for axes in grid[::COLUMNS]:
        axes.set_ylabel("time over full mask's")
    return figure
