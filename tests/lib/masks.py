"""Masks in NumPy: the dense mask of each preset, and conversion to and from block masks.

Written from docs/specification.md and docs/block-masks.md; no code is shared with the C sources.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from tests.lib.generators import random_bits, random_uniform
from tests.lib.problem import Problem

MASKED, CAUSAL, FULL, PARTIAL = range(4)

# The value of unused fields in disordered masks: an index far out of range.
POISON = np.int32(-(2**31) + 7)

# Streams of random numbers, in addition to those of the inputs.
BLOCK_DRAW, ENTRY_DRAW, RUN_DRAW = 100, 101, 102

FILES = ("kv_num_blocks", "kv_indices", "block_mask_types", "partial_block_mask_indices", "partial_block_masks")


# --- Presets --------------------------------------------------------------------------------------


def document_ends(argument: str, keys: int) -> np.ndarray:
    """The key at which each document ends. Of N equal ones, the first may be a key longer."""
    if "," in argument:
        return np.cumsum([int(length) for length in argument.split(",")])
    count = int(argument)
    return np.cumsum([keys // count + (i < keys % count) for i in range(count)])


def run_ends(seed: int, keys: int) -> np.ndarray:
    """Key at which each run of text (even) and image (odd) ends: 16..256 and 64..576 keys long."""
    ends, end = [], 0
    while end < keys:
        least, most = ((16, 256), (64, 576))[len(ends) % 2]
        bits = int(random_bits(seed, RUN_DRAW, np.array([len(ends)]))[0])
        end += least + bits % (most - least + 1)
        ends.append(min(end, keys))
    return np.array(ends)


def _drawn_blocks(p: Problem, density: float) -> np.ndarray:
    q_block, kv_block = p.mask_block or (128, 128)
    q_blocks, kv_blocks = -(-p.seqlen // q_block), -(-p.seqlen_kv // kv_block)
    index = np.arange(q_blocks * kv_blocks)
    blocks = (random_uniform(p.seed, BLOCK_DRAW, index) < density).reshape(q_blocks, kv_blocks)
    return blocks.repeat(q_block, 0).repeat(kv_block, 1)[: p.seqlen, : p.seqlen_kv]


def _drawn_entries(p: Problem, density: float) -> np.ndarray:
    index = np.arange(p.seqlen * p.seqlen_kv)
    drawn = random_uniform(p.seed, ENTRY_DRAW, index) < density
    return drawn.reshape(p.seqlen, p.seqlen_kv)


def preset(p: Problem) -> np.ndarray:
    """Which keys each query attends under p.mask, bool [Nq, Nkv]."""
    name, _, argument = p.mask.partition(":")
    q = np.arange(p.seqlen)[:, None] + p.seqlen_kv - p.seqlen  # q' of the specification
    k = np.arange(p.seqlen_kv)[None, :]
    causal = k <= q
    if name == "full":
        return causal | True
    if name == "causal":
        return causal
    if name == "empty":
        return causal & False
    if name == "window":
        return causal & (q - int(argument) < k)
    if name == "prefix":
        return causal | (k < int(argument))
    if name == "dilated":
        return causal & ((q - k) % int(argument) == 0)
    if name == "document":
        ends = document_ends(argument, p.seqlen_kv)
        same = np.searchsorted(ends, q, "right") == np.searchsorted(ends, k, "right")
        return causal & same & (q >= 0)
    if name == "interleaved":
        ends = run_ends(int(argument), p.seqlen_kv)
        q_run, k_run = np.searchsorted(ends, q, "right"), np.searchsorted(ends, k, "right")
        return (causal | ((q_run == k_run) & (q_run % 2 == 1))) & (q >= 0)
    drawn = {"blocks": _drawn_blocks, "random": _drawn_entries}[name]
    return drawn(p, float(argument))


# --- Block masks ----------------------------------------------------------------------------------


@dataclass
class BlockMask:
    """The five tensors. The first two dimensions of the first four may be 1 and stand for all."""

    counts: np.ndarray  # int32 [B, H, NQB]
    indices: np.ndarray  # int32 [B, H, NQB, MAXB], as the next two
    types: np.ndarray
    tile_indices: np.ndarray
    tiles: np.ndarray = field(repr=False)  # bool [P, q_block, kv_block]

    def tensors(self) -> tuple[np.ndarray, ...]:
        return (self.counts, self.indices, self.types, self.tile_indices, self.tiles)

    def block_size(self) -> tuple[int, int]:
        return self.tiles.shape[1:]

    def write(self, directory: Path) -> Path:
        """The directory that --mask reads."""
        directory.mkdir(parents=True)
        for name, tensor in zip(FILES, self.tensors(), strict=True):
            np.save(directory / f"{name}.npy", tensor)
        return directory

    def same_as(self, other: "BlockMask") -> bool:
        """Equal to the last byte, unused slots included."""
        return all(
            a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(self.tensors(), other.tensors(), strict=True)
        )


def read(directory: Path) -> BlockMask:
    return BlockMask(*(np.load(directory / f"{name}.npy") for name in FILES))


def _causal_rule(q_len: int, kv_len: int) -> np.ndarray:
    return np.arange(kv_len)[None, :] <= np.arange(q_len)[:, None] + kv_len - q_len


def _padded(tile: np.ndarray, block: tuple[int, int]) -> np.ndarray:
    return np.pad(tile, [(0, block[i] - tile.shape[i]) for i in range(2)])


def from_slots(rows: list, shape: tuple[int, int, int], tiles: list[np.ndarray], block: tuple[int, int]) -> BlockMask:
    """From lists of (block, type, tile), one for each [b, h, q_block]; -1 where unused."""
    most = max(1, *(len(row) for row in rows))
    slots = np.full((len(rows), most, 3), -1, np.int32)
    for row, listed in zip(slots, rows, strict=True):
        row[: len(listed)] = np.array(listed, np.int32).reshape(-1, 3)
    counts = np.array([len(row) for row in rows], np.int32).reshape(shape)
    tensors = [slots[:, :, i].reshape(*shape, most).copy() for i in range(3)]
    stack = np.array(tiles, bool).reshape(-1, *block)
    return BlockMask(counts, *tensors, stack)


def from_dense(dense: np.ndarray, block: tuple[int, int]) -> BlockMask:
    """The canonical block mask of a dense one, bool [B, H, Nq, Nkv] with 1 for all."""
    batches, heads, q_len, kv_len = dense.shape
    causal = _causal_rule(q_len, kv_len)
    rows: list = []
    known: dict[bytes, int] = {}
    tiles = []
    for mask in dense.reshape(-1, q_len, kv_len):
        for q in range(0, q_len, block[0]):
            rows.append([])
            for k in range(0, kv_len, block[1]):
                at = np.s_[q : q + block[0], k : k + block[1]]
                if not mask[at].any():
                    continue
                kind, index = PARTIAL, -1
                if mask[at].all():
                    kind = FULL
                elif (mask[at] == causal[at]).all():
                    kind = CAUSAL
                else:
                    tile = _padded(mask[at], block)
                    index = known.setdefault(tile.tobytes(), len(tiles))
                    if index == len(tiles):
                        tiles.append(tile)
                rows[-1].append((k // block[1], kind, index))
    return from_slots(rows, (batches, heads, -(-q_len // block[0])), tiles, block)


def to_dense(m: BlockMask, q_len: int, kv_len: int) -> np.ndarray:
    """Bool [B, H, Nq, Nkv]."""
    batches, heads = np.broadcast_shapes(*(t.shape[:2] for t in m.tensors()[:4]))
    q_blocks, slots = m.indices.shape[2:]
    counts = np.broadcast_to(m.counts, (batches, heads, q_blocks))
    indices, types, tile_indices = (np.broadcast_to(t, (batches, heads, q_blocks, slots)) for t in m.tensors()[1:4])
    q_block, kv_block = m.block_size()
    causal = _causal_rule(q_len, kv_len)
    dense = np.zeros((batches, heads, q_len, kv_len), bool)
    for b, h, q in np.ndindex(batches, heads, q_blocks):
        for slot in range(counts[b, h, q]):
            at = (b, h, q, slot)
            if types[at] == MASKED:
                continue
            k = indices[at] * kv_block
            here = np.s_[q * q_block : (q + 1) * q_block, k : k + kv_block]
            part = dense[b, h][here]
            if types[at] == PARTIAL:
                part[...] = m.tiles[tile_indices[at]][: part.shape[0], : part.shape[1]]
            else:
                part[...] = causal[here] if types[at] == CAUSAL else True
    return dense


def random_blocks(rng: np.random.Generator, shape: tuple[int, int, int, int], block: tuple[int, int]) -> np.ndarray:
    """A dense mask with blocks of every kind, drawn one by one; some rows of blocks are empty."""
    batches, heads, q_len, kv_len = shape
    dense = np.zeros(shape, bool)
    causal = _causal_rule(q_len, kv_len)
    for b, h in np.ndindex(batches, heads):
        for q in range(0, q_len, block[0]):
            empty = rng.random() < 0.2
            for k in range(0, kv_len, block[1]):
                at = np.s_[q : q + block[0], k : k + block[1]]
                part = dense[b, h][at]
                part[...] = [
                    np.zeros_like(part),
                    np.ones_like(part),
                    causal[at],
                    rng.random(part.shape) < 0.5,
                    rng.random(part.shape) < 0.01,
                ][0 if empty else rng.integers(5)]
    return dense


# --- The same mask in unusual forms ---------------------------------------------------------------


def disordered(m: BlockMask, rng: np.random.Generator) -> BlockMask:
    """Shuffled slots with MASKED slots between them, unused slots, poison in unused fields.

    Tiles are shuffled too; some occur twice, and an unused one is all ones.
    """
    shape, (q_block, kv_block) = m.counts.shape, m.block_size()
    order = rng.permutation(np.concatenate([np.arange(len(m.tiles)), np.arange(len(m.tiles))]))
    tiles = np.concatenate([m.tiles[order], np.ones((1, q_block, kv_block), bool)])
    rows = []
    for at in np.ndindex(shape):
        row = []
        for slot in range(m.counts[at]):
            kind, tile = m.types[(*at, slot)], m.tile_indices[(*at, slot)]
            tile = rng.choice(np.flatnonzero(order == tile)) if kind == PARTIAL else POISON
            row.append((m.indices[(*at, slot)], kind, tile))
        row += [(POISON, MASKED, POISON)] * rng.integers(0, 4)
        rows.append([row[i] for i in rng.permutation(len(row))])
    result = from_slots(rows, shape, list(tiles), m.block_size())
    room = int(rng.integers(0, 3))
    for name in ("indices", "types", "tile_indices"):
        tensor = np.pad(getattr(result, name), [(0, 0)] * 3 + [(0, room)])
        tensor[np.arange(tensor.shape[3]) >= result.counts[..., None]] = POISON
        result = replace(result, **{name: tensor})
    return result


def with_fewest_copies(m: BlockMask) -> BlockMask:
    """Each tensor loses the dimensions along which it repeats: their sizes become 1."""

    def shrunk(tensor: np.ndarray) -> np.ndarray:
        for axis in (0, 1):
            first = tensor.take([0], axis)
            tensor = first if (tensor == first).all() else tensor
        return tensor

    return BlockMask(*(shrunk(tensor) for tensor in m.tensors()[:4]), m.tiles)


def with_bits_past_the_end(m: BlockMask, q_len: int, kv_len: int) -> BlockMask:
    """Tiles may have any value for queries and keys past the end. Here they attend them all.

    Only tiles that are at the end wherever they are used are changed.
    """
    q_block, kv_block = m.block_size()
    rows, columns = (q_len - 1) % q_block + 1, (kv_len - 1) % kv_block + 1
    last_q, last_k = m.counts.shape[2] - 1, -(-kv_len // kv_block) - 1
    tiles = m.tiles.copy()
    for tile in range(len(tiles)):
        users = [
            at
            for at in np.argwhere(m.tile_indices == tile)
            if at[3] < m.counts[tuple(at[:3])] and m.types[tuple(at)] == PARTIAL
        ]
        if users and all(at[2] == last_q for at in users):
            tiles[tile, rows:] = True
        if users and all(m.indices[tuple(at)] == last_k for at in users):
            tiles[tile, :, columns:] = True
    return replace(m, tiles=tiles)
