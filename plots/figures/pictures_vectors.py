"""Pictures of the first programs of chapter 0: a grid on a vector, sectors, banks, trees, scans, the look-back.
What they show is computed from the same rules as the programs."""

from pathlib import Path

import numpy as np

from plots.figures.pictures_svg import Picture

LANES, SECTOR_BYTES = 32, 32
NUMBERS = (3, 1, 4, 1, 5, 9, 2, 6)


def grid_on_vector(directory: Path) -> None:
    """f01 with its 1000 elements."""
    n, threads = 1000, 256
    blocks = -(-n // threads)
    idle = blocks * threads - n
    picture = Picture(
        "f01_grid",
        470,
        268,
        "A grid of threads and a vector",
        f"{blocks} blocks of {threads} threads for {n} elements. Thread 3 of block 1 has element "
        f"{threads + 3}. The last {idle} threads have none.",
    )
    left, width = 10, 112
    picture.text(left, 20, f"Grid: {blocks} blocks of {threads} threads", "bold")
    for block in range(blocks):
        x = left + block * width
        picture.rect(x, 34, width - 4, 40, "q line")
        picture.text(x + width / 2 - 2, 51, f"block {block}", "small bold", "middle")
        picture.text(x + width / 2 - 2, 67, f"threads 0\N{EN DASH}{threads - 1}", "small", "middle")
        picture.arrow((x + width / 2 - 2, 78), (x + width / 2 - 2, 106))
    unused = idle / threads * (width - 4)
    for block in range(blocks):
        x, last = left + block * width, block == blocks - 1
        picture.rect(x, 110, width - 4 - unused * last, 24, "k line")
        picture.text(
            x + width / 2 - 2 - 4 * last,
            127,
            f"{block * threads}\N{EN DASH}{min(n, block * threads + threads) - 1}",
            "small",
            "middle",
        )
        if last:
            picture.rect(x + width - 4 - unused, 110, unused, 24, "none line dash")
    picture.text(left, 153, f"x, y and sum: {n} elements", "bold")
    picture.text(left + blocks * width - 4, 153, f"{idle} threads without one", "small", "end")
    picture.text(left, 194, "In block 1:", "bold")
    shown = [*range(5), None, threads - 1]
    for i, thread in enumerate(shown):
        x, mine = left + 112 + 47 * i, thread == 3
        for y, text, look in ((178, thread, "q"), (218, thread if thread is None else threads + thread, "k")):
            if text is None:
                picture.text(x + 22, y + 16, "\N{HORIZONTAL ELLIPSIS}", "", "middle")
                continue
            picture.rect(x, y, 43, 24, f"{look} {'thick' if mine else 'line'}")
            picture.text(x + 21.5, y + 16.5, str(text), "small bold" if mine else "small", "middle")
    picture.text(left, 234, "element", "small")
    picture.text(left, 260, f"blockIdx.x * blockDim.x + threadIdx.x = 1 * {threads} + 3 = {threads + 3}", "small")
    picture.save(directory)


def sectors(directory: Path) -> None:
    """f02: what 32 lanes load of the coordinate x of 32 particles, in the ways of the program."""
    ways = (
        ("arrays: lane i reads float i", 1),
        ("structures: lane i reads float 6 i", 6),
        ("chunks: lane i reads float 8 i", 8),
    )
    picture = Picture("f02_sectors", 470, 0, "Sectors that a warp touches", "")
    y, told, cell, per_row = 20, [], 6.4, 8
    for title, stride in ways:
        read = {lane * stride for lane in range(LANES)}
        touched = sorted({4 * f // SECTOR_BYTES for f in read})
        used = round(100 * LANES * 4 / (len(touched) * SECTOR_BYTES))
        told.append(f"{title}: {len(touched)} sectors.")
        picture.text(10, y, title, "bold")
        picture.text(460, y, f"{len(touched)} sectors, {used} % used", "small", "end")
        for sector in touched:
            x, top = 10 + sector % per_row * (8 * cell + 5), y + 9 + sector // per_row * 19
            picture.rect(x, top, 8 * cell, 14, "k thin")
            for i in range(8):
                if 8 * sector + i in read:
                    picture.rect(x + cell * i + 0.8, top + 1.5, cell - 1.6, 11, "ink")
        y += 9 + 19 * (touched[-1] // per_row + 1) + 24
    picture.text(10, y, "A box is a sector: 8 floats, 32 bytes. Marked: what a lane reads.", "small")
    picture.height, picture.description = y + 12, f"What 32 lanes read at a time. {' '.join(told)}"
    picture.save(directory)


def transposed_tile(directory: Path) -> None:
    """f03: where a column of the tile lies in the banks, by the rules of its three layouts."""
    column, cell, top = 5, 4, 62
    places = {
        "plain": lambda row: row * LANES + column,
        "padded": lambda row: row * (LANES + 1) + column,
        "swizzled": lambda row: row * LANES + (column ^ row),
    }
    picture = Picture("f03_banks", 470, 250, "A column of a tile in the 32 banks", "")
    told = []
    for i, (name, place) in enumerate(places.items()):
        words = [place(row) for row in range(LANES)]
        lines = max(words) // LANES + 1
        filled = np.zeros((lines, LANES), bool)
        for word in words:
            filled[divmod(word, LANES)] = True
        wavefronts = int(filled.sum(axis=0).max())
        x = 12 + 156 * i
        picture.text(x, 20, name, "large")
        picture.text(x, 39, "32 banks", "small muted")
        picture.text(x + cell * LANES, 39, "\N{RIGHTWARDS ARROW}", "small muted", "end")
        picture.rect(x, top - 14, cell * LANES, cell * 33, "n faint")
        picture.area(x, top - 14, cell, filled, "ink")
        picture.text(x, top + cell * 33 + 4, f"{wavefronts} wavefront{'s' * (wavefronts > 1)}", "bold")
        told.append(f"{name}: {wavefronts}.")
    picture.texts(
        12,
        top + cell * 33 + 30,
        (
            "A line is 128 bytes of shared memory, a word in each bank.",
            f"Marked: column {column} of the tile, which a warp reads at a time.",
        ),
        "small",
        18,
    )
    picture.description = f"Wavefronts for column {column} of a 32 x 32 tile. {' '.join(told)}"
    picture.save(directory)


def cells(picture: Picture, x: float, y: float, values: list, marked: list[bool], width: float = 27) -> None:
    for i, (value, mark) in enumerate(zip(values, marked, strict=True)):
        picture.rect(x + width * i, y, width - 3, 22, f"{'k' if mark else 'n'} line")
        picture.text(x + width * i + (width - 3) / 2, y + 15.5, str(value), "small bold" if mark else "small", "middle")


def tree(directory: Path) -> None:
    """f04: eight sums in three rounds."""
    picture = Picture("f04_tree", 470, 280, "A tree of additions", "")
    values, y, width = list(NUMBERS), 34, 36
    picture.text(10, 18, "Eight threads, a number each", "bold")
    cells(picture, 10, y, values, [True] * 8, width)
    half = len(values) // 2
    while half:
        picture.text(310, y + 42, f"{half} add the one", "small")
        picture.text(310, y + 57, f"{half} place{'s' * (half > 1)} to the right", "small")
        for i in range(half):
            for start in (i, i + half):
                picture.line(26.5 + width * start, y + 22, 26.5 + width * i, y + 56, "thin" if start == i else "line")
            values[i] += values[i + half]
        y += 56
        cells(picture, 10, y, values, [i < half for i in range(8)], width)
        half //= 2
    picture.texts(
        10,
        y + 42,
        ("Through shared memory, each round needs a barrier before it.", "Within a warp, shuffles need none."),
        "small",
        18,
    )
    picture.description = f"The sum of {', '.join(map(str, NUMBERS))} in three rounds: {values[0]}."
    picture.save(directory)


def scans(directory: Path) -> None:
    """f05: Hillis and Steele beside Blelloch, on eight numbers."""
    picture = Picture("f05_scans", 470, 262, "Two ways to scan eight numbers", "")
    n, x, y, work = len(NUMBERS), 10, 54, 0
    values = list(NUMBERS)
    picture.text(x, 18, "Hillis-Steele", "large")
    cells(picture, x, y, values, [False] * n)
    for distance in (1, 2, 4):
        before, y = list(values), y + 26
        values = [before[i] + (before[i - distance] if i >= distance else 0) for i in range(n)]
        work += n - distance
        cells(picture, x, y, values, [i >= distance for i in range(n)])
    picture.text(x, 40, f"3 rounds, {work} additions", "small")
    inclusive, first_work = values, work
    x, y, work, values = 244, 54, 0, list(NUMBERS)
    picture.text(x, 18, "work-efficient", "large")
    cells(picture, x, y, values, [False] * n)
    for distance in (1, 2, 4):
        rights, y = range(2 * distance - 1, n, 2 * distance), y + 26
        for right in rights:
            values[right] += values[right - distance]
        work += len(rights)
        cells(picture, x, y, values, [i in rights for i in range(n)])
    values[-1] = 0
    for distance in (4, 2, 1):
        rights, y = range(2 * distance - 1, n, 2 * distance), y + 26
        for right in rights:
            values[right - distance], values[right] = values[right], values[right] + values[right - distance]
        work += len(rights)
        cells(picture, x, y, values, [i in rights or i + distance in rights for i in range(n)])
    picture.text(x, 40, f"6 rounds, {work} additions", "small")
    assert [v + own for v, own in zip(values, NUMBERS, strict=True)] == inclusive
    picture.texts(
        10,
        178,
        (
            "Coloured: written in this",
            "round. On the right the",
            "last sum becomes 0 on",
            "the way down; the result",
            "lacks the own number.",
        ),
        "small",
        17,
    )
    picture.description = (
        f"Hillis and Steele: 3 rounds with {first_work} additions. Work-efficient: 6 rounds with {work}."
    )
    picture.save(directory)


def look_back(directory: Path) -> None:
    """f05b: tile 5 adds up what its predecessors have published."""
    sums, known, tile = (12, 8, 5, 9, 7, 6, 4), 2, 5  # the first two know their sum to here
    picture = Picture("f05b_look_back", 470, 246, "Tile 5 looks back", "")
    width, top = 64, 84
    picture.text(10, 20, f"Tile {tile} needs the sum of all tiles before it", "bold")
    before = 0
    for i, own in enumerate(sums):
        x, to_here = 10 + width * i, i < known
        state, look = ("sum to|here", "o") if to_here else ("own|sum", "k") if i <= tile else ("nothing", "none")
        picture.rect(x, top, width - 4, 58, f"{look} {'thick' if i == tile else 'line'}")
        picture.text(x + width / 2 - 2, top + 17, f"tile {i}", "small bold", "middle")
        words = state.split("|")
        picture.text(x + width / 2 - 2, top + 34, words[0], "small", "middle")
        published = sum(sums[: i + 1]) if to_here else own if i <= tile else ""
        picture.text(
            x + width / 2 - 2, top + 51, f"{words[1]}: {published}" if len(words) > 1 else "", "small", "middle"
        )
        if known - 1 <= i < tile:
            before += published
            level = top - 11 - 10 * (tile - 1 - i)
            picture.arrow(
                (10 + width * tile + 12 + 9 * (i - known + 1), top),
                (10 + width * tile + 12 + 9 * (i - known + 1), level),
                (x + width / 2 - 2, level),
                (x + width / 2 - 2, top - 2),
            )
    assert before == sum(sums[:tile])
    parts = " + ".join(str(sum(sums[: i + 1]) if i < known else sums[i]) for i in range(tile - 1, known - 2, -1))
    picture.texts(
        10,
        top + 84,
        (
            f"It adds {parts} = {before}, and stops at tile {known - 1}, whose sum",
            f"contains those before. Then it publishes {before} + {sums[tile]} = {before + sums[tile]}, its sum to here,",
            "so that later tiles look no further.",
            "Tile 6 has begun and published nothing yet: who needs it waits.",
        ),
        "small",
        18,
    )
    picture.description = f"Tile {tile} adds what tiles {tile - 1} to {known - 1} have published: {parts} = {before}."
    picture.save(directory)


PICTURES = (grid_on_vector, sectors, transposed_tile, tree, scans, look_back)
