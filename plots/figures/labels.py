"""Labels at the ends of curves. Labels of curves that end close together are moved apart."""

from dataclasses import dataclass

from matplotlib.axes import Axes

from plots.figures.style import SMALL

LEADER = 14  # pixels at 100 per inch, from the end of a curve to its label
LINE_HEIGHT = 1.32  # of a line of text, relative to its font size
LINE = SMALL * LINE_HEIGHT / 72  # height of a label, in inches


@dataclass(frozen=True)
class End:
    """The end of a curve, in data coordinates, and its label."""

    x: float
    y: float
    text: str
    colour: str
    bold: bool = False


def spread(wanted: list[float], gap: float, low: float, high: float) -> list[float]:
    """Returns places near the wanted ones, in the same order, at least `gap` apart, in [low, high].
    A place is the mean of two: all labels pushed up as far as needed, and all pushed down."""
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
    """Writes the labels in one column to the right of the axes and of the last curve, each with a
    line to the end of its curve. The limits of the axes must be set before."""
    if not ends:
        return
    figure = axes.figure
    pixel = figure.dpi / 100
    gap = LINE * figure.dpi
    places = axes.transData.transform([(end.x, end.y) for end in ends])
    bottom, top = axes.bbox.y0 + gap / 4, axes.bbox.y1 + gap / 2
    column = max(places[:, 0].max() + LEADER * pixel, axes.bbox.x1 + pixel)
    to_points = 72 / figure.dpi
    for end, (x, y), at in zip(ends, places, spread(list(places[:, 1]), gap, bottom, top), strict=True):
        axes.annotate(
            end.text,
            (end.x, end.y),
            ((column - x) * to_points, (at - y) * to_points),
            textcoords="offset points",
            fontsize=SMALL,
            color=end.colour,
            va="center",
            ha="left",
            fontweight="bold" if end.bold else "normal",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": end.colour,
                "linewidth": 0.8,
                "linestyle": (0, (1, 1.5)),
                "shrinkA": 1,
                "shrinkB": 4,
                "relpos": (0, 0.5),
            },
        )
