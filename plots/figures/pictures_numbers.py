"""Pictures of numbers that are computed here: the state of one row in the online softmax, and maps
of the error of O, for a step and for a copy of it that lacks one multiplication."""

import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from plots.figures.pictures_svg import Picture
from tests.lib.generators import rounded_inputs
from tests.lib.problem import Problem
from tests.lib.programs import read_records, read_result
from tests.lib.reference import attention

SCORES = np.array(
    [
        [1.0, 2.5, 0.5, -1.0],
        [3.0, 0.0, 1.5, 4.0],  # of one row, in units of log2
        [-0.5, 2.0, 3.0, 1.0],
        [1.0, 5.0, 3.0, -1.0],
    ]
)
VALUES = np.array(
    [
        [0.5, 2.0, -1.0, 1.0],
        [1.5, -0.5, 1.0, 3.0],  # one column of V
        [2.0, 0.5, -1.0, 1.0],
        [1.0, -2.0, 0.5, 1.5],
    ]
)
TILES = len(SCORES)
SECONDS = 3  # a tile, in the animation
LEFT, TOP, TILE_WIDTH, UNIT = 60, 44, 122, 20  # of the bars; a score of 1 is a UNIT high
LOWEST = SCORES.min() - 1.1


@dataclass(frozen=True)
class State:
    """Of one row after a tile."""

    tile_max: float
    m: float
    factor: float
    l: float
    o: float


def states() -> list[State]:
    m, l, o, found = -np.inf, 0.0, 0.0, []
    for scores, values in zip(SCORES, VALUES, strict=True):
        new = max(m, scores.max())
        factor, probs = 2.0 ** (m - new), 2.0 ** (scores - new)
        m, l, o = new, l * factor + probs.sum(), o * factor + probs @ values
        found.append(State(scores.max(), m, factor, l, o))
    return found


def animation() -> str:
    """Shows the parts of one tile after the other. Without motion those of the last are shown."""
    rules = f".now{{opacity:0}}.now{TILES - 1}{{opacity:1}}"
    moving = ""
    for i in range(TILES):
        start, end = 100 * i / TILES, 100 * (i + 1) / TILES
        before = f"0%,{start - 0.01:g}%{{opacity:0}}" if i else ""
        after = f"{end:g}%,100%{{opacity:0}}" if i + 1 < TILES else ""
        moving += (
            f"@keyframes now{i}{{{before}{start:g}%,{end - 0.01:g}%{{opacity:1}}{after}}}"
            f".now{i}{{animation:now{i} {TILES * SECONDS}s infinite}}"
        )
    return f"{rules}@media (prefers-reduced-motion: no-preference){{{moving}}}"


def height_of(score: float) -> float:
    return TOP + (SCORES.max() + 0.9 - score) * UNIT


def draw_scores(picture: Picture, found: list[State]) -> None:
    """Bars of the scores, and m as a staircase."""
    picture.text(8, 20, "Scores of one row, its running maximum m, and one column v of V", "bold")
    base, bottom = height_of(0), height_of(LOWEST)
    for i, scores in enumerate(SCORES):
        x = LEFT + i * TILE_WIDTH
        picture.rect(x, TOP, TILE_WIDTH, bottom - TOP, "none faint")
        picture.text(x + TILE_WIDTH / 2, bottom + 36, f"tile {i + 1}", "small", "middle")
        for j, score in enumerate(scores):
            x_bar, y = x + 10 + 26 * j, height_of(score)
            picture.text(x_bar + 11, bottom + 17, f"{VALUES[i, j]:g}", "small", "middle")
            picture.rect(x_bar, min(base, y), 22, abs(y - base), "s thin")
            picture.text(x_bar + 11, y - 4 if score >= 0 else y + 14, f"{score:g}", "small", "middle")
    picture.line(LEFT, base, LEFT + TILES * TILE_WIDTH, base, "thin")
    for y, text in ((base + 4, "0"), (bottom + 17, "v")):
        picture.text(LEFT - 8, y, text, "small muted", "end")
    picture.path(
        "".join(
            f"{'L' if i else 'M'}{LEFT + i * TILE_WIDTH} {height_of(s.m):.1f}h{TILE_WIDTH}" for i, s in enumerate(found)
        ),
        "none thick",
    )
    for i, s in enumerate(found):
        x = LEFT + i * TILE_WIDTH
        picture.text(x + 4, height_of(s.m) - 5, "m", "small bold mark")
        picture.rect(x + 1, TOP, TILE_WIDTH - 2, bottom - TOP, f"none line now now{i}")


