"""Labels at the ends of curves, moved apart where curves end close together."""

from dataclasses import dataclass

from matplotlib.axes import Axes

from plots.figures.style import SMALL

LEADER = 14  # pixels at 100 an inch, from the end of a curve to its label
LINE_HEIGHT = 1.32  # of a line of text, in sizes of its font
LINE = SMALL * LINE_HEIGHT / 72  # inches that a label takes


@dataclass(frozen=True)
class End:
    """Where a curve ends, in data coordinates, and what is said there."""

    x: float
    y: float
    text: str
    colour: str
    bold: bool = False


def spread(wanted: list[float], gap: float, low: float, high: float) -> list[float]:
    """Places near the wanted ones, in their order, at least `gap` apart, in [low, high]: halfway
    between pushing every label up as far as needed, and down."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    count, places = len(order), [0.0] * len(wanted)
    up, down = [wanted[i] for i in order], [wanted[i] for i in order]
    for i in range(count):
        up[i] = max(up[i], up[i - 1] + gap if i else low)
        down[-1 - i] = min(down[-1 - i], down[-i] - gap if i else high)
    for rank, i in enumerate(order):
        lowest, highest = low + gap * rank, high - gap * (count - 1 - rank)
        places[i] = (min(up[rank], highest) + max(down[rank], lowest)) / 2
    return places


def label_ends(axes: Axes, ends: list[End]) -> None:
    """Writes each label right of the axes' data, on a line to its curve's end.

    The limits of the axes must stand. All labels begin in one column, right of the last
    curve and of the axes.
    """
    if not ends:
        return
    figure = axes.figure
    pixel = figure.dpi / 100
    gap = LINE * figure.dpi
    places = axes.transData.transform([(end.x, end.y) for end in ends])
    bottom, top = axes.bbox.y0 + gap / 4, axes.bbox.y1 + gap / 2
    column = max(places[:, 0].max() + LEADER * pixel, axes.bbox.x1 + pixel)
    to_points = 72 / figure.dpi
    for end, (x, y), at in zip(ends, places, spread(list(places[:, 1]), gap, bottom, top),
                               strict=True):
        axes.annotate(
            end.text, (end.x, end.y), ((column - x) * to_points, (at - y) * to_points),
            textcoords="offset points", fontsize=SMALL, color=end.colour, va="center", ha="left",
            fontweight="bold" if end.bold else "normal",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": end.colour, "linewidth": 0.8,
                        "linestyle": (0, (1, 1.5)), "shrinkA": 1, "shrinkB": 4,
                        "relpos": (0, 0.5)})
