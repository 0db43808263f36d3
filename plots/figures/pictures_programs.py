"""Pictures of other programs of chapter 0: the bitonic network of f06, a pass of f06b, streams of f09, locks of f10, a cluster of
f11, the shapes of f12."""

from pathlib import Path

from plots.figures.pictures_matrices import constants
from plots.figures.pictures_svg import Picture

KEYS = (6, 3, 7, 1, 8, 2, 5, 4)


def network(directory: Path) -> None:
    """f06: what is compared with what, and the keys after each size."""
    picture = Picture("f06_network", 472, 0, "f06: a bitonic network for 8 keys", "")
    keys, x, top, step = list(KEYS), 34, 84, 30
    wires, told = [x], []

    def show(after: str) -> None:
        nonlocal x
        for i, key in enumerate(keys):
            picture.label(x, top + i * step, str(key), "n", "bold")
        picture.text(x, top - 24, after, "small muted", "middle")
        told.append(f"{after}: {' '.join(map(str, keys))}")
        x += 22

    picture.text(8, 20, "Each arrow compares two keys", "large")
    picture.text(8, 42, "and moves the larger one to its tip.")
    body, picture.body = picture.body, []
    show("in")
    for size in (2, 4, 8):
        for distance in (size // 2 >> i for i in range(size.bit_length() - 1)):
            picture.text(x + distance * 9 - 5, top + 8 * step, f"{distance}", "small muted", "middle")
            for i in range(8):
                if i & distance:
                    continue
                at, up = x + i % distance * 18, (i & size) == 0
                ends = (i, i + distance) if up else (i + distance, i)
                picture.arrow(*((at, top + end * step) for end in ends))
                if (keys[i] > keys[i + distance]) == up:
                    keys[i], keys[i + distance] = keys[i + distance], keys[i]
            x += (distance - 1) * 18 + 20
        x += 4
        show(f"size {size}")
    drawn, picture.body = picture.body, body
    for i in range(8):
        picture.line(wires[0], top + i * step, x - 22, top + i * step, "faint")
    picture.body += drawn
    picture.text(8, top + 8 * step + 22, "Below: distances. Each step has 4 pairs.", "small")
    picture.width, picture.height = x, top + 8 * step + 36
    picture.description = "Keys after each size. " + "; ".join(told) + "."
    picture.save(directory)


def radix(directory: Path) -> None:
    """f06b: one pass over two tiles of 8 keys, by digits of 2 bits."""
    keys, digits, tiles = [14, 3, 9, 0, 7, 5, 2, 10, 1, 12, 6, 11, 4, 13, 15, 8], 4, 2
    each = len(keys) // tiles
    counts = [[sum(key % digits == d for key in keys[t * each :][:each]) for d in range(digits)] for t in range(tiles)]
    starts = {
        (d, t): sum(sum(c[:d]) for c in counts) + sum(c[d] for c in counts[:t])
        for d in range(digits)
        for t in range(tiles)
    }
    out = sorted(keys, key=lambda key: key % digits)
    width, left = 27, 8
    picture = Picture(
        "f06b_pass",
        448,
        372,
        "f06b: a pass of the radix sort",
        f"Keys {keys} in two tiles of {each}, sorted by their last digit of base {digits}. Counts of the tiles: "
        f"{counts}. Where the keys of each digit begin: {[[starts[d, t] for d in range(digits)] for t in range(tiles)]}. "
        f"Result: {out}.",
    )
    looks = "qkvo"

    def row(y: int, values: list[int]) -> None:
        for i, key in enumerate(values):
            picture.rect(left + i * width, y, width, 26, f"{looks[key % digits]} thin")
            picture.text(left + (i + 0.5) * width, y + 17.5, str(key), "small", "middle")

    source = 13  # followed by an arrow, below the boxes
    rank = sum(key % digits == keys[source] % digits for key in keys[each:source])
    target = starts[keys[source] % digits, 1] + rank
    picture.arrow((left + (source + 0.5) * width, 60), (left + (target + 0.5) * width, 282))
    picture.text(8, 20, "Keys; the colour is the last digit, 0 to 3", "bold")
    row(32, keys)
    picture.line(left + each * width, 26, left + each * width, 66, "line")
    picture.text(left, 76, "tile 0", "small muted")
    picture.text(left + each * width + 4, 76, "tile 1", "small muted")
    for t in range(tiles):
        x = left + t * each * width
        for name, y, numbers in (("counts", 90, counts[t]), ("starts", 172, [starts[d, t] for d in range(digits)])):
            for d, number in enumerate(numbers):
                picture.rect(x + 52 + d * 36, y + 14, 36, 26, f"{looks[d]} thin")
                picture.text(x + 70 + d * 36, y + 31, str(number), "bold", "middle")
                picture.text(x + 70 + d * 36, y + 8, f"digit {d}" if d == 0 else str(d), "small muted", "middle")
            picture.text(x, y + 31, name, "small")
    picture.text(8, 240, "starts: all lower digits, then this digit in tiles before", "small")
    row(284, out)
    picture.texts(
        8,
        336,
        (
            f"{keys[source]} has digit {keys[source] % digits}: start {starts[keys[source] % digits, 1]}, and {rank} "
            f"such key before it in its tile: place {target}.",
            "Keys of one digit keep their order.",
        ),
        "small",
        20,
    )
    picture.save(directory)


def streams(directory: Path) -> None:
    """f09: the same chunks in one stream and in three, if each operation takes the same time."""
    picture = Picture(
        "f09_streams",
        460,
        330,
        "f09: copies and kernels in one stream and in three",
        "Four chunks. In one stream, copy in, kernel and copy out of each run one after the other: 12 units of "
        "time. In three streams, the copy in of a chunk runs beside the kernel of the one before and the copy "
        "out of the one before that: 6 units.",
    )
    left, width, height = 76, 30, 26
    for top, title, start in (
        (36, "One stream: nothing at the same time", lambda c: 3 * c),
        (176, "Three streams: chunks overlap", lambda c: c),
    ):
        picture.text(8, top - 14, title, "bold")
        for row, name in enumerate(("copy in", "kernel", "copy out")):
            picture.text(left - 8, top + row * height + 18, name, "small", "end")
            picture.line(left, top + (row + 1) * height, left + 12 * width, top + (row + 1) * height, "faint")
            for chunk in range(4):
                x = left + (start(chunk) + row) * width
                picture.tile(x, top + row * height + 2, width, height - 4, "qkv"[row], "", "thin")
                picture.text(x + width / 2, top + row * height + 18, str(chunk), "small", "middle")
        end = left + (start(3) + 3) * width
        picture.arrow((left, top + 3 * height + 14), (end, top + 3 * height + 14))
        picture.text((left + end) / 2, top + 3 * height + 30, f"{start(3) + 3} units of time", "small", "middle")
    picture.text(8, 316, "Numbers are chunks. Each row is a part of the GPU.", "small")
    picture.save(directory)


def locks(directory: Path) -> None:
    """f10: who waits for whom."""
    picture = Picture(
        "f10_locks",
        440,
        336,
        "f10: a circle of threads that wait, and none",
        "Thread i holds lock i and waits for lock i + 1, the last one for lock 0: a circle. If the last thread "
        "takes lock 0 first, it holds no other lock while it waits, and the thread before it can go on.",
    )
    for left, title, last_holds in ((8, "Own lock first", True), (232, "Lower lock first", False)):
        picture.text(left, 20, title, "large")
        for i in range(4):
            y = 52 + i * 58
            name = str(i) if i < 3 else "63"
            holds = i < 3 or last_holds
            picture.tile(left, y, 78, 34, "q", "", "thin")
            picture.text(left + 39, y + 22, f"thread {name}", "small", "middle")
            picture.tile(left + 112, y, 62, 34, "k" if holds else "n", "", "thick" if holds else "thin")
            picture.text(left + 143, y + 22, f"lock {name}", "small", "middle")
            if holds:
                picture.line(left + 78, y + 17, left + 112, y + 17, "line")
            if i < 3:
                picture.arrow((left + 60, y + 34), (left + 120, y + 58))
        picture.path(
            f"M{left + 60} 260C{left + 90} 296 {left + 200} 296 {left + 196} 160"
            f"C{left + 194} 100 {left + 190} 78 {left + 176} 72",
            "arrow",
        )
    picture.text(8, 308, "Line: holds the lock. Arrow: waits for it.", "small")
    picture.text(8, 326, "Right: lock 63 is free, so thread 2 can go on.", "small")
    picture.save(directory)


def cluster(directory: Path) -> None:
    """f11: the parts that the blocks of a cluster tell each other."""
    picture = Picture(
        "f11_cluster",
        460,
        322,
        "f11: a row in the shared memory of a cluster",
        "A row of numbers is cut into parts, of which each block of a cluster keeps one in its shared memory. Each "
        "block has an array with a place for the part of every block. Block 1 stores its maximum and sum into place 1 "
        "of the arrays of all blocks, and so do the other blocks with theirs.",
    )
    blocks, left, width, gap = 4, 8, 104, 10
    picture.text(left, 20, "The row in global memory, read once", "bold")
    for block in range(blocks):
        x = left + block * (width + gap)
        middle = x + width / 2
        picture.tile(left + block * 111, 32, 111, 26, "q", "", "thin")
        picture.text(left + block * 111 + 55, 50, f"part {block}", "small", "middle")
        picture.tile(x, 80, width, 196, "n", "", "thin")
        picture.tile(x + 8, 100, width - 16, 34, "q", "", "thin")
        picture.text(middle, 121, "kept", "small", "middle")
        picture.arrow((left + block * 111 + 55, 58), (middle, 98))
        picture.text(middle, 156, "m, l of its part", "small", "middle")
        for place in range(blocks):
            look = "k" if place == 1 else "v"
            picture.tile(x + 8 + place * 22, 216, 22, 26, look, "", "thin")
            picture.text(x + 19 + place * 22, 234, str(place), "small", "middle")
        picture.text(middle, 262, "parts", "small", "middle")
        picture.text(middle, 294, f"block {block}", "small", "middle")
    source = left + width + gap + width / 2
    for block in range(blocks):
        x = left + block * (width + gap) + 8 + 1.5 * 22
        picture.arrow((source, 162), (x, 214))
    picture.text(left, 314, "Arrows to place 1: block 1 stores into the shared memory of all blocks.", "small")
    picture.save(directory)


def layer(directory: Path) -> None:
    """f12: the tensors of a layer, their heads, and where a head lies in a row."""
    sizes = constants("f12")
    heads, kv_heads, d = (sizes[f"{name}_ON_CPU"] for name in ("HEADS", "KV_HEADS", "HEAD_DIM"))
    c, width = heads * d, (heads + 2 * kv_heads) * d
    picture = Picture(
        "f12_layer",
        470,
        380,
        "f12: the shapes of an attention layer",
        f"X, of a row of {c} numbers for each token, times the weights of Q, K and V is QKV, whose rows have {width} "
        f"numbers: {heads} heads of Q, {kv_heads} of K and {kv_heads} of V, {d} numbers each. Attention makes O of "
        f"it, {heads} heads in rows of {c}, and O times Wo is Y. Backward the arrows go from dY to dX. Below, a row of "
        f"QKV: head 1 of K begins {heads * d + d} numbers after the row, and the next row {width} numbers further.",
    )
    left, gap, scale, height = 8, 48, 62 / c, 62

    def matrix(x: float, y: float, name: str, parts: list[tuple[str, int]], look: str = "n") -> float:
        """A rectangle for each head, or one for all; returns its right end."""
        end = x
        for fill, count in parts:
            for _ in range(count):
                picture.tile(end, y, d * scale, height, fill, "", "thin")
                end += d * scale
        if not parts:
            end = x + c * scale
            picture.tile(x, y, c * scale, height, look, "", "thin")
        picture.text((x + end) / 2, y + height + 17, name, "bold", "middle")
        return end

    three = [("q", heads), ("k", kv_heads), ("v", kv_heads)]
    row = (("X", []), ("QKV", three), ("O", [("o", heads)]), ("Y", []))
    shapes = ("B N x C", "B N x (H + 2 H_kv) D", "B N x H D", "B N x C")
    picture.text(left, 20, "Forward: what a row of each matrix has for a token", "large")
    for y, prefix, steps in ((34, "", ("Wqkv", "attend", "Wo")), (172, "d", ("W^T", "attend", "W^T"))):
        x = left
        for number, (name, parts) in enumerate(row):
            start, x = x, matrix(x, y, prefix + name, parts)
            if not prefix:
                picture.text((start + x) / 2, y + height + 34, shapes[number], "small muted", "middle")
            if number < 3:
                ends = ((x + 3, y + height / 2), (x + gap - 3, y + height / 2))
                picture.arrow(*(ends[::-1] if prefix else ends))
                picture.text(x + gap / 2, y + height / 2 - 8, steps[number], "small", "middle")
                x += gap
    picture.text(left, 160, "Backward: the same shapes, from dY to dX", "large")
    y, unit = 300, 454 / width
    picture.text(left, y - 14, "A row of QKV: where each head begins", "large")
    for head in range(heads + 2 * kv_heads):
        fill, own = ("q", head) if head < heads else ("k", head - heads)
        if head >= heads + kv_heads:
            fill, own = "v", head - heads - kv_heads
        picture.tile(left + head * d * unit, y, d * unit, 30, fill, "", "thin")
        picture.text(left + (head + 0.5) * d * unit, y + 20, f"{fill.upper()} {own}", "small", "middle")
        picture.text(left + head * d * unit, y + 46, str(head * d), "small muted")
    picture.text(left, y + 70, f"+ {d}: the next head. + {width}: the next token.", "small")
    picture.save(directory)


def all_of(directory: Path) -> None:
    for draw in (network, radix, streams, locks, cluster, layer):
        draw(directory)
