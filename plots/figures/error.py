"""The error of every step beside what it is allowed: of all that was measured, and over N."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from plots.figures import style
from plots.figures.labels import End, label_ends
from plots.figures.records import HEADLINE, QUERIES, Results, name_of
from plots.figures.style import Theme

NAME = "error"
HEAD_DIM = HEADLINE["head_dim"]
DTYPES = ("fp16", "bf16")
SCALE = 1e4  # errors are shown in 1e-4


def trails(records: list[dict]) -> list[dict]:
    """Error over N of each step, at one head dimension without a mask; steps that agree in every
    point share a trail."""
    by_step: dict[str, list] = {}
    for record in records:
        by_step.setdefault(name_of(record), []).append(
            [record["seqlen"], record["max_error"], record["allowed_error"]])
    shared: list[dict] = []
    for name, points in sorted(by_step.items()):
        for trail in shared:
            if trail["points"] == points:
                trail["names"].append(name)
                break
        else:
            shared.append({"names": [name], "points": points})
    return shared


def data(results: Results) -> dict | None:
    """`worst`: for each step [error, allowed] of every record."""
    panels = []
    for dtype in DTYPES:
        worst: dict[str, list] = {}
        for record in results.steps(dtype=dtype):
            worst.setdefault(name_of(record), []).append(
                [record["max_error"], record["allowed_error"]])
        if worst:
            panels.append({"dtype": dtype, "worst": worst, "trails": trails(
                [record for record in results.panel(HEAD_DIM, "full", dtype) if "step" in record])})
    return {"figure": NAME, "origin": results.origin(), "panels": panels} if panels else None


def in_short(names: list[str], order: list[str]) -> str:
    """01, 02 or 03–05: three and more that follow each other in `order` become a range."""
    groups: list[list[str]] = []
    for name in names:
        if groups and order.index(name) == order.index(groups[-1][-1]) + 1:
            groups[-1].append(name)
        else:
            groups.append([name])
    return ", ".join(f"{group[0]}\N{EN DASH}{group[-1]}" if len(group) > 2 else ", ".join(group)
                     for group in groups)


def draw_worst(axes: Axes, panel: dict, theme: Theme) -> None:
    """A dot for each measurement, beside each other as they come; a bar for what is allowed."""
    for at, (name, pairs) in enumerate(panel["worst"].items()):
        colour = style.step_colour(theme, at)
        places = [at + 0.5 * ((i + 0.5) / len(pairs) - 0.5) for i in range(len(pairs))]
        axes.plot(places, [SCALE * error for error, _ in pairs], linestyle="", color=colour,
                  marker=style.step_marker(at), markersize=3)
        for allowed in sorted({allowed for _, allowed in pairs}):
            axes.plot([at - 0.36, at + 0.36], [SCALE * allowed] * 2, color=theme.text, linewidth=2)
    axes.annotate("allowed", (-0.36, SCALE * next(iter(panel["worst"].values()))[0][1]), (0, 3),
                  textcoords="offset points", fontsize=style.SMALL, va="bottom")
    axes.set_xticks(range(len(panel["worst"])), [f"{name}\n{len(pairs)}" for name, pairs
                                                 in panel["worst"].items()])
    axes.set_xlim(-0.6, len(panel["worst"]) - 0.4)
    axes.grid(visible=False, axis="x")
    axes.set_title(f"{panel['dtype']}: all shapes and masks", fontweight="bold")
    axes.set_ylabel("relative error, 10\N{SUPERSCRIPT MINUS}\N{SUPERSCRIPT FOUR}")


def draw_trails(axes: Axes, panel: dict, order: list[str], theme: Theme) -> None:
    axes.set_title(f"{panel['dtype']}: no mask, D = {HEAD_DIM}", fontweight="bold")
    lengths = sorted({point[0] for trail in panel["trails"] for point in trail["points"]})
    style.log_ticks(axes, "x", lengths)
    if not lengths:
        return
    axes.set_xlim(lengths[0] / 1.15, lengths[-1] * 1.1)
    ends = []
    for trail in panel["trails"]:
        x, errors, _ = zip(*trail["points"], strict=True)
        index = order.index(trail["names"][0])
        colour = style.step_colour(theme, index)
        axes.plot(x, [SCALE * error for error in errors], color=colour,
                  marker=style.step_marker(index))
        ends.append(End(x[-1], SCALE * errors[-1], in_short(trail["names"], order), colour))
    allowed = sorted({(n, limit) for trail in panel["trails"] for n, _, limit in trail["points"]})
    axes.plot([n for n, _ in allowed], [SCALE * limit for _, limit in allowed], color=theme.text,
              linewidth=2)
    ends.append(End(allowed[-1][0], SCALE * allowed[-1][1], "allowed", theme.text))
    label_ends(axes, ends)


def draw(found: dict, theme: Theme) -> Figure:
    panels = found["panels"]
    height = 1.15 + 2.75 * len(panels)
    figure = style.new_figure(
        height, "How far from the exact answer",
        f"The worst row of O of each measurement, B·N = {QUERIES} where N varies. "
        f"{found['origin']}\n"
        "Left: a dot for each measurement, bars for what is allowed; below a step, its number "
        "of measurements.")
    grid = figure.subplots(len(panels), 2, squeeze=False)
    figure.subplots_adjust(left=0.075, right=0.88, wspace=0.22, hspace=0.45,
                           top=1 - 1.0 / height, bottom=0.6 / height)
    for (left, right), panel in zip(grid, panels, strict=True):
        top = max(limit for pairs in panel["worst"].values() for pair in pairs for limit in pair)
        for axes in (left, right):
            axes.set_ylim(0, 1.12 * SCALE * top)
        draw_worst(left, panel, theme)
        draw_trails(right, panel, list(panel["worst"]), theme)
    for axes, label in zip(grid[-1], ("step", "N, queries and keys"), strict=True):
        axes.set_xlabel(label)
    return figure
