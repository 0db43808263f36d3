"""Writes SVG as text: one file for light and dark pages, with hatching for the kinds of memory.

A picture has no background. Its style sheet has a colour for each scheme, and nothing is said by
colour alone. Text has SMALL units at least; a unit is a pixel unless the page scales the picture.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from xml.sax.saxutils import escape

import numpy as np

SMALL, NORMAL, LARGE = 12, 13, 15  # sizes of text
LETTER = 0.62  # width of an average letter of DejaVu Sans or Verdana, relative to its size
FONTS = "Verdana,'DejaVu Sans',Arial,Helvetica,sans-serif"

COLOURS = {  # (light, dark)
    "ink": ("#1f2328", "#e6edf3"),
    "muted": ("#59636e", "#9aa4ae"),
    "mark": ("#a8330a", "#ff9a5c"),
    "faint": ("#c3cad1", "#444c56"),  # lines that only guide the eye
    "q": ("#cfe3f7", "#17395c"),
    "k": ("#fbdcbd", "#5a3513"),
    "v": ("#d5ecca", "#22481f"),
    "s": ("#e7dbf5", "#43305f"),
    "o": ("#f8d5da", "#5f2a35"),
    "n": ("#e9edf1", "#272e37"),
}
PLAIN = (
    f"text{{font:{NORMAL}px {FONTS}}}.small{{font-size:{SMALL}px}}.bold{{font-weight:bold}}"
    f".large{{font-size:{LARGE}px;font-weight:bold}}.huge{{font-size:44px;font-weight:bold}}"
    ".line{stroke-width:1.2}.thick{stroke-width:2.6}.none{fill:none}"
    ".dash{stroke-dasharray:5 3}.hatch{stroke-width:1.1;stroke-opacity:.55}"
    ".arrow{fill:none;stroke-width:1.5;marker-end:url(#arrow)}.dot{fill-opacity:.75}"
)
COLOURED = Template(
    "text,.ink,.dot{fill:$ink}.muted{fill:$muted}.mark{fill:$mark}.q{fill:$q}"
    ".k{fill:$k}.v{fill:$v}.s{fill:$s}.o{fill:$o}.n{fill:$n}.thick{stroke:$mark}"
    ".line,.stroke,.arrow,.hatch{stroke:$ink}.thin{stroke:$muted}"
    ".faint{stroke:$faint}"
)
HATCHES = {  # what a tile lies in, or how often it was visited
    "shared": '<pattern id="shared" width="7" height="7" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><path d="M1 0v7" class="hatch"/></pattern>',
    "registers": '<pattern id="registers" width="7" height="7" patternUnits="userSpaceOnUse">'
    '<circle cx="2" cy="2" r="1.2" class="dot"/></pattern>',
    "busy": '<pattern id="busy" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(-45)"><path d="M1 0v6" class="hatch"/></pattern>',
}
ARROW = (
    '<marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
    'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0.5L8 4L0 7.5z" class="ink"/>'
    "</marker>"
)


def style_sheet() -> str:
    light, dark = (COLOURED.substitute({name: pair[scheme] for name, pair in COLOURS.items()}) for scheme in (0, 1))
    return f"{PLAIN}{light}@media (prefers-color-scheme: dark){{{dark}}}"


def number(value: float) -> str:
    """At most one digit after the point, which is finer than any screen."""
    text = f"{value:.1f}"
    return "0" if text == "-0.0" else text.removesuffix(".0")


def text_width(text: str, size: float = NORMAL) -> float:
    """An estimate, rather too wide."""
    return sum((0.36 if letter in " .,:;'|!il()[]" else LETTER) for letter in text) * size + 2


def outline(entries: np.ndarray) -> str:
    """A path around the true entries of a matrix, in units of entries."""
    padded = np.pad(entries.astype(np.int8), 1)
    ends: dict[tuple[int, int], list[tuple[int, int]]] = {}  # of edges, true entries on the right

    def add_edges(steps: np.ndarray, vertical: bool) -> None:
        for at, line in enumerate(steps):
            for sign in (1, -1):
                bounds = np.flatnonzero(np.diff(np.pad((line == sign).astype(np.int8), 1)))
                for pair in bounds.reshape(-1, 2).tolist():
                    start, end = (
                        (at, place) if vertical else (place, at)
                        for place in (pair if (sign == 1) != vertical else pair[::-1])
                    )
                    ends.setdefault(start, []).append(end)

    add_edges(np.diff(padded, axis=0)[:, 1:-1], vertical=False)
    add_edges(np.diff(padded, axis=1)[1:-1].T, vertical=True)
    data = []
    while ends:
        at = min(ends)
        data.append(f"M{at[0]} {at[1]}")
        while at in ends:
            end = ends[at].pop()
            if not ends[at]:
                del ends[at]
            data.append(f"h{end[0] - at[0]}" if end[1] == at[1] else f"v{end[1] - at[1]}")
            at = end
        data[-1] = "z"
    return "".join(data)


@dataclass
class Picture:
    """Elements in the order in which they are painted."""

    name: str
    width: float
    height: float
    title: str
    description: str
    more_style: str = ""
    body: list[str] = field(default_factory=list)

    def add(self, element: str) -> None:
        self.body.append(element)

    def rect(self, x: float, y: float, width: float, height: float, look: str, more: str = "") -> None:
        self.add(
            f'<rect x="{number(x)}" y="{number(y)}" width="{number(width)}" '
            f'height="{number(height)}" class="{look}"{more}/>'
        )

    def hatch(self, x: float, y: float, width: float, height: float, kind: str) -> None:
        self.add(
            f'<rect x="{number(x)}" y="{number(y)}" width="{number(width)}" '
            f'height="{number(height)}" fill="url(#{kind})"/>'
        )

    def text(self, x: float, y: float, text: str, look: str = "", anchor: str = "start", turned: bool = False) -> None:
        """`turned` text goes upwards."""
        look = f' class="{look}"' if look else ""
        at = "" if anchor == "start" else f' text-anchor="{anchor}"'
        turn = f' transform="rotate(-90 {number(x)} {number(y)})"' if turned else ""
        self.add(f'<text x="{number(x)}" y="{number(y)}"{look}{at}{turn}>{escape(text)}</text>')

    def texts(self, x: float, y: float, lines: Iterable[str], look: str = "", step: float = 19) -> float:
        """One line below the other; returns where the next one would be."""
        for line in lines:
            if line:
                self.text(x, y, line, look)
            y += step
        return y

    def path(self, data: str, look: str) -> None:
        self.add(f'<path d="{data}" class="{look}"/>')

    def area(self, x: float, y: float, scale: float, entries: np.ndarray, look: str) -> None:
        """The true entries of a matrix, `scale` units each."""
        self.add(
            f'<path transform="translate({number(x)} {number(y)}) scale({scale:g})" '
            f'd="{outline(entries)}" class="{look}" vector-effect="non-scaling-stroke"/>'
        )

    def line(self, x0: float, y0: float, x1: float, y1: float, look: str = "line") -> None:
        self.path(f"M{number(x0)} {number(y0)}L{number(x1)} {number(y1)}", look)

    def arrow(self, *points: tuple[float, float]) -> None:
        self.path("M" + "L".join(f"{number(x)} {number(y)}" for x, y in points), "arrow")

    def tile(
        self, x: float, y: float, width: float, height: float, fill: str, memory: str = "", look: str = "line"
    ) -> None:
        """A rectangle with the hatching of its memory."""
        self.rect(x, y, width, height, f"{fill} {look}")
        if memory:
            self.hatch(x, y, width, height, memory)

    def label(self, x: float, y: float, text: str, fill: str, look: str = "small") -> None:
        """Centred text on a plain ground, so that hatching does not disturb it."""
        size = NORMAL if "small" not in look else SMALL
        width = text_width(text, size) * (1.08 if "bold" in look else 1)
        self.rect(x - width / 2, y - size / 2 - 3, width, size + 6, fill)
        self.text(x, y + size * 0.36, text, look, "middle")

    def save(self, directory: Path) -> None:
        body = "\n".join(self.body)
        parts = [f"url(#{name})" in body and pattern for name, pattern in HATCHES.items()]
        parts.append('class="arrow"' in body and ARROW)
        definitions = "".join(filter(None, parts))
        definitions = f"<defs>{definitions}</defs>\n" if definitions else ""
        style = style_sheet() + self.more_style
        size = f'width="{number(self.width)}" height="{number(self.height)}"'
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"{self.name}.svg").write_text(
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {number(self.width)} '
            f'{number(self.height)}" role="img" aria-labelledby="title description">\n'
            f'<title id="title">{escape(self.title)}</title>\n'
            f'<desc id="description">{escape(self.description)}</desc>\n'
            f"<style>{style}</style>\n{definitions}{body}\n</svg>\n",
            encoding="utf-8",
        )
