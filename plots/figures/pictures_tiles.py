"""Pictures of the tiles of each step: what a thread block works on, where it lies, and the order of
the loop. Sizes are those that the programs print with --info."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from plots.figures.pictures_loops import HEAD_DIM, N, Loop, Shape, loop_of, saved_mask, shape_of
from plots.figures.pictures_svg import SMALL, Picture, text_width

WIDTH = 880
DEVICE_X, DEVICE_WIDTH = 8, 366  # the frame of device memory
CHIP_X, CHIP_WIDTH = 428, 446  # the frame of the thread block
FRAME_Y, FRAME_HEIGHT = 10, 412
SMALL_SCALE = 0.47  # units per element of whole matrices
GAP = 24  # between tiles of a thread block
LINE = 21  # from one line of text to the next


# --- Parts of all pictures ------------------------------------------------------------------------


def frame(picture: Picture, x: float, width: float, height: float, title: str) -> None:
    picture.rect(x, FRAME_Y, width, height, "none thin")
    picture.text(x + 8, FRAME_Y + 20, title, "bold")


def numbers(picture: Picture, x: float, y: float, events: str) -> None:
    """Numbers of the list of events, in circles; the first is at x."""
    for i, event in enumerate(events.split()):
        picture.add(f'<circle cx="{x + 20 * i:.0f}" cy="{y:.0f}" r="9" class="n line"/>')
        picture.text(x + 20 * i, y + 4.4, event, "small bold", "middle")


def legend(picture: Picture, y: float, lines: tuple[tuple[str, str], ...]) -> float:
    """A line for each kind of memory, with its hatching; returns where the next line would be."""
    for memory, text in lines:
        picture.tile(DEVICE_X, y - 12, 24, 15, "n", memory, "thin")
        picture.text(DEVICE_X + 32, y, text)
        y += LINE
    return y


# --- Steps with one kernel ------------------------------------------------------------------------


@dataclass
class Drawing:
    """The picture of a fused kernel: matrices in device memory, and the tiles of a thread block."""

    picture: Picture
    loop: Loop
    shape: Shape

    # Of the matrices in device memory.
    side, depth = N * SMALL_SCALE, HEAD_DIM * SMALL_SCALE
    q_x, s_x, o_x = DEVICE_X + 26, DEVICE_X + 74, DEVICE_X + 74 + N * SMALL_SCALE + 14
    v_y, k_y, s_y = FRAME_Y + 36, FRAME_Y + 76, FRAME_Y + 132

    def __post_init__(self) -> None:
        self.m, self.n = self.shape.block_m * SMALL_SCALE, self.shape.block_n * SMALL_SCALE
        self.row = self.s_y + self.loop.q_tile * self.m
        self.column = self.s_x + self.loop.key_tile * self.n
        self.computing = self.shape.threads - 128 * self.loop.consumers  # threads

    def matrices(self) -> None:
        """Q, K, V and O, with the tiles that are in shared memory or on their way."""
        picture, side, depth = self.picture, self.side, self.depth
        frame(picture, DEVICE_X, DEVICE_WIDTH, FRAME_HEIGHT, "Device memory, one head")
        for name, x in (("q", self.q_x), ("o", self.o_x)):
            picture.rect(x, self.s_y, depth, side, f"{name} line")
            picture.rect(x, self.row, depth, self.m, "none thick")
            picture.text(x + depth / 2, self.s_y - 6, name.upper(), "bold", "middle")
        for name, y in (("k", self.k_y), ("v", self.v_y)):
            picture.rect(self.s_x, y, side, depth, f"{name} line")
            picture.text(self.s_x - 6, y + depth / 2 + 4, name.upper(), "bold", "end")
        for buffer in self.loop.buffers:
            picture.rect(
                self.column + self.n * buffer.next_tile,
                {"k": self.k_y, "v": self.v_y}[buffer.content],
                self.n,
                depth,
                f"none thick{' dash' * buffer.in_flight}",
            )
        picture.rect(self.s_x, self.s_y, side, side, "none thin dash")
        picture.text(self.s_x + side / 2, self.s_y + side + 18, "S is never stored", "small", "middle")
        picture.text(self.q_x - 6, self.s_y + side / 2, f"{N} queries", "small muted", "middle", turned=True)
        picture.text(self.s_x + side / 2, self.s_y - 7, f"{N} keys", "small muted", "middle")

    def row_of_tiles(self) -> None:
        """The tiles of S that the thread block visits, and the direction of the loop."""
        picture, below = self.picture, self.row + self.m
        for tile in range(-(-N // self.shape.block_n)):
            picture.rect(
                self.s_x + tile * self.n,
                self.row,
                min(self.n, self.side - tile * self.n),
                self.m,
                "s thin" if tile <= self.loop.key_tile else "none thin",
            )
        picture.rect(self.column, self.row, self.n, self.m, "none thick")
        picture.arrow((self.s_x, below + 10), (self.s_x + self.side, below + 10))
        picture.text(self.s_x + self.side / 2, below + 26, "the loop goes over the keys", "small", "middle")

    def masked_row(self, attended: np.ndarray) -> str:
        """The same for a mask: the tiles by type. Returns the list of tiles in words."""
        picture, shape = self.picture, self.shape
        first_q = self.loop.q_tile * shape.block_m
        rows = slice(first_q, first_q + shape.block_m)
        causal = np.tri(N, dtype=bool)
        picture.area(self.s_x, self.s_y, SMALL_SCALE, attended, "n thin")
        listed = []
        for tile in range(N // shape.block_n):
            columns = slice(tile * shape.block_n, (tile + 1) * shape.block_n)
            part = attended[rows, columns]
            kind = (
                "-" if not part.any() else "F" if part.all() else "C" if (part == causal[rows, columns]).all() else "P"
            )
            x = self.s_x + tile * self.n
            picture.rect(x, self.row, self.n, self.m, "none thin" if kind == "-" else "s thin")
            picture.text(x + self.n / 2, self.row + self.m / 2 + 5, kind, "bold", "middle")
            listed += [f"{kind}{tile}"] * (kind != "-")
        picture.rect(self.column, self.row, self.n, self.m, "none thick")
        for i, line in enumerate(("outlined: attended", self.loop.mask)):
            picture.text(self.s_x + self.side - 6, self.s_y + 20 + 16 * i, line, "small", "end")
        return (
            f"List of this tile of queries: {', '.join(listed)}. F: all attended, C: the "
            "causal rule, P: partial, -: skipped."
        )

    def thread_block(self) -> None:
        """The tiles of the thread block, larger and in the same places, and arrows to them."""
        frame(self.picture, CHIP_X, CHIP_WIDTH, FRAME_HEIGHT, "One thread block, at one moment")
        width, depth = self.shape.block_n * self.loop.scale, HEAD_DIM * self.loop.scale
        height = self.shape.block_m * self.loop.scale
        q_x = CHIP_X + 24
        s_x = q_x + depth + GAP
        v_y = FRAME_Y + 42
        k_y = v_y + depth + 16
        s_y = k_y + depth + 24
        self.tiles_of_keys(s_x, {"v": v_y, "k": k_y}, width, depth)
        if self.loop.consumers:
            self.producer(s_x, v_y + 22, k_y - 2)
        self.tiles_of_queries((q_x, s_x, s_x + width + GAP - 6), s_y, width, depth, height)
        if "p" in self.loop.places:
            p_y = s_y + height + 30
            self.picture.tile(s_x, p_y, width, height, "s", "shared")
            self.picture.label(s_x + width / 2, p_y + height / 2, "P", "s", "small bold")
            numbers(self.picture, s_x - 12, p_y + 10, self.loop.places["p"])
            self.picture.arrow((s_x + width / 2, s_y + height), (s_x + width / 2, p_y))
        separate = "v" in self.loop.places
        copies = {"V": v_y + depth / 2} if separate else {}
        copies |= {"K" if separate else "K, V": k_y + depth / 2, "Q": s_y + height / 2 - 12}
        left, right = DEVICE_X + DEVICE_WIDTH + 2, CHIP_X - 2
        for name, y in copies.items():
            self.picture.arrow((left, y), (right, y))
            self.picture.text((left + right) / 2, y - 5, name, "small", "middle")
        y = s_y + height / 2 + 22
        self.picture.arrow((right, y), (left, y))
        self.picture.text((left + right) / 2, y - 5, "O", "small", "middle")

    def producer(self, right: float, top: float, bottom: float) -> None:
        """A box for the thread that asks for all tiles, between the events of V and of K."""
        x, width = CHIP_X + 8, right - CHIP_X - 16
        self.picture.rect(x, top, width, bottom - top, "n line")
        for i, line in enumerate(("producer:", "thread 0")):
            self.picture.text(x + width / 2, (top + bottom) / 2 - 4 + 16 * i, line, "small bold", "middle")

    def tiles_of_keys(self, s_x: float, tops: dict[str, float], width: float, depth: float) -> None:
        """The buffers of K and V."""
        for buffer in self.loop.buffers:
            x, y = s_x + buffer.column * (width + 12), tops[buffer.place]
            self.picture.tile(
                x, y, width, depth, buffer.content, "shared", "thick dash" if buffer.in_flight else "line"
            )
            wide = text_width(buffer.label, SMALL) > width - 6
            lines = buffer.label.split(" ", 1) if wide else [buffer.label]
            for i, line in enumerate(lines):
                middle = y + depth / 2 + 17 * (i - (len(lines) - 1) / 2)
                self.picture.label(x + width / 2, middle, line, buffer.content, "small bold")
            if buffer.column == 0:
                events = self.loop.places[buffer.place]
                numbers(self.picture, x - 12 - 20 * events.count(" "), y + 10, events)

    def tiles_of_queries(
        self, lefts: tuple[float, float, float], y: float, width: float, depth: float, height: float
    ) -> None:
        """Q, S, m, l and O, and the rows of each warp."""
        picture, places = self.picture, self.loop.places
        q_x, s_x, m_x = lefts
        o_x = m_x + 34
        picture.tile(q_x, y, depth, height, "q", "shared")
        picture.label(q_x + depth / 2, y + height / 2, "Q", "q", "small bold")
        picture.tile(s_x, y, width, height, "s", "registers")
        for x in (m_x, m_x + 12):
            picture.tile(x, y, 9, height, "s", "registers", "thin")
        picture.text(m_x + 10.5, y - 6, "m l", "small bold", "middle")
        picture.tile(o_x, y, depth, height, "o", "registers")
        parts, part = self.shape.threads // 32, "warp"
        if self.loop.consumers:
            parts, part = self.computing // 128, "consumer"
        for i in range(parts) if self.loop.warps else ():
            top = y + height * i / parts
            if i:
                picture.line(s_x, top, s_x + width, top, "thin")
                picture.line(o_x, top, o_x + depth, top, "thin")
            picture.text(o_x + depth + 5, top + height / parts / 2 + 4, f"{part} {i}", "small")
        if "stored" in places:
            self.stored(o_x + depth + 82, y, depth, height)
        # Of the second of four warps or the fourth of eight, apart from the lines.
        rows = parts if self.loop.consumers else max(4, parts)
        middle = y + height * (rows // 2 - 0.5) / rows
        picture.label(s_x + width / 2, middle, "S" if "p" in places else "S, P", "s", "small bold")
        picture.label(o_x + depth / 2, middle, "O", "o", "small bold")
        numbers(picture, s_x - 12, y + 10, places["s"])
        numbers(picture, m_x + 10.5, y + height + 13, places["ml"])
        numbers(picture, o_x + depth / 2, y + height + 13, places["o"])

    def stored(self, x: float, y: float, width: float, height: float) -> None:
        """O of the tile of queries before, on its way to device memory."""
        self.picture.tile(x, y, width, height, "o", "shared", "thick dash")
        for i, line in enumerate(self.loop.places["stored"].split(" ")):
            self.picture.label(x + width / 2, y + height / 2 - 9 + 18 * i, line, "o", "small bold")

    def words(self, y: float, listed: str) -> float:
        """Sizes, the list of tiles, and the order of the loop, in which the moment is marked."""
        picture, loop, shape = self.picture, self.loop, self.shape
        who = " of the consumers" * loop.consumers
        y = legend(
            picture,
            y,
            (
                (
                    "",
                    f"Device memory: Q, K, V, O, each {N} x {HEAD_DIM} for one head. K and V are "
                    "drawn turned, one key per column.",
                ),
                ("shared", f"Shared memory, {shape.shared_bytes:,} bytes: {loop.shared}."),
                ("registers", f"Registers of {self.computing} threads{who}: {loop.registers}."),
            ),
        )
        in_flight = any(buffer.in_flight for buffer in loop.buffers)
        more = "or from it " * ("stored" in loop.places)
        lines = [
            f"Tiles: Q {shape.block_m} x {HEAD_DIM}, K and V {shape.block_n} x {HEAD_DIM}, "
            f"S {shape.block_m} x {shape.block_n}, O {shape.block_m} x {HEAD_DIM}."
            + f" Dashed: the copy to shared memory {more}is in flight."
            * in_flight
        ]
        y = picture.texts(DEVICE_X + 32, y, filter(None, (*lines, listed)), step=LINE) + 4
        for i, event in enumerate(loop.order, 1):
            numbers(picture, DEVICE_X + 9, y - 4, str(i))
            picture.text(DEVICE_X + 26, y, event, "bold" if i == loop.moment else "")
            if i == loop.moment:
                picture.text(WIDTH - 8, y, "the moment drawn above", "mark bold", "end")
            y += LINE
        picture.text(DEVICE_X + 26, y, f"Before the loop: {loop.before}. After the loop: {loop.after}.")
        return y


def fused(name: str, program: Path, directory: Path) -> None:
    loop, shape = loop_of(name), shape_of(program)
    picture = Picture(
        f"{name}_tiles",
        WIDTH,
        0,
        f"Step {name.removeprefix('step')}: {loop.idea}",
        f"Left: Q, K, V, S and O of one head with {N} queries, {N} keys and D = {HEAD_DIM}. "
        f"Outlined are the tiles of one thread block at one moment: {shape.block_m} rows of Q and "
        f"{shape.block_n} rows of K and V. Right: the same tiles in shared memory and registers. "
        f"The events of one iteration, in order: {' '.join(loop.order)}",
    )
    drawing, listed = Drawing(picture, loop, shape), ""
    drawing.matrices()
    if loop.mask:
        attended, _ = saved_mask(program, loop.mask)
        listed = drawing.masked_row(attended)
    else:
        drawing.row_of_tiles()
    drawing.thread_block()
    picture.height = drawing.words(FRAME_Y + FRAME_HEIGHT + 24, listed) + 14
    picture.save(directory)


# --- Three kernels --------------------------------------------------------------------------------

PANEL_WIDTH, PANEL_STEP = 284, 291
KERNEL_SCALE, PIECE_SCALE = 0.29, 1.6
KERNELS = {
    "scores": (
        "S = scale Q K^T",
        (
            "Load 32 columns of Q and of K. Barrier.",
            "Each thread: s += q[row][i] * k[lane][i]",
            "for 32 values of i. Barrier.",
            "Loop over D; then store S.",
        ),
    ),
    "softmax": (
        "P = softmax(S), in place",
        (
            "Read the row: its maximum.",
            "Read it again: the sum of exp(s - max).",
            "Read it again: write P over S.",
            "A lane takes every 32nd entry.",
        ),
    ),
    "output": (
        "O = P V",
        (
            "Load 32 keys of P and of V. Barrier.",
            "Each thread: o += p[row][i] * v[i][lane]",
            "for 32 values of i. Barrier.",
            "Loop over the keys; then store O.",
        ),
    ),
}


def product_panel(picture: Picture, x: float, tile: int, scores: bool) -> None:
    """Matrices of a product in device memory, and its tiles in a thread block."""
    side, depth, small = N * KERNEL_SCALE, HEAD_DIM * KERNEL_SCALE, tile * KERNEL_SCALE
    wide_x, top_y = x + (82 if scores else 60), FRAME_Y + 116
    row, column = top_y + 6 * small, wide_x + 9 * small
    thin_x = wide_x - depth - 26 if scores else wide_x + side + 14
    thin, flat, wide = ("q", "k", "s") if scores else ("o", "v", "s")
    picture.rect(wide_x, top_y, side, side, f"{wide} line")
    picture.rect(thin_x, top_y, depth, side, f"{thin} line")
    picture.rect(wide_x, top_y - depth - 24, side, depth, f"{flat} line")
    picture.text(thin_x + depth / 2, top_y - 6, thin.upper(), "bold", "middle")
    picture.text(wide_x - 6, top_y - depth / 2 - 20, "K^T" if scores else "V", "bold", "end")
    picture.text(wide_x - 6, top_y + 12, "S" if scores else "P", "bold", "end")
    picture.text(wide_x + side / 2, top_y - 8, f"{N} keys", "small muted", "middle")
    picture.rect(column, row, small, small, "none thick")
    for of_row in (True, False) if scores else (True,):
        at = (thin_x + small, row) if of_row else (column, top_y - 24 - small)
        picture.rect(*at, small, small, "none thick")
    if not scores:
        picture.rect(column, top_y - 24 - small, small, small, "none thick")
        picture.arrow((wide_x, row + small + 8), (wide_x + side, row + small + 8))
    y, edge = top_y + side + 38, tile * PIECE_SCALE
    names = (
        (("q", "Q", "shared"), ("k", "K^T", "shared"), ("s", "S", "registers"))
        if scores
        else (("s", "P", "shared"), ("v", "V", "shared"), ("o", "O", "registers"))
    )
    for i, (fill, name, memory) in enumerate(names):
        left = x + 26 + i * (edge + 40)
        picture.tile(left, y, edge, edge, fill, memory)
        picture.label(left + edge / 2, y + edge / 2, name, fill, "small bold")
        if i:
            picture.text(left - 20, y + edge / 2 + 5, "x" if i == 1 else "=", "bold", "middle")
    picture.text(x + 26, y + edge + 18, f"{tile} x {tile} each; one entry of {names[2][1]} a thread", "small")


def softmax_panel(picture: Picture, x: float, rows: int) -> None:
    side, top_y = N * KERNEL_SCALE, FRAME_Y + 116
    left = x + 66
    picture.rect(left, top_y, side, side, "s line")
    picture.text(left - 6, top_y + 12, "S", "bold", "end")
    picture.text(left + side / 2, top_y - 8, f"{N} keys", "small muted", "middle")
    row = top_y + 24 * rows * KERNEL_SCALE
    picture.rect(left, row, side, rows * KERNEL_SCALE, "none thick")
    picture.text(left + side / 2, row + 20, f"{rows} rows", "small", "middle")
    y = top_y + side + 40
    for warp in range(rows):
        at = y + 10.5 * warp
        picture.rect(x + 66, at, side, 8.5, "s thin")
        picture.tile(x + 226, at, 40, 8.5, "n", "registers", "thin")
    picture.text(x + 246, y - 6, "max, sum", "small", "middle")
    picture.text(x + 60, y + 10, "warp 0", "small", "end")
    picture.text(x + 60, y + 10.5 * rows - 2, f"warp {rows - 1}", "small", "end")


def three_kernels(program: Path, directory: Path) -> None:
    shape = shape_of(program)
    tile, rows = shape.block_m, shape.kernels["softmax"][1] // 32
    height = 574
    picture = Picture(
        f"{program.name}_tiles",
        WIDTH,
        height,
        f"Step {program.name.removeprefix('step')}: three kernels",
        f"One head with {N} queries, {N} keys and D = {HEAD_DIM}. scores: a thread block loads "
        f"{tile} x {tile} entries of Q and of K to shared memory and computes as many entries of "
        f"S, which it writes to device memory. softmax: a thread block has {rows} warps, and each "
        f"computes one row, in device memory. output: a thread block loads {tile} x {tile} "
        "entries of P and of V and computes as many of O.",
    )
    for i, (name, (formula, order)) in enumerate(KERNELS.items()):
        x = DEVICE_X + i * PANEL_STEP
        blocks, threads, _ = shape.kernels[name]
        frame(picture, x, PANEL_WIDTH, height - FRAME_Y - 80, f"{i + 1}. {name}: {formula}")
        picture.text(x + 8, FRAME_Y + 40, f"2 heads: {blocks} thread blocks of {threads:,} threads", "small")
        if name == "softmax":
            softmax_panel(picture, x, rows)
        else:
            product_panel(picture, x, tile, name == "scores")
        for j, line in enumerate(order):
            picture.text(x + 10, FRAME_Y + 410 + 19 * j, line, "small")
    static = 4 * tile * (2 * tile + 1), 8 * tile * tile
    legend(
        picture,
        height - 50,
        (
            (
                "",
                f"Device memory: Q, K, V, O, each {N} x {HEAD_DIM}; S, and P in its place, "
                f"{N} x {N} in fp32, for each head.",
            ),
            ("shared", f"Shared memory, in fp32: {static[0]:,} bytes in scores, {static[1]:,} bytes in output."),
            (
                "registers",
                "Registers. Outlined: what one thread block works on at one moment. V is "
                "drawn turned, one key per column.",
            ),
        ),
    )
    picture.save(directory)