def draw_state(picture: Picture, found: list[State], x: float) -> None:
    """Bars of m, l and O after a tile; of four states one is visible."""
    picture.text(x, 20, "State of the row", "bold")
    floor, scale = 164, 100 / max(max(s.m, s.l, s.o) for s in found)
    for i, s in enumerate(found):
        now = f"now now{i}"
        picture.text(x, 46, f"after tile {i + 1}", now)
        for j, (value, fill) in enumerate(((s.m, "q"), (s.l, "v"), (s.o, "o"))):
            left = x + 8 + 90 * j
            picture.rect(left, floor - value * scale, 60, value * scale, f"{fill} line {now}")
            picture.text(left + 30, floor + 20, f"{value:.3f}", f"bold {now}", "middle")
    for j, name in enumerate(("m", "l", "O")):
        picture.text(x + 38 + 90 * j, floor + 40, name, "bold", "middle")
    picture.line(x, floor, x + 256, floor, "thin")


def draw_table(picture: Picture, found: list[State], y: float) -> float:
    """All states; returns where the next line would be."""
    columns = (
        (8, "after"),
        (110, "max of tile"),
        (232, "m"),
        (322, "2^(m_old - m)"),
        (474, "l"),
        (584, "O, one column"),
        (740, "O / l"),
    )
    for x, head in columns:
        picture.text(x, y, head, "small bold")
    picture.line(8, y + 8, 872, y + 8, "thin")
    for i, s in enumerate(found):
        line = y + 30 + 26 * i
        picture.rect(2, line - 18, 874, 25, f"none line now now{i}")
        cells = (
            f"tile {i + 1}",
            f"{s.tile_max:g}",
            f"{s.m:g}{' (new)' if s.factor < 1 else ''}",
            f"{s.factor:.4g}" if i else "0 (m_old = -inf)",
            f"{s.l:.4f}",
            f"{s.o:.4f}",
            f"{s.o / s.l:.4f}" if i + 1 == TILES else "",
        )
        for (x, _), cell in zip(columns, cells, strict=True):
            if cell:
                picture.text(x, line, cell)
    return y + 40 + 26 * TILES


def online_softmax(directory: Path) -> None:
    found = states()
    picture = Picture(
        "online_softmax",
        880,
        0,
        "Online softmax: one row over four tiles",
        "Scores of one row in units of log2, four tiles of four keys. "
        + " ".join(f"After tile {i}: m = {s.m:g}, l = {s.l:.4f}, O = {s.o:.4f}." for i, s in enumerate(found, 1))
        + f" At the end O / l = {found[-1].o / found[-1].l:.4f}.",
        animation(),
    )
    draw_scores(picture, found)
    draw_state(picture, found, LEFT + TILES * TILE_WIDTH + 36)
    y = draw_table(picture, found, height_of(LOWEST) + 76)
    picture.height = (
        picture.texts(
            8,
            y,
            (
                "Each tile: m = max(m_old, max of the tile); l = l * 2^(m_old - m) + sum of 2^(s - m); "
                "O = O * 2^(m_old - m) + sum of 2^(s - m) * v.",
                "A factor below 1 shrinks the sums so far; with a factor of 1 they stay. O / l at the end "
                "is what the whole row at once gives.",
            ),
            "small",
            20,
        )
        - 4
    )
    picture.save(directory)


ERROR_PROBLEM = Problem(batch=1, heads=1, seqlen=128, head_dim=64)
REMOVED = ("o[c][x] *= rescale;", "(void)o[c][x];")
BOUNDS = (1e-4, 1e-3, 1e-2, 1e-1)
SIDES = (3, 5, 7, 10)  # tenths of an entry
CELL = 4.4
MAP_X, MAP_Y = 52, 72


def broken_source(text: str) -> str:
    """A step without the multiplication of O by the rescale factor."""
    return text.replace(*REMOVED)


