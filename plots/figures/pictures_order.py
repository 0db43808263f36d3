"""Pictures of the order of copies and compute, read from the sources of the steps whose tables have
a section [pipeline]."""

import re
from dataclasses import dataclass
from pathlib import Path

from plots.figures.pictures_loops import shape_of
from plots.figures.pictures_svg import Picture
from tests.lib.steps import settings, source_of

TILES = 3
ZEROS = "zeros"  # what the copy after the last tile writes


EVENTS = {
    r"copy_tile<[^>]*>\(\w+, q_global": "copy Q",
    r"copy_rows<[^>]*>\(\s*target,": "copy Q",
    r"copy_tile<[^>]*>\(\w+, k_global": "copy K",
    r"copy_tile<[^>]*>\(\w+, v_global": "copy V",
    r"copy_keys\((?:0, 0|next_key, 1 - stage)\)": "copy K and V",
    r"cp_async_commit\(": "commit",
    r"cp_async_wait<0>": "wait 0",
    r"cp_async_wait<1>": "wait 1",
    r"__syncthreads\(": "barrier",
    r"multiply_qk<": "Q K^T",
    r"update_softmax\(": "softmax",
    r"update_output<": "softmax and P V",
    r"multiply_pv<": "P V",
}


def body_of(text: str, opening: str) -> tuple[str, str, str]:
    """What stands before a loop, in its braces, and after it."""
    start = text.index(opening)
    depth, i = 1, text.index("{", start) + 1
    first = i
    while depth:
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        i += 1
    return text[:start], text[first : i - 1], text[i:]


def events_of(text: str) -> list[str]:
    found = [(match.start(), name) for pattern, name in EVENTS.items() for match in re.finditer(pattern, text)]
    return [name for _, name in sorted(found)]


