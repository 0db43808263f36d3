"""Pictures of what the hardware fixes: fragments of mma, banks of shared memory, sectors of device
memory, and the threads of a launch. Rules are evaluated from the sources, layouts from what a GPU
printed."""

import re
from pathlib import Path

from plots.figures.pictures_loops import N, shape_of
from plots.figures.pictures_svg import Picture
from plots.tools import layouts
from tests.lib.steps import drawn_in, source_of

ROOT = Path(__file__).resolve().parents[2]
LAYOUTS = ROOT / "tests" / "data" / "layouts_h200.txt"
EXAMPLE_LANE = 5  # of the comment in the source
LANES = 32


# --- Fragments ------------------------------------------------------------------------------------

OPERANDS = {
    "a": (
        "A: 16 x 16, 16-bit elements",
        "Q in Q K^T, P in P V",
        50,
        ("A box is one register of a lane: two neighbours of a row, the left one in its lower half.",),
    ),
    "b": (
        "B: 16 x 8, 16-bit elements",
        "K^T in Q K^T, V in P V",
        88,
        ("A box is one register of a lane: two neighbours of a column,", "the upper one in its lower half."),
    ),
    "c": (
        "C: 16 x 8, fp32 accumulators",
        "S in Q K^T, O in P V",
        88,
        ("A box is one register of a lane: one element.",),
    ),
}


def registers_of(cells: layouts.Cells) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """The elements that each (lane, register) holds, lower half first."""
    held: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for where, (lane, name) in sorted(cells.items(), key=lambda item: item[1][1]):
        register, _, half = name[1:].partition(".")
        held.setdefault((lane, int(register)), []).insert(0 if half == "lo" else 1, where)
    return held


def fragment(operand: str, directory: Path) -> None:
    table = layouts.read_table(LAYOUTS.read_text())
    cells = {"a": layouts.a_cells, "b": layouts.b_cells, "c": layouts.accumulator_cells}[operand](table)
    title, use, width, note = OPERANDS[operand]
    rows, columns = (max(where[i] for where in cells) + 1 for i in (0, 1))
    left, top, height = 44, 66, 25
    picture = Picture(
        f"fragment_{operand}",
        left + columns * width + 16,
        0,
        f"Fragment {operand.upper()} of mma.m16n8k16",
        f"{title}; {use}. {' '.join(note)} T{EXAMPLE_LANE} {operand}[0] is register 0 of lane "
        f"{EXAMPLE_LANE}. As an H200 printed it.",
    )
    picture.text(left, 18, title, "large")
    picture.text(left, 38, use)
    for column in range(columns):
        picture.text(left + (column + 0.5) * width, top - 7, str(column), "small muted", "middle")
    for row in range(rows):
        picture.text(left - 8, top + (row + 0.5) * height + 4, str(row), "small muted", "end")
    for (lane, register), places in sorted(
        registers_of(cells).items(), key=lambda item: (item[0][0] == EXAMPLE_LANE, item)
    ):
        row, column = places[0]
        last_row, last_column = places[-1]
        box = (
            left + column * width,
            top + row * height,
            (last_column - column + 1) * width,
            (last_row - row + 1) * height,
        )
        own = lane == EXAMPLE_LANE
        picture.rect(*box, f"{'qkvo'[register]} {'thick' if own else 'faint'}")
        picture.text(
            box[0] + box[2] / 2,
            box[1] + box[3] / 2 + 4.4,
            f"T{lane} {operand}[{register}]",
            "small bold" if own else "small",
            "middle",
        )
    picture.height = (
        picture.texts(
            left,
            top + rows * height + 24,
            (
                *note,
                f"Outlined: lane {EXAMPLE_LANE}, of which g = lane / 4 = {EXAMPLE_LANE // 4} and "
                f"j = 2 (lane % 4) = {EXAMPLE_LANE % 4 * 2}.",
            ),
        )
        - 4
    )
    picture.save(directory)


# --- Banks of shared memory -----------------------------------------------------------------------

BANK_ROWS, BANK_COLUMNS, CHUNK_BYTES = 8, 64, 16
CHUNKS, GROUPS = BANK_COLUMNS * 2 // CHUNK_BYTES, 8  # in a row; of 4 banks
READ_CHUNK = 2  # of each row, by one phase of ldmatrix


def expression(path: str, pattern: str) -> str:
    """A C expression from a source, which must hold it once."""
    (found,) = re.findall(pattern, (ROOT / path).read_text())
    return found.replace("/", "//")