def errors_of(program: Path) -> tuple[np.ndarray, dict]:
    """|O - reference| of each entry, relative to the root mean square of its row; the record."""
    p = ERROR_PROBLEM
    with tempfile.TemporaryDirectory() as folder:
        out, record = Path(folder) / "out", Path(folder) / "record.json"
        subprocess.run(
            [
                program,
                "-b",
                str(p.batch),
                "-H",
                str(p.heads),
                "-n",
                str(p.seqlen),
                "-d",
                str(p.head_dim),
                "--check",
                "all",
                "--repeat",
                "0",
                "--output",
                out,
                "--json",
                record,
            ],
            check=False,
            capture_output=True,
        )
        o = read_result(out).o[0, 0].astype(np.float64)
        (found,) = read_records(record)
    reference = attention(p, *rounded_inputs(p)).o[0, 0]
    return np.abs(o - reference) / np.sqrt((reference**2).mean(axis=1, keepdims=True)), found


def squares(chosen: np.ndarray, side: int) -> str:
    """A square in the middle of each chosen entry, in tenths of an entry, as strokes."""
    data = []
    for row, columns in enumerate(np.flatnonzero(line) for line in chosen):
        at = None
        for column in columns:
            start = 10 * int(column) + (10 - side) // 2
            if at is None:
                data.append(f"M{start} {10 * row + 5}h{side}")
            else:
                data.append((f"m{start - at} 0" if start != at else "") + f"h{side}")
            at = start + side
    return "".join(data)


def draw_map(picture: Picture, level: np.ndarray, block_m: int) -> None:
    """A square for each entry of O; its size is the level of the error."""
    rows, columns = level.shape
    picture.rect(MAP_X, MAP_Y, columns * CELL, rows * CELL, "none thin")
    for i, side in enumerate(SIDES, 1):
        if (level == i).any():
            picture.add(
                f'<path transform="translate({MAP_X} {MAP_Y}) scale({CELL / 10:g})" '
                f'd="{squares(level == i, side)}" class="none stroke" '
                f'stroke-width="{side}"/>'
            )
    for row in range(0, rows, block_m):
        y = MAP_Y + row * CELL
        picture.text(MAP_X - 6, y + 12, str(row), "small muted", "end")
        picture.text(
            20, y + block_m * CELL / 2, f"tile of queries {row // block_m}", "small muted", "middle", turned=True
        )
        picture.line(MAP_X, y, MAP_X + columns * CELL, y, "thin")
    picture.text(
        MAP_X + columns * CELL / 2, MAP_Y + rows * CELL + 18, f"{columns} columns of O", "small muted", "middle"
    )


def draw_sizes(picture: Picture, x: float, y: float) -> float:
    """Which size of a square is which error; returns where the next line would be."""
    picture.text(x, y, "Error of an entry", "bold")
    for i, side in enumerate((0, *SIDES)):
        y += 25
        picture.rect(x, y - 13, 16, 16, "none faint")
        edge = 1.6 * side
        if side:
            picture.rect(x + 8 - edge / 2, y - 5 - edge / 2, edge, edge, "ink")
        picture.text(x + 26, y, f"{BOUNDS[i - 1]:g} and more" if i else f"below {BOUNDS[0]:g}")
    return y + 40


def error_map(name: str, program: Path, directory: Path) -> None:
    errors, record = errors_of(program)
    of_rows = np.sqrt((errors**2).mean(axis=1))
    wrong = of_rows > record["allowed_error"]
    how = "as it is: RIGHT" if record["right"] else f"without {REMOVED[0][:-1]}: WRONG"
    title = f"Step {record['step'].removeprefix('step')} {how}"
    rows, columns = errors.shape
    level = np.digitize(errors, BOUNDS)
    told = [
        f"{int((level == i).sum())} " + (f"from {BOUNDS[i - 1]:g}" if i else f"below {BOUNDS[0]:g}")
        for i in range(len(BOUNDS) + 1)
    ]
    picture = Picture(
        name,
        640,
        MAP_Y + rows * CELL + 30,
        f"Error of O. {title}",
        f"|O - reference| of each of {rows} x {columns} entries of O, relative to the root mean "
        f"square of its row: {', '.join(told)}. {int(wrong.sum())} of {rows} rows are wrong.",
    )
    picture.text(8, 20, title, "large")
    picture.text(8, 42, "Error of each entry of O, relative to the root mean square of its row.")
    draw_map(picture, level, record["block_m"])
    x = MAP_X + columns * CELL + 44
    y = draw_sizes(picture, x, MAP_Y + 14)
    picture.text(x, y, f"{int(wrong.sum())} of {rows} rows are wrong.", "bold")
    picture.text(x, y + 24, f"Allowed error of a row: {record['allowed_error']:.2g}.", "small")
    picture.save(directory)
