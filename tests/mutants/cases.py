"""The problems that a mutant must solve: few and small, but enough for the kernels' code paths.

Which of them a step gets depends on what it says of itself, and on the head dimensions for which
workspace.py compiles it.
"""

import random
import re
from collections.abc import Callable, Container, Sequence
from pathlib import Path

import numpy as np

MASKED, CAUSAL, FULL, PARTIAL = range(4)
Tiles = Callable[[random.Random], list[list[bool]]]

POISON = -(2**30) + 7  # in fields that must not be used; twice this is an int32, too


def write_npy(path: Path, dtype: str, shape: tuple[int, ...], values: list) -> None:
    np.save(path, np.array(values, dtype).reshape(shape))


def write_inputs(
    directory: Path, q_len: int, kv_len: int, changes: dict[tuple[str, int, int], float], head_dim: int = 64
) -> Path:
    """2 heads. `changes` are for the first head: by tensor, row and column."""
    directory.mkdir(parents=True, exist_ok=True)
    rng = random.Random(1)
    for name in "qkv":
        length = q_len if name == "q" else kv_len
        values = [rng.gauss(0, 1) for _ in range(2 * length * head_dim)]
        for (tensor, row, column), value in changes.items():
            if tensor == name:
                values[row * head_dim + column] = value
        write_npy(directory / f"{name}.npy", "<f4", (1, 2, length, head_dim), values)
    return directory


def write_sink(directory: Path, keys: int, k0: float) -> Path:
    """130 queries and 192 keys. In the first head the first `keys` have large and about equal
    scores, and V of 0. What the others add to O is small in P, but all that there is."""
    changes = {("q", row, 0): 20.0 for row in range(130)}
    changes |= {("k", row, 0): k0 if row < keys else -k0 for row in range(192)}
    changes |= {("v", row, column): 0.0 for row in range(keys) for column in range(64)}
    return write_inputs(directory, 130, 192, changes)


def write_scores(directory: Path, k0: np.ndarray, zero: np.ndarray) -> Path:
    """130 queries, whose scores are 448 times k0 of each key; V is 0 in the keys of `zero`."""
    directory.mkdir(parents=True, exist_ok=True)
    q, k = np.zeros((1, 2, 130, 64), "<f4"), np.zeros((1, 2, len(k0), 64), "<f4")
    v = np.random.default_rng(1).standard_normal(k.shape, "<f4")
    q[..., 0], k[..., 0], v[:, :, zero] = 448, k0, 0
    for name, tensor in zip("qkv", (q, k, v), strict=True):
        np.save(directory / f"{name}.npy", tensor)
    return directory


def sums_at_a_bound(directory: Path) -> list[str]:
    """In e4m3: a sum of a lane that is just small enough; and a maximum that must not be raised,
    because what other lanes add would be lost."""
    lane = np.arange(256) % 8 // 2
    k0 = np.where(lane > 0, -224, -448)[:192]
    k0[[0, 1, 8]] = 0, 0, -28
    late = (np.arange(256) >= 128) & (lane > 0)
    k1 = np.where(late, -96, -448)
    k1[[0, 128, 129, 136, 137]] = 448, 416, 416, 416, 352
    at, above = write_scores(directory / "at", k0, lane[:192] == 0), write_scores(directory / "above", k1, ~late)
    return [f"--input {at} --scale 0.000110514537716828", f"--input {above} --scale 4.835011025111225e-05"]


def _write_mask(
    directory: Path,
    shapes: list[tuple[int, int]],
    rows: int,
    slots: int,
    fields: list[list[int]],
    block: int,
    tiles: list[list[bool]],
) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    names = ("kv_num_blocks", "kv_indices", "block_mask_types", "partial_block_mask_indices")
    for name, shape, values in zip(names, shapes, fields, strict=True):
        whole = (*shape, rows) if name == names[0] else (*shape, rows, slots)
        write_npy(directory / f"{name}.npy", "<i4", whole, values)
    write_npy(
        directory / "partial_block_masks.npy",
        "|b1",
        (len(tiles), block, block),
        [bit for tile in tiles for bit in tile],
    )
    return directory


