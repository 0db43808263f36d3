"""Converts the BlockMask of PyTorch's FlexAttention to the block masks of the steps.

It uses plain arrays and NumPy only: PyTorch is needed to create a BlockMask, not to convert it.

FlexAttention has two lists for each block of queries: kv_num_blocks and kv_indices list the blocks
for which its mask_mod must be evaluated, full_kv_num_blocks and full_kv_indices those that are
fully attended. Both are needed: the second contains most of the work. Values past the count are
undefined in both.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.lib import masks

# mask_mod(batch, head, queries, keys): bool, of queries [n, 1] and keys [1, m].
MaskMod = Callable[[int, int, np.ndarray, np.ndarray], np.ndarray]


@dataclass
class FlexMask:
    """The fields of a BlockMask that say what is attended; names and shapes are PyTorch's."""

    seq_lengths: tuple[int, int]
    BLOCK_SIZE: tuple[int, int]  # of queries, of keys
    kv_num_blocks: np.ndarray  # int32 [B, H, rows]
    kv_indices: np.ndarray  # int32 [B, H, rows, columns]
    full_kv_num_blocks: np.ndarray | None = None
    full_kv_indices: np.ndarray | None = None


def from_torch(block_mask: object) -> FlexMask:
    """The arrays of a torch.nn.attention.flex_attention.BlockMask of four dimensions."""
    tensors = [
        getattr(block_mask, name) for name in ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")
    ]
    arrays = [None if tensor is None else tensor.cpu().numpy() for tensor in tensors]
    return FlexMask(tuple(block_mask.seq_lengths), tuple(block_mask.BLOCK_SIZE), *arrays)


def convert(flex: FlexMask, attends: MaskMod | np.ndarray) -> masks.BlockMask:
    """The same mask in canonical form.

    `attends` is the mask_mod, or its result: a dense mask [B, H, Nq, Nkv]. It is evaluated only for
    blocks of the partial list, and only for the batch entries and heads of the lists: where a list
    has one for all, the result must not depend on the entry or head. PyTorch pads the lengths with
    masked entries, so a block at the end is never in the full list; here it is FULL if all entries
    inside the lengths are attended.
    """
    if isinstance(attends, np.ndarray):
        dense = attends
        attends = lambda b, h, q, k: dense[b, h][q, k]  # noqa: E731
    q_len, kv_len = flex.seq_lengths
    q_size, kv_size = flex.BLOCK_SIZE
    shape = flex.kv_num_blocks.shape
    rows: list = []
    tiles: list[np.ndarray] = []
    known: dict[bytes, int] = {}
    for at in np.ndindex(shape):
        q = np.arange(at[2] * q_size, min((at[2] + 1) * q_size, q_len))[:, None]
        slots = [(block, masks.FULL, -1) for block in _listed(flex.full_kv_num_blocks, flex.full_kv_indices, at)]
        for block in np.sort(_listed(flex.kv_num_blocks, flex.kv_indices, at)):
            k = np.arange(block * kv_size, min((block + 1) * kv_size, kv_len))[None, :]
            part = np.broadcast_to(attends(at[0], at[1], q, k), (q.size, k.size))
            kind, index = _kind(part, k <= q + kv_len - q_len), -1
            if kind == masks.PARTIAL:
                tile = np.zeros(flex.BLOCK_SIZE, bool)
                tile[: q.size, : k.size] = part
                index = known.setdefault(tile.tobytes(), len(tiles))
                if index == len(tiles):
                    tiles.append(tile)
            if kind != masks.MASKED:
                slots.append((block, kind, index))
        rows.append(sorted(slots))
    return masks.from_slots(rows, shape, tiles, flex.BLOCK_SIZE)


def _kind(part: np.ndarray, causal: np.ndarray) -> int:
    if part.all():
        return masks.FULL
    if not part.any():
        return masks.MASKED
    return masks.CAUSAL if (part == causal).all() else masks.PARTIAL


def _listed(counts: np.ndarray | None, indices: np.ndarray | None, at: tuple) -> np.ndarray:
    """The blocks of one row; none if there is no list."""
    return np.empty(0, int) if counts is None else indices[at][: counts[at]]


def as_torch_makes_it(dense: np.ndarray, block: tuple[int, int], separate_full: bool = True) -> FlexMask:
    """The result of create_block_mask() for a mask_mod that gives `dense`, bool [B, H, Nq, Nkv]."""
    q_len, kv_len = dense.shape[2:]
    padding = [(0, -q_len % block[0]), (0, -kv_len % block[1])]
    padded = np.pad(dense, [(0, 0), (0, 0), *padding])
    q_blocks, kv_blocks = padded.shape[2] // block[0], padded.shape[3] // block[1]
    cut = padded.reshape(*dense.shape[:2], q_blocks, block[0], kv_blocks, block[1])
    full, some = cut.all(axis=(3, 5)), cut.any(axis=(3, 5))
    lists = [_ordered(some & ~full), _ordered(full)] if separate_full else [_ordered(some)]
    return FlexMask((q_len, kv_len), block, *(array for pair in lists for array in pair))


def _ordered(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The number of listed blocks of each row, and all its blocks, the listed ones first."""
    order = np.argsort(~blocks, axis=-1, kind="stable")
    return blocks.sum(axis=-1).astype(np.int32), order.astype(np.int32)