def chunk_offsets(kind: str) -> dict[tuple[int, int], int]:
    """The byte at which chunk c of row r lies, by the rule of the source: padded rows, or
    swizzled ones. Plain rows are those without the XOR."""
    if kind == "padded":
        stride = eval(
            expression("common/device/fragments.cuh", r"SMEM_STRIDE = ([^;]+);"),
            {"HEAD_DIM": BANK_COLUMNS, "CHUNK": CHUNK_BYTES // 2},
        )
        return {(r, c): 2 * stride * r + CHUNK_BYTES * c for r in range(BANK_ROWS) for c in range(CHUNKS)}
    swizzled = str(source_of(drawn_in("swizzle")).path)
    place = expression(swizzled, r"const int place = SWIZZLE_CHUNKS<HEAD_DIM> == 8 \? ([^:]+) :")
    offset = expression(swizzled, r"return (row \* 2 \* HEAD_DIM \+ [^;]+);")
    return {
        (r, c): eval(
            offset,
            {
                "HEAD_DIM": BANK_COLUMNS,
                "row": r,
                "chunk": c,
                "place": eval(place, {"row": r}) if kind == "swizzled" else 0,
            },
        )
        for r in range(BANK_ROWS)
        for c in range(CHUNKS)
    }


def reads_of(offsets: dict[tuple[int, int], int]) -> list[int]:
    """How many of the chunks that one phase of ldmatrix reads lie in each group of banks."""
    groups = [offsets[row, READ_CHUNK] // CHUNK_BYTES % GROUPS for row in range(BANK_ROWS)]
    return [groups.count(group) for group in range(GROUPS)]


BANK_TITLES = {
    "plain": ("Plain rows of 128 bytes", "Chunk c of row r starts at byte 128 r + 16 c."),
    "padded": ("Rows padded by 16 bytes", "Chunk c of row r starts at byte 144 r + 16 c."),
    "swizzled": ("Swizzled rows", "Chunk c of row r is at place c ^ (r % 8) of its row."),
}


BANKS_X, BANKS_Y, CHUNK_WIDTH, CHUNK_HEIGHT = 92, 92, 74, 27


def draw_chunks(picture: Picture, offsets: dict[tuple[int, int], int]) -> None:
    """Lines of 128 bytes; the chunks that are read are outlined."""
    at = {offset: where for where, offset in offsets.items()}
    # Those that are read come last, so that their outlines are whole.
    for offset in sorted(
        range(0, max(at) + 1, CHUNK_BYTES), key=lambda offset: at.get(offset, (0, 0))[1] == READ_CHUNK
    ):
        x = BANKS_X + offset // CHUNK_BYTES % GROUPS * CHUNK_WIDTH
        y = BANKS_Y + offset // 128 * CHUNK_HEIGHT
        if offset not in at:
            picture.tile(x, y, CHUNK_WIDTH, CHUNK_HEIGHT, "n", "busy", "faint")
            picture.label(x + CHUNK_WIDTH / 2, y + CHUNK_HEIGHT / 2, "padding", "n")
            continue
        row, chunk = at[offset]
        read = chunk == READ_CHUNK
        inset = 1.5 * read
        picture.rect(
            x + inset, y + inset, CHUNK_WIDTH - 2 * inset, CHUNK_HEIGHT - 2 * inset, "k thick" if read else "none faint"
        )
        picture.text(
            x + CHUNK_WIDTH / 2,
            y + CHUNK_HEIGHT / 2 + 4.4,
            f"r{row} c{chunk}",
            "small bold" if read else "small muted",
            "middle",
        )


def banks(kind: str, directory: Path) -> None:
    offsets = chunk_offsets(kind)
    lines = max(offsets.values()) // 128 + 1
    reads = reads_of(offsets)
    wavefronts = max(reads)
    plural = "s" * (wavefronts > 1)
    title, rule = BANK_TITLES[kind]
    bottom = BANKS_Y + lines * CHUNK_HEIGHT
    picture = Picture(
        f"banks_{kind}",
        880,
        bottom + 92,
        f"Banks: {title.lower()}",
        f"A tile of {BANK_ROWS} rows of {BANK_COLUMNS} 16-bit elements in shared memory. A line is "
        f"128 bytes, which span all 32 banks. {rule} One phase of ldmatrix reads chunk "
        f"{READ_CHUNK} of all {BANK_ROWS} rows and takes {wavefronts} wavefront{plural}.",
    )
    picture.text(8, 22, title, "large")
    picture.text(8, 44, rule)
    draw_chunks(picture, offsets)
    for line in range(lines):
        picture.text(BANKS_X - 8, BANKS_Y + (line + 0.5) * CHUNK_HEIGHT + 4, f"byte {128 * line}", "small muted", "end")
    picture.text(BANKS_X - 8, bottom + 20, "read here", "small", "end")
    for group, count in enumerate(reads):
        x = BANKS_X + (group + 0.5) * CHUNK_WIDTH
        picture.text(x, BANKS_Y - 22, "banks", "small muted", "middle")
        picture.text(x, BANKS_Y - 7, f"{4 * group}\N{EN DASH}{4 * group + 3}", "small muted", "middle")
        picture.text(x, bottom + 20, str(count), "bold" if count else "muted", "middle")
    picture.texts(
        8,
        bottom + 50,
        (
            f"Outlined: what one phase of ldmatrix reads, chunk {READ_CHUNK} of {BANK_ROWS} rows (r0 "
            f"to r{BANK_ROWS - 1}). A chunk is 16 bytes, 8 elements.",
            "A bank delivers 4 bytes per wavefront, so chunks in the same banks are read one after the other.",
        ),
        step=21,
    )
    x = BANKS_X + GROUPS * CHUNK_WIDTH + 100
    picture.text(x, BANKS_Y + 96, str(wavefronts), "huge", "middle")
    picture.text(x, BANKS_Y + 122, f"wavefront{plural}", "bold", "middle")
    picture.text(x, BANKS_Y + 142, f"{wavefronts}-way conflict" if plural else "no conflict", "", "middle")
    picture.save(directory)


# --- Sectors of device memory ---------------------------------------------------------------------

SECTOR_BYTES = 32


def sectors_of(stride: int) -> int:
    """Sectors that 32 lanes touch if lane i reads float i * stride."""
    return len({4 * lane * stride // SECTOR_BYTES for lane in range(LANES)})


def memory_line(picture: Picture, x: float, y: float, first_float: int, read: set[int], height: float = 14) -> None:
    """128 bytes of device memory: 4 sectors of 8 floats; what is read is dark."""
    for sector in range(4):
        floats = range(first_float + 8 * sector, first_float + 8 * sector + 8)
        fetched = any(f in read for f in floats)
        left = x + 80 * sector
        picture.rect(left, y, 80, height, "k thin" if fetched else "none faint")
        for i, f in enumerate(floats):
            if f in read:
                picture.rect(left + 10 * i + 1, y + 1.5, 8, height - 3, "ink")


def coalescing(directory: Path) -> None:
    picture = Picture(
        "coalescing",
        880,
        512,
        "Coalescing: sectors of one request",
        f"32 lanes each read one float. Neighbouring floats lie in {sectors_of(1)} sectors of 32 "
        f"bytes, and all bytes of them are used. With a stride of 32 floats the lanes read from "
        f"{sectors_of(32)} sectors, and one eighth of the bytes is used.",
    )
    y = 24
    picture.text(8, y, "Neighbouring floats: lane i reads float i", "large")
    memory_line(picture, 96, y + 34, 0, set(range(LANES)))
    picture.text(88, y + 46, "lanes 0\N{EN DASH}31", "small", "end")
    for sector in range(4):
        picture.text(136 + 80 * sector, y + 27, f"sector {sector}", "small muted", "middle")
    picture.text(440, y + 37, f"{sectors_of(1)} sectors of 32 bytes = 128 bytes", "bold")
    picture.text(440, y + 56, "128 bytes are used: all of them")
    y = 130
    picture.text(8, y, "A stride of 32 floats: lane i reads float 32 i", "large")
    read = {32 * lane for lane in range(LANES)}
    for lane in range(LANES):
        x, line_y = (96, 536)[lane // 16], y + 22 + 17 * (lane % 16)
        memory_line(picture, x, line_y, 32 * lane, read)
        picture.text(x - 8, line_y + 12, f"lane {lane}", "small", "end")
    y += 22 + 17 * 16 + 24
    used = 100 * 4 * LANES // (SECTOR_BYTES * sectors_of(32))
    picture.text(8, y, f"{sectors_of(32)} sectors of 32 bytes = {SECTOR_BYTES * sectors_of(32):,} bytes", "bold")
    picture.text(330, y, f"128 bytes are used: one in {100 // used}")
    y += 30
    picture.rect(8, y - 11, 30, 14, "ink")
    picture.text(46, y, "floats that a lane reads")
    picture.rect(248, y - 11, 30, 14, "k thin")
    picture.text(286, y, "rest of a sector, loaded too")
    picture.rect(508, y - 11, 30, 14, "none faint")
    picture.text(546, y, "not loaded")
    picture.height = y + 16
    picture.save(directory)


# --- Grid, thread block, warp, lane ---------------------------------------------------------------

COLUMNS = (8, 232, 456, 680)  # grid, thread block, warp, lane
BLOCK, WARP, LANE = 7, 2, 7  # those that are followed
GRID_TOP = 66


def draw_boxes(
    picture: Picture,
    column: int,
    names: list[str],
    per_row: int,
    size: tuple[float, float],
    gap: tuple[float, float],
    chosen: int,
) -> tuple[float, float, float]:
    """Boxes in rows, one of them outlined; returns its right edge, top and bottom."""
    (width, height), places = size, []
    for i in range(len(names)):
        places.append((COLUMNS[column] + i % per_row * (width + gap[0]), GRID_TOP + i // per_row * (height + gap[1])))
    for i in sorted(range(len(names)), key=lambda i: i == chosen):
        x, y = places[i]
        picture.rect(x, y, width, height, "q thick" if i == chosen else "n thin")
        picture.text(x + width / 2, y + height / 2 + 4.4, names[i], "small bold" if i == chosen else "small", "middle")
    x, y = places[chosen]
    return x + width, y, y + height


def grid_to_lane(program: Path, directory: Path) -> None:
    shape = shape_of(program)
    blocks, threads, _ = shape.kernels["attention"]
    warps, thread = threads // LANES, LANES * WARP + LANE
    picture = Picture(
        "grid_to_lane",
        880,
        366,
        "From the grid to a lane",
        f"Step {program.name.removeprefix('step')} with 2 heads of {N} queries: a grid of {blocks} thread blocks, each of "
        f"{threads} threads in {warps} warps of 32 lanes. Lane {LANE} of warp {WARP} has "
        f"threadIdx.x = {thread}.",
    )
    block = draw_boxes(picture, 0, list(map(str, range(blocks))), 4, (38, 32), (8, 10), BLOCK)
    names = [f"warp {i}: threads {32 * i}\N{EN DASH}{32 * i + 31}" for i in range(warps)]
    warp = draw_boxes(picture, 1, names, 1, (160, 32), (0, 10), WARP)
    lane = draw_boxes(picture, 2, list(map(str, range(LANES))), 4, (40, 20), (0, 0), LANE)
    picture.tile(COLUMNS[3], GRID_TOP, 190, 160, "q", "registers", "thick")
    for i, line in enumerate(
        (f"threadIdx.x = {thread}", f"= 32 * {WARP} + {LANE}", "its registers:", "its own variables")
    ):
        picture.label(COLUMNS[3] + 95, GRID_TOP + 34 + 31 * i, line, "q", "small" if i else "small bold")
    for (right, top, bottom), x, end in ((block, COLUMNS[1], 158), (warp, COLUMNS[2], 160), (lane, COLUMNS[3], 160)):
        picture.line(right, top, x, GRID_TOP, "thin dash")
        picture.line(right, bottom, x, GRID_TOP + end, "thin dash")
    for x, (title, count, *lines) in zip(
        COLUMNS,
        (
            (
                "Grid",
                f"{blocks} thread blocks",
                f"blockIdx.x: 0 to {blocks - 1}",
                "",
                "All share device memory.",
                "Blocks do not wait",
                "for each other.",
            ),
            (
                "Thread block",
                f"{threads} threads = {warps} warps",
                f"threadIdx.x: 0 to {threads - 1}",
                "",
                "Its threads share",
                "shared memory.",
                "__syncthreads()",
                "is its barrier.",
            ),
            (
                "Warp",
                "32 lanes",
                "lane = threadIdx.x % 32",
                "",
                "Its lanes execute one",
                "instruction together.",
                "Shuffles exchange",
                "registers.",
            ),
            ("Lane", "one thread", "", "", "Registers of a lane are", "visible to that lane", "only."),
        ),
        strict=True,
    ):
        picture.text(x, 22, title, "large")
        picture.text(x, 44, count, "small muted")
        picture.texts(x, GRID_TOP + 196, lines, "small", 18)
    picture.save(directory)
