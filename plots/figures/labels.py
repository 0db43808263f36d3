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
    """Places nearest to the wanted ones, in their order, at least `gap` apart, in [low, high].

    Places that would be closer form a group, which lies as near to what its members want as it can.
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    groups: list[tuple[float, list[int]]] = []  # lowest place, members
    for i in order:
        members = [i]
        start = wanted[i]
        while True:
            span = gap * (len(members) - 1)
            start = max(low, min(start, high - span))
            if not groups or groups[-1][0] + gap * len(groups[-1][1]) <= start:
                break
            members = groups.pop()[1] + members
            start = sum(wanted[k] - gap * rank for rank, k in enumerate(members)) / len(members)
        groups.append((start, members))
    places = [0.0] * len(wanted)
    for start, members in groups:
        for rank, i in enumerate(members):
            places[i] = start + gap * rank
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