def kernel_events(path: Path) -> tuple[list[str], list[str], list[str]]:
    """The events before the loop over the tiles, in it, and after it."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
    text = text[text.index("attention_kernel(Problem p") :]
    text = text[: text.index("store_rows")]
    parts = body_of(text, "for (int first_key")
    if "auto copy_keys" in parts[0]:  # its copies and its commit are those of "copy K and V"
        before, _, rest = body_of(parts[0], "auto copy_keys")
        parts = (before + rest, *parts[1:])
    before, inside, after = (events_of(part) for part in parts)
    return before, inside, after


@dataclass
class Bar:
    """A copy or a computation of a tile in a row of the chart, over a range of the axis."""

    row: str
    start: float
    end: float
    text: str
    in_flight: bool = False  # a product, while a copy is


class Chart:
    """Executes the events of a kernel for TILES tiles of keys. Bars, waits and barriers are along
    an axis of events: each event takes some units of it, which stand for no time."""

    def __init__(self, step: str, unit: float, parts: int) -> None:
        before, inside, after = kernel_events(source_of(step).path)
        self.unit, self.parts, self.at = unit, parts, 0.0
        self.prefetches = bool({"copy K", "copy K and V"} & set(before))
        self.bars: list[Bar] = []
        self.marks: list[tuple[float, str]] = []
        self.tiles: list[tuple[float, float]] = []
        self.uncommitted: list[Bar] = []
        self.groups: list[list[Bar]] = []
        for event in before:
            self.execute(event, None)
        for tile in range(TILES):
            start = self.at
            for event in inside:
                self.execute(event, tile)
            self.tiles.append((start, self.at))
        for event in after:
            self.execute(event, None)
        copies = [bar for bar in self.bars if bar.row.startswith("copy") and bar.text != ZEROS]
        for bar in self.products():
            bar.in_flight = any(copy.start <= bar.start and bar.end <= copy.end for copy in copies)

    def products(self) -> list[Bar]:
        return [bar for bar in self.bars if bar.row in ("Q K^T", "P V")]

    def in_flight(self) -> float:
        """The number of products of whole tiles that are issued with a copy in flight."""
        return sum(1 if bar.row == "Q K^T" else 1 / self.parts for bar in self.products() if bar.in_flight)

    def execute(self, event: str, tile: int | None) -> None:
        """An event in the iteration for a tile, or outside of the loop."""
        of_next = 0 if tile is None else tile + self.prefetches
        if event == "copy K and V":
            if of_next < TILES:
                self.copy("K", of_next)
                self.copy("V", of_next)
                self.commit()
        elif event.startswith("copy"):
            matrix = event[-1]
            self.copy(matrix, {"Q": "Q", "K": of_next, "V": tile}[matrix])
        elif event == "commit":
            self.commit()
        elif event.startswith("wait"):
            self.wait(int(event[-1]))
        elif event == "barrier":
            self.marks.append((self.at + 9, "b"))
            self.at += 18
        elif event == "softmax and P V":
            self.compute("softmax", f"{tile}.0", self.unit)
            for part in range(self.parts):
                if part + 1 < self.parts:
                    self.compute("softmax", f"{tile}.{part + 1}", 0)
                self.compute("P V", f"{tile}.{part}", self.unit)
        else:
            self.compute(event, str(tile), self.unit)

    def copy(self, matrix: str, of: str | int) -> None:
        text = ZEROS if of == TILES else str(of)
        self.uncommitted.append(Bar(f"copy of {matrix}", self.at, self.at, text))
        self.bars.append(self.uncommitted[-1])

    def commit(self) -> None:
        self.groups.append(self.uncommitted)
        self.uncommitted = []
        self.at += 9  # the instructions that start the copies

    def wait(self, pending: int) -> None:
        """Ends the copies of all groups but the newest `pending`."""
        self.marks.append((self.at + 10, f"w{pending}"))
        while len(self.groups) > pending:
            for bar in self.groups.pop(0):
                bar.end = self.at + 10
        self.at += 20

    def compute(self, row: str, text: str, step: float) -> None:
        self.bars.append(Bar(row, self.at, self.at + self.unit, text))
        self.at += step


ROWS = {"copy of Q": "q", "copy of K": "k", "copy of V": "v", "Q K^T": "s", "softmax": "n", "P V": "o"}
LEFT, TOP, ROW_HEIGHT = 92, 84, 34


def chart_of(step: str, program: Path) -> Chart:
    """The softmax of a tile may be in parts of PART keys."""
    part = re.search(r"constexpr int PART = (\d+);", source_of(step).path.read_text())
    parts = shape_of(program).block_n // int(part[1]) if part else 1
    return Chart(step, settings(step, "pipeline")["unit"], parts)


def draw_chart(picture: Picture, chart: Chart, bottom: float) -> None:
    for i, (start, end) in enumerate(chart.tiles):
        picture.line(LEFT + start + 2, 42, LEFT + end - 2, 42, "thin")
        picture.text(LEFT + (start + end) / 2, 36, f"tile {i}", "small muted", "middle")
    for i, row in enumerate(ROWS):
        y = TOP + i * ROW_HEIGHT
        picture.text(LEFT - 10, y + 21, row, "small bold", "end")
        picture.line(LEFT, y + ROW_HEIGHT, LEFT + chart.at, y + ROW_HEIGHT, "faint")
    for x, mark in chart.marks:
        look = "line dash" if mark[0] == "w" else "line"
        picture.line(LEFT + x, TOP - 14, LEFT + x, bottom + 4, look)
        picture.text(LEFT + x, TOP - 18, mark, "small bold", "middle")
    for bar in chart.bars:
        y, width = TOP + list(ROWS).index(bar.row) * ROW_HEIGHT + 5, bar.end - bar.start
        picture.tile(LEFT + bar.start, y, width, ROW_HEIGHT - 10, ROWS[bar.row], "busy" if bar.in_flight else "")
        picture.label(LEFT + bar.start + width / 2, y + (ROW_HEIGHT - 10) / 2, bar.text, ROWS[bar.row])
    picture.arrow((LEFT, bottom + 16), (LEFT + chart.at, bottom + 16))
    picture.text(LEFT + chart.at, bottom + 34, "order of events in the source, not time", "small", "end")


def draw_legend(picture: Picture, chart: Chart, y: float, share: str) -> float:
    waits = "w0: cp_async_wait<0>, which waits for all copies"
    if any(mark == "w1" for _, mark in chart.marks):
        waits += "; w1: cp_async_wait<1>, for all but the newest group"
    for look, text in (("line", "b: barrier, __syncthreads()"), ("line dash", waits)):
        picture.line(24, y - 14, 24, y + 3, look)
        picture.text(46, y, text)
        y += 22
    picture.tile(8, y - 12, 32, 16, "o", "busy", "thin")
    lines = [
        f"a product with a copy in flight: {share}. Numbers are tiles"
        + ("; 0.1 is part 1 of tile 0, 32 keys." if chart.parts > 1 else ".")
    ]
    if any(bar.text == ZEROS for bar in chart.bars):
        lines.append(
            "zeros: after the last tile the copy reads nothing and writes zeros, so that "
            "every wait counts the same groups."
        )
    return picture.texts(46, y, lines, step=22)


def pipeline(step: str, program: Path, directory: Path) -> None:
    chart, idea = chart_of(step, program), settings(step, "pipeline")["idea"]
    label = f"Step {step.removeprefix('step')}"
    share = f"{chart.in_flight():g} of {2 * TILES}"
    told = "; ".join(f"{bar.row} {bar.text}" for bar in sorted(chart.bars, key=lambda b: b.start))
    picture = Picture(
        f"pipeline_{step}",
        LEFT + chart.at + 14,
        0,
        f"{label}: order of copies and compute",
        f"One thread block over {TILES} tiles of keys, by the order of events in the source, not "
        f"by time: {idea}. Copies and computations by start: {told}. Products that are issued with "
        f"a copy in flight: {share}.",
    )
    bottom = TOP + len(ROWS) * ROW_HEIGHT
    picture.text(8, 18, f"{label}: {idea}", "bold")
    draw_chart(picture, chart, bottom)
    picture.height = draw_legend(picture, chart, bottom + 60, share) - 8
    picture.save(directory)