def write_disordered_mask(directory: Path, tiles: Tiles) -> Path:
    """2 batch entries, 2 heads, 200 x 257 or more in blocks of 128: shuffled slots of every type,
    with MASKED ones between them."""
    rng = random.Random(2)
    rows, slots, most = 2, 6, 3
    counts, indices, types, partials = [], [], [], []
    for _ in range(2 * 2 * rows):
        blocks = rng.sample(range(most), most)
        kinds = [FULL, PARTIAL, CAUSAL, PARTIAL]
        row = [
            (block, kind := rng.choice(kinds), rng.randrange(3) if kind == PARTIAL else POISON)
            for block in blocks[: rng.randint(1, most)]
        ]
        row.insert(rng.randrange(len(row) + 1), (POISON, MASKED, POISON))
        counts.append(len(row))
        row += [(POISON, POISON, POISON)] * (slots - len(row))
        for field, values in zip((indices, types, partials), zip(*row), strict=True):
            field.extend(values)
    return _write_mask(directory, [(2, 2)] * 4, rows, slots, [counts, indices, types, partials], 128, tiles(rng))


def mixed_tiles(rng: random.Random) -> list[list[bool]]:
    tiles = [
        [
            (i // 128 % 5 != 0)
            and (i % 128 < 64 and tile != 1 or rng.random() < 0.3)
            and not (tile == 2 and i % 128 >= 64)
            for i in range(128 * 128)
        ]
        for tile in range(2)
    ]
    return [*tiles, [i % 128 < 64 or i // 128 == 9 and i % 128 == 70 for i in range(128 * 128)]]


def edge_tiles(rng: random.Random) -> list[list[bool]]:
    """Each half is a tile of the kernel. First: all entries but one, one entry, both of the last
    row; second: some entries, none; third: all entries, one."""
    full_but_one, one = 127 * 128 + 5, 127 * 128 + 70
    return [
        [i % 128 < 64 and i != full_but_one or i == one for i in range(128 * 128)],
        [i % 128 < 64 and rng.random() < 0.3 for i in range(128 * 128)],
        [i % 128 < 64 or i == 9 * 128 + 70 for i in range(128 * 128)],
    ]


def write_mask_past_the_end(directory: Path, first: int = 0) -> Path:
    """200 queries in blocks of 128: all attend 64 keys from `first` on, 0 or 64; those past the
    last one attend all."""
    tiles = [
        [i % 128 // 64 == first // 64 or tile == 1 and i // 128 >= 72 for i in range(128 * 128)] for tile in range(2)
    ]
    return _write_mask(directory, [(1, 1)] * 4, 2, 1, [[1, 1], [0, 0], [PARTIAL] * 2, [0, 1]], 128, tiles)


def write_shared_mask(directory: Path) -> Path:
    """2 batch entries, 2 heads, 100 x 130 in blocks of 64: each tensor broadcasts differently."""
    rng = random.Random(3)
    rows, slots = 2, 3
    counts = [3, 2]
    indices = [block for _ in range(2 * rows) for block in rng.sample(range(3), 3)]
    types = [PARTIAL, FULL, PARTIAL, PARTIAL, PARTIAL, CAUSAL, FULL, PARTIAL, PARTIAL, PARTIAL, PARTIAL, PARTIAL]
    partials = [rng.randrange(4) for _ in range(2 * 2 * rows * slots)]
    tiles = [[rng.random() < 0.4 for _ in range(64 * 64)] for _ in range(4)]
    return _write_mask(
        directory, [(1, 1), (1, 2), (2, 1), (2, 2)], rows, slots, [counts, indices, types, partials], 64, tiles
    )


def write_spans(path: Path, spans: list[list[tuple[int, int]]], shape: tuple[int, ...], kv_len: int) -> Path:
    """A mask whose queries attend one span of keys each; `spans` are those of each head."""
    write_npy(
        path,
        "|b1",
        (*shape, len(spans[0]), kv_len),
        [first <= key < end for head in spans for first, end in head for key in range(kv_len)],
    )
    return path


def write_span_masks(directory: Path) -> tuple[Path, Path]:
    """2 batch entries, 2 heads, 130 x 700, each with other spans; and 200 x 200, where every
    second query attends nothing, and the others the last keys."""
    rng = random.Random(4)
    apart = [(0, 64) if q < 64 else (600, 660) for q in range(130)]  # no query attends keys between
    first_alone = [(0, 64) if q < 64 else (0, 0) for q in range(130)]
    falling = [(5, 400) if q % 64 < 32 else (0, 200) for q in range(130)]
    anywhere = [(first := rng.randrange(700), rng.randint(first + 1, 700)) for _ in range(130)]
    late = [(150, 200) if q % 2 else (0, 0) for q in range(200)]
    heads = [apart, first_alone, falling, anywhere]
    return (
        write_spans(directory / "spans.npy", heads, (2, 2), 700),
        write_spans(directory / "spans_late.npy", [late], (), 200),
    )


SCALAR = [
    "-b 2 -H 4 -G 2 -n 35 -k 70 -d 33 -m causal --layout bnhd",
    "-b 1 -H 2 -n 70 -k 35 -d 64 -m causal",
    "-b 1 -H 2 -n 66 -k 65 -d 40 --scale 30",
    "-b 1 -H 1 -n 64 -k 64 -d 64",
    "-b 1 -H 1 -n 5 -k 40 -d 2",
    "-b 1 -H 1 -n 65 -k 97 -d 34 -m causal",
    "-b 1 -H 1 -n 33 -k 33 -d 35",
]
# Of backward steps: dK and dV are sums over three query heads; P is nearly 0 or 1; at each head
# dimension for which kernels differ there are several tiles of queries and keys.
BACKWARD = [
    "-b 1 -H 3 -G 1 -n 40 -k 34 -d 64 -m causal -t bf16",
    "-b 1 -H 1 -n 33 -k 40 -d 64 -i spiky",
    "-b 1 -H 1 -n 40 -k 41 -d 64 -m causal",  # one key in the last tile of the first queries
    "-b 1 -H 1 -n 20 -k 33 -d 128 -m causal",
    "-b 1 -H 1 -n 18 -k 20 -d 256 -m causal -t bf16",
    "-b 1 -H 1 -n 30 -k 50 -d 128 -i sink",
    "-b 1 -H 2 -n 144 -k 260 -d 64 -m causal",  # no row of dQ is padding, and half of its last tile is past the end
]
BACKWARD_SPANS = [
    "-b 2 -H 4 -G 2 -n 400 -k 400 -d 64 -m document:1,130,69,200",
    "-b 1 -H 2 -n 300 -k 420 -d 128 -m window:100",
    "-b 1 -H 2 -n 420 -k 300 -d 128 -m window:64 --layout bnhd",
    "-b 1 -H 1 -n 260 -k 260 -d 64 -m prefix:140",
    "-b 1 -H 2 -n 70 -k 70 -d 64 -m empty",
]
TENSOR_CORE = [
    "-b 2 -H 4 -G 2 -n 133 -k 150 -d 64 -m causal --layout bnhd",
    "-b 1 -H 2 -n 129 -k 70 -d 96 -m causal",
    "-b 1 -H 1 -n 300 -k 20 -d 64 -m causal",
    "-b 1 -H 2 -n 70 -k 65 -d 64 --scale 0.3",
    "-b 1 -H 1 -n 20 -k 127 -d 64",
    "-b 1 -H 1 -n 130 -k 192 -d 64 -m causal",
    "-b 1 -H 1 -n 40 -k 129 -d 64",
    "-b 1 -H 1 -n 129 -k 128 -d 64 -m causal",
    "-b 1 -H 1 -n 130 -k 128 -d 64 -m causal",
    "-b 1 -H 1 -n 100 -k 64 -d 96",
    "-b 1 -H 1 -n 20 -k 40 -d 256",
    "-b 1 -H 1 -n 17 -k 70 -d 64",
    "-b 1 -H 1 -n 65 -k 130 -d 64 --scale 30 -m causal",
    # Scores that later tiles exceed by far.
    "-b 1 -H 2 -n 70 -k 400 -d 64 --scale 1",
    "-b 1 -H 1 -n 300 -k 300 -d 64 --scale 1 -m causal",
    "-b 1 -H 2 -n 70 -k 300 -d 96 --scale 0.8",
]
BLOCK_MASK = [
    "-b 2 -H 4 -G 2 -n 200 -k 233 -d 64 -m document:3 --layout bnhd",
    "-b 1 -H 2 -n 200 -k 300 -d 64 -m causal --mask-block 64x64",
    "-b 1 -H 1 -n 150 -k 192 -d 64 -m random:0.5 --mask-block 64x128",
    "-b 1 -H 1 -n 300 -k 333 -d 64 -m interleaved:3 --mask-block 128x64 --scale 0.3",
    "-b 1 -H 1 -n 20 -k 2200 -d 64 -m window:2100 --mask-block 64x64",
    "-b 1 -H 2 -n 129 -k 70 -d 64 -m causal",
    "-b 1 -H 1 -n 65 -k 191 -d 64 --mask-block 64x64",
    "-b 1 -H 1 -n 65 -k 191 -d 64 -m random:0.5 --mask-block 64x64",
    "-b 1 -H 1 -n 100 -k 129 -d 64 -m full",
    "-b 1 -H 1 -n 100 -k 128 -d 64 -m full",
    "-b 1 -H 1 -n 70 -k 100 -d 64 -m empty --mask-block 64x64",
    "-b 1 -H 1 -n 130 -k 192 -d 64 -m causal",
    "-b 1 -H 1 -n 200 -k 201 -d 64 -m causal",
    "-b 1 -H 1 -n 256 -k 255 -d 64 -m dilated:3 --scale 30",
    "-b 1 -H 1 -n 300 -k 130 -d 64 -m causal",
    # The rows of two heads are dealt out together, then those of the last; and K and V of one head
    # are larger than a cache.
    "-b 1 -H 5 -n 130 -k 32768 -d 64 -m window:64",
    "-b 1 -H 1 -n 5 -k 70000 -d 64 -m window:64",
]
# At D = 256 kernels may be other ones, and at D = 96 tiles have another swizzle.
PAIRS = [
    "-b 1 -H 2 -n 129 -k 70 -d 96 -m causal",
    "-b 2 -H 4 -G 2 -n 200 -k 233 -d 256 -m document:3 --layout bnhd",
    "-b 1 -H 1 -n 300 -k 333 -d 256 -m interleaved:3 --scale 0.3",
    "-b 1 -H 5 -n 129 -k 70 -d 256 -m causal",
    "-b 1 -H 1 -n 100 -k 129 -d 256",
    "-b 1 -H 1 -n 256 -k 255 -d 256 -m dilated:3 --scale 30",
]
# More tiles of keys than stages, for rows and for a warpgroup without rows.
RINGS = ["-b 1 -H 1 -n 20 -k 1000 -d 64", "-b 1 -H 2 -n 100 -k 900 -d 96"]
WIDE = [
    "-b 1 -H 5 -n 140 -k 300 -d 256",
    "-b 1 -H 1 -n 64 -k 160 -d 256 -i spiky",
    "-b 2 -H 3 -n 200 -k 250 -d 256 -m causal",
    "-b 1 -H 1 -n 64 -k 50 -d 256",  # the only tile has few keys
    "-b 1 -H 5 -n 140 -k 160 -d 256",  # two whole tiles, in a block's second tile of queries
]
# Spans that begin and end anywhere, queries without keys; masks that need lists of tiles.
SPANS = [
    "-b 1 -H 2 -n 700 -d 64 -m document:5",
    "-b 1 -H 2 -n 700 -k 300 -d 96 -m document:7",
    "-b 2 -H 2 -n 500 -k 800 -d 64 -m window:100",
    "-b 1 -H 1 -n 300 -d 96 -m window:30",
    "-b 1 -H 2 -n 300 -k 500 -d 64 -m prefix:333",
    "-b 1 -H 1 -n 300 -k 333 -d 256 -m window:150",
    "-b 2 -H 4 -n 328 -d 256 -m document:2",
    "-b 1 -H 2 -n 700 -d 64 -m document:5 --scale 1",
    "-b 1 -H 2 -n 300 -k 333 -d 64 -m dilated:3",
    "-b 2 -H 4 -G 2 -n 300 -k 900 -d 64 -m blocks:0.3 --mask-block 64x64",
    "-b 1 -H 2 -n 300 -k 400 -d 64 -m random:0.5 --scale 1",
    # Tiles of which all keys are unmasked, after one and after two that need the mask; the second
    # key is the first that all attend; a list whose last tile has one key.
    "-b 1 -H 1 -n 130 -k 300 -d 96 -m window:200",
    "-b 1 -H 1 -n 64 -k 151 -d 96 -m window:150",
    "-b 1 -H 1 -n 70 -k 129 -d 64 -m random:0.5 --mask-block 64x64",
    # The first tile of queries has the longest plan.
    "-b 1 -H 1 -n 200 -k 1000 -d 96 -m document:992,8",
]
PERSISTENT = [
    "-b 1 -H 1 -n 300 -k 400 -d 256 --scale 0.5 -m causal",
    # Tiles of queries that attend nothing, before others; five tiles of a head, three at a time.
    "-b 2 -H 4 -G 2 -n 800 -k 100 -d 64 -m causal",
    # The same where the O before takes places of V.
    "-b 2 -H 4 -n 200 -k 72 -d 256 -m causal",
    # A tile of one query; one whose last query alone attends the last tile of keys.
    "-b 1 -H 1 -n 193 -k 70 -d 64",
    "-b 1 -H 9 -n 192 -k 257 -d 64 -m causal",
    # Scores for which no maximum is raised.
    "-b 1 -H 1 -n 64 -k 700 -d 64",
]
E4M3 = [
    "-b 1 -H 2 -n 70 -k 129 -d 64",
    "-b 2 -H 4 -G 2 -n 100 -k 1000 -d 64 -i outlier",
    "-b 1 -H 2 -n 130 -k 300 -d 128 -i spiky --scales tensor",
    # The first query attends all keys of a tile but one.
    "-b 2 -H 4 -n 2 -k 128 -d 64 -m causal",
]


# Edges of tiles, parts and rows of a group; an empty cache; queries without keys; scores that later keys exceed by far.
DECODE = [
    "-b 1 -H 2 -k 1 -d 64",
    "-b 3 -H 8 -G 2 --lengths 0,65,16 -d 64 --layout bnhd",
    "-b 2 -H 3 -G 1 --lengths 300,33 -k 400 -d 64",
    "-b 1 -H 16 -G 1 -k 129 -d 64 --scale 1",
    "-b 2 -H 8 -G 4 -n 4 --lengths 3,150 -d 64",
    "-b 2 -H 10 -G 2 -n 3 --lengths 257,64 -d 64 -m window:20",
    "-b 1 -H 4 -G 2 -n 16 -k 90 -d 64 -m window:64 --layout bnhd",
    "-b 2 -H 6 -G 2 -n 2 --lengths 1,200 -d 64 -m full",
    "-b 1 -H 4 -G 4 -k 2500 -d 64 --scale 0.8",
    "-b 1 -H 8 -G 1 -n 2 -k 1030 -d 64",
    "-b 5 -H 4 -G 1 --lengths 700,1,0,31,128 -d 64",
    "-b 40 -H 2 -G 1 --lengths 0-90 -d 64",
    "-b 1 -H 1 -k 300 -d 64 -i sink",
    "-b 1 -H 1 -k 10 -d 64",  # fewer tiles than the shortest share has
    "-b 3 -H 2 -G 1 -n 4 -k 230 -d 64 -m window:164",  # a part in which three of four queries have no key
    "-b 9 -H 3 -G 1 --lengths 10-90 -d 64",  # shares with several row groups that are not full
    "-b 5 -H 21 -G 7 -k 70 -d 64",  # the same, of several heads
    # Windows begin with a tile and at its second key, and the first query sees all of the last tile but one key.
    "-b 1 -H 4 -G 2 -n 2 -k 192 -d 64 -m window:127",
    "-b 2 -H 12 -G 2 --lengths 33,300 -d 128",
    "-b 8 -H 4 -G 2 --lengths 1-3 -d 64 --scale 4",  # rows whose scores are all far below 0
    "-b 1 -H 4 -G 2 -k 1000 -d 64 -m window:998",  # begins in the first tile, but not with its first key
]
# With as many multiprocessors as an H200 has. First as many row groups as there is room for clusters of 8, of 4, and
# of 2, also of different lengths.
IN_CLUSTERS = [
    "-b 1 -H 64 -G 8 -k 2000 -d 64",
    "-b 4 -H 4 --lengths 535,750,631,958 -d 64",
    "-b 3 -H 22 --lengths 166,139,373 -d 64",
    "-b 2 -H 33 --lengths 258,451 -d 64",  # three blocks for most row groups, in clusters of two
]
# Then more parts of a row than a warp, or a team, receives at once.
MANY_PARTS = [
    "-b 1 -H 1 -k 9000 -d 64",
    "-b 3 -H 8 -G 2 --lengths 5000,0,333 -d 64",
    "-b 1 -H 8 -n 4 -k 1100 -d 64 -m window:1000",
    "-b 9 -H 10 -k 300 -d 64",  # blocks that end a row group and begin another
    *IN_CLUSTERS,
    "-b 11 -H 18 -G 6 -k 300 -d 64",
]
DECODE_PAGES = [
    "-b 2 -H 4 -G 2 --lengths 16,49 -d 64 --page-size 16",
    "-b 3 -H 8 -G 2 --lengths 0,300,31 -d 64 --page-size 32",
    "-b 1 -H 16 -G 1 -k 200 -d 64 --page-size 64",
    "-b 2 -H 8 -G 4 --lengths 700,256 -d 64 --page-size 256",
    "-b 2 -H 8 -G 2 -n 4 --lengths 3,90 -d 64 --page-size 16 -m window:40",
]
DECODE_E4M3 = [
    "-b 3 -H 8 -G 2 --lengths 0,257,15 -d 64 --kv-dtype e4m3",
    "-b 2 -H 4 -G 2 -n 4 --lengths 3,200 -d 64 --kv-dtype e4m3 --layout bnhd -i outlier",
    "-b 1 -H 2 -G 1 -k 1100 -d 64 --kv-dtype e4m3",
    "-b 2 -H 8 -G 1 --lengths 300,33 -d 128 --kv-dtype e4m3",  # other columns of a lane than D = 64
    "-b 2 -H 20 -G 2 --lengths 70,130 -d 64 --kv-dtype e4m3 -t bf16",
]


def takes(line: str, head_dims: Container[int]) -> bool:
    """A line with files has no head dimension."""
    found = re.search(r" -d (\d+)", line)
    return found is None or int(found[1]) in head_dims


def of_head_dim_256(lines: Sequence[str]) -> list[str]:
    """The same problems with this head dimension, each once."""
    return list({re.sub(r" -d \d+", " -d 256", line): None for line in lines})


def write_cases(facts: dict, head_dims: Sequence[int], directory: Path) -> list[tuple[Path, dict[str, str]]]:
    """Files for --cases, and the environment variables for each, for a step that is compiled for
    these head dimensions; `facts` are what it prints of itself. One for D = 256 alone gets the
    others' problems with this D."""
    directory.mkdir(parents=True, exist_ok=True)
    head_dim = 256 if list(head_dims) == [256] else 64
    step, scalar = facts["step"], facts["needs_compute_capability"] is None
    if facts["kind"] == "backward":
        return write_backward_cases(facts, directory, scalar)
    if facts["kind"] == "decode":
        return write_decode_cases(facts, directory)
    hopper, persistent = facts["needs_compute_capability"] == 90, facts["workspace_zero"]
    # NaN where the causal mask excludes it: the scalar steps read no masked key, the others none in
    # a tile that is masked for all their queries.
    length, key = (70, 37) if scalar else (256, 130)
    inputs = [
        write_inputs(directory / f"{step}_nan", length, length, {("v", key, 3): float("nan")}, head_dim),
        # The first query has one key, of score -inf.
        write_inputs(directory / f"{step}_inf", 70, 70, {("k", 0, 0): float("inf"), ("q", 0, 0): -1.0}, head_dim),
    ]
    if scalar:  # the first query attends all keys of the first tile but the last
        inputs.append(write_inputs(directory / f"{step}_last_key", 40, 70, {("v", 31, 3): float("nan")}))
    masked = [f"--input {directory} -m causal" for directory in inputs]
    lines = [*(SCALAR if scalar else TENSOR_CORE), *masked]
    in_orders = []  # (the environment, lines)
    if not scalar and not hopper:  # K and V of one head are larger than the cache
        lines.append("-b 1 -H 3 -n 1 -k 32768 -d 64")
    if hopper:  # one key in the last tile of 112 or 128
        lines += [f"-b 1 -H 2 -n 70 -k {keys} -d 64" for keys in (225, 257)]
        # Queries 0 to 191 are a tile; the tile of keys from 256 on is NaN.
        unseen = write_inputs(directory / f"{step}_unseen", 200, 264, {("v", 256, 3): float("nan")}, head_dim)
        lines += [f"--input {unseen} -m causal", *RINGS, *WIDE]
    if hopper:  # each warp waits for its own part of a wgmma
        in_orders += [
            ({"SIMT_ORDER": f"random:{seed}", "SIMT_WGMMA": "warp"}, ["-b 1 -H 2 -n 200 -k 1000 -d 64"])
            for seed in (1, 2)
        ]
    if persistent:  # no query attends a key of the first tile, by scores of -inf
        late = write_inputs(
            directory / f"{step}_late",
            70,
            200,
            {("k", key, 0): float("inf") for key in range(128)} | {("q", row, 0): -1.0 for row in range(70)},
            head_dim,
        )
        lines += [f"--input {late}", *PERSISTENT]
        # Copies arrive in any order: consumers without rows get ahead of the first.
        in_orders += [
            ({"SIMT_ORDER": f"random:{seed}"}, [RINGS[0], "-b 1 -H 9 -n 100 -k 900 -d 96"]) for seed in (1, 2)
        ]
        # The first consumer gets a tile of queries ahead of the second where O takes places of V.
        in_orders += [
            ({"SIMT_ORDER": f"random:{seed}"}, ["-b 1 -H 9 -n 128 -k 60 -d 256 -m causal"]) for seed in (1, 3)
        ]
    if facts["fp8"]:  # takes no infinity; keys from 384 on are a tile
        unseen = write_inputs(directory / f"{step}_unseen", 200, 392, {("v", 384, 3): float("nan")})
        of_others = [line.replace("-d 96", "-d 128") for line in (*TENSOR_CORE, *RINGS, *PERSISTENT)]
        of_sinks = [
            f"--input {write_sink(directory / name, keys, k0)} --scale 0.02"
            for name, keys, k0 in (("sink", 1, 9.0), ("sinks", 128, 7.5))
        ]
        lines = [*of_others, *E4M3, masked[0], f"--input {unseen} -m causal", *of_sinks, *sums_at_a_bound(directory)]
        # Consumers that need fewer tiles than others get ahead of them.
        in_orders = [
            ({"SIMT_ORDER": f"random:{seed}"}, [*RINGS[:1], "-b 1 -H 9 -n 200 -k 1000 -d 64 -m causal"])
            for seed in (1, 2)
        ]
    if facts["intermediate_bytes_per_entry"] > 0:  # the second pass does not begin with head 0
        in_orders.append(({"SIMT_MEMORY": "250K"}, ["-b 2 -H 3 -n 100 -d 32 -m causal"]))
    if {"blocks", "spans"} & set(facts["masks"]):
        lines = (lines if hopper else []) + block_mask_cases(facts, directory, inputs[0], masked)
    files = []
    for i, (environment, these) in enumerate([({}, lines), *in_orders]):
        if head_dim == 256:
            these = of_head_dim_256(these)
        taken = [line for line in these if scalar or takes(line, head_dims)]
        path = directory / f"{step}_{i}.cases"
        path.write_text("\n".join(taken) + "\n")
        files += [(path, environment)] * bool(taken)
    return files


def wide_rows(directory: Path) -> list[str]:
    """16 queries: numbers of fp16, and of bf16, that are small beside the largest of their row, whose keys are 0; and
    numbers of bf16 far outside of fp16, in another column of each row."""
    largest = {("q", row, column): 0.003 if column else 2.0**15 for row in range(16) for column in range(64)}
    small = write_inputs(directory / "small", 16, 70, largest | {("k", key, 0): 0.0 for key in range(70)})
    smaller = write_inputs(
        directory / "smaller",
        16,
        70,
        {("q", row, column): 2.0**-10 if column else 2.0**20 for row in range(16) for column in range(64)}
        | {("k", key, 0): 0.0 for key in range(70)},
    )
    huge = write_inputs(directory / "huge", 16, 70, {("q", row, row): 2.0**127 for row in range(16)})
    for of in (small, smaller, huge):
        write_npy(of / "lengths.npy", "<i4", (1,), [70])
    return [
        f"--input {small} --kv-dtype e4m3 --scale 32",
        f"--input {smaller} --kv-dtype e4m3 -t bf16 --scale 32",
        f"--input {huge} --kv-dtype e4m3 -t bf16 --scale 2e-38",
    ]


def write_decode_cases(facts: dict, directory: Path) -> list[tuple[Path, dict[str, str]]]:
    """The same for a decode step; some it may refuse."""
    lines = (
        DECODE + (DECODE_PAGES if facts["page_sizes"] else []) + (DECODE_E4M3 if "e4m3" in facts["kv_dtypes"] else [])
    )
    if "e4m3" in facts["kv_dtypes"]:
        lines += wide_rows(directory)
    runs = [({}, lines)]
    if facts["workspace_zero"] or len(facts["launches"]) == 1:  # blocks that wait for others, in another order
        runs += [({"SIMT_THREADS": "2", "SIMT_ORDER": f"random:{seed}"}, lines[8:11]) for seed in (1, 2)]
        runs.append(({"SIMT_SMS": "132", "SIMT_ORDER": "reverse"}, MANY_PARTS))
    files = []
    for i, (environment, these) in enumerate(runs):
        path = directory / f"{facts['step']}_{i}.cases"
        path.write_text("\n".join(these) + "\n")
        files.append((path, environment))
    return files


def write_backward_cases(facts: dict, directory: Path, scalar: bool) -> list[tuple[Path, dict[str, str]]]:
    """The same for a backward step, which must not hide a NaN: none is in its inputs."""
    lines = [*(SCALAR if scalar else TENSOR_CORE), *BACKWARD]
    # The second pass does not begin with head 0: so much memory lets a pass have few heads.
    memory, passes = "500K", "-b 2 -H 3 -n 100 -d 32 -m causal"
    wide, hopper = facts["head_dims"] == [256], facts["needs_compute_capability"] == 90
    if not scalar:  # compiled for fp16 alone; D and LSE of two heads, or also sums of dQ
        lines = [line.replace(" -t bf16", "").replace("-d 96", "-d 128") for line in lines]
        memory = "2800K" if wide else "643500" if facts["workspace_bytes_per_head"] < 4096 else "700K"
        passes = passes.replace("-d 32", "-d 64")
        # So many tiles of queries that an arrival too many in each shifts the phases of a barrier.
        lines += ["-b 1 -H 5 -G 1 -n 200 -k 70 -d 64", "-b 1 -H 3 -G 1 -n 200 -k 129 -d 128 -m causal"]
    if "spans" in facts["masks"]:
        lines += BACKWARD_SPANS
    runs = [({}, lines)]
    if not scalar and facts["deterministic"]:  # two blocks that add to the same rows, at the same time
        runs.append(
            ({"SIMT_THREADS": "2"}, [f"-b 1 -H 1 -n 256 -k 260 -d 64 -m {mask}" for mask in ("full", "causal")])
        )
    if facts["workspace_bytes_per_head"]:
        runs.append(({"SIMT_MEMORY": memory}, [passes]))
    if wide:
        runs = [(environment, of_head_dim_256(lines)) for environment, lines in runs]
    if not scalar:
        runs.append(({}, hopper_heads(facts["deterministic"], 256 if wide else 128) if hopper else LONG_HEADS))
    files = []
    for i, (environment, lines) in enumerate(runs):
        path = directory / f"{facts['step']}_{i}.cases"
        taken = [line for line in lines if facts["head_dims"] == "any" or takes(line, facts["head_dims"])]
        path.write_text("\n".join(taken) + "\n")
        files += [(path, environment)] * bool(taken)
    return files


# Of so long heads two take turns together, or one that is larger than all that may.
LONG_HEADS = ["-b 1 -H 3 -n 5500 -k 65 -d 256 -m causal", "-b 1 -H 1 -n 16400 -k 20 -d 256 -m causal"]
# The same on Hopper, where blocks have 128 keys; and where blocks wait for each other, eight or 16 of the last heads.
HOPPER_HEADS = {
    128: ("-H 3 -n 11000 -k 130", "-H 4 -G 1 -n 16500 -k 20", "-H 9 -n 7300 -k 130"),
    256: ("-H 3 -n 5500 -k 130", "-H 4 -G 1 -n 4200 -k 20", "-H 17 -n 40 -k 130"),
}


def hopper_heads(deterministic: bool, head_dim: int) -> list[str]:
    problems = HOPPER_HEADS[head_dim][: 3 if deterministic else 2]
    return [f"-b 1 {problem} -d {head_dim} -m causal" for problem in problems]


def block_mask_cases(facts: dict, directory: Path, nan: Path, masked: list[str]) -> list[str]:
    """The lines for a step that takes block masks. `nan` are inputs with a NaN in V."""
    step, spans = facts["step"], "spans" in facts["masks"]
    disordered = write_disordered_mask(directory / "disordered", mixed_tiles)
    edges = write_disordered_mask(directory / "edges", edge_tiles)
    shared = write_shared_mask(directory / "shared")
    # In tile 1, one score of one row is far above all of tile 0.
    alone = {("q", row, 63): 0.0 for row in range(1, 32)}
    jump = write_inputs(directory / "jump", 64, 256, alone | {("q", 0, 63): 30.0, ("k", 150, 63): 30.0})
    # e to the power of a score of the first head is 0 in fp32.
    low = write_inputs(
        directory / "low",
        200,
        200,
        {("q", row, 0): 20.0 for row in range(200)} | {("k", key, 0): -20.0 for key in range(200)},
    )
    before_all = write_mask_past_the_end(directory / "before_all", 64)
    lines = [
        f"-b 2 -H 2 -n 200 -k 300 -d 64 -m {disordered}",
        f"-b 2 -H 2 -n 200 -k 319 -d 64 -m {edges}",
        f"-b 2 -H 2 -n 100 -k 130 -d 64 -m {shared}",
        *BLOCK_MASK,
        *masked,
        *PAIRS,
        f"--input {jump}",
        f"--input {low} --scale 0.3 -m {before_all}",
        # Tiles that no query attends, in a block that some queries attend.
        *(f"--input {nan} -m {mask} --mask-block 256x256" for mask in ("causal", "window:100")),
    ]
    if facts["block_n"] <= 64:  # of a larger tile, one half may be attended and the other be NaN
        past_the_end = write_mask_past_the_end(directory / "past_the_end")
        unseen = write_inputs(directory / f"{step}_unseen", 200, 200, {("v", 70, 3): float("nan")})
        lines.append(f"--input {unseen} -m {past_the_end}")
    if facts["needs_compute_capability"] == 90:
        lines += SPANS
    if spans:
        of_spans, late = write_span_masks(directory)
        lines = [
            *masked,
            *PAIRS,
            f"--input {jump}",
            *SPANS,
            f"-b 2 -H 2 -n 130 -k 700 -d 64 -m {of_spans}",
            *(f"--input {low} --scale 0.3 -m {mask}" for mask in ("document:128,72", late)),
        ]
        lines = [line for line in lines if not re.search("-m (interleaved|dilated|random|blocks)", line)]
    return lines
