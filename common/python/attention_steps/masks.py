"""Block masks as boolean arrays."""

import numpy as np

CAUSAL, FULL, PARTIAL = 1, 2, 3  # BlockType of block_mask.h


def dense(tensors: list[np.ndarray], q_len: int, kv_len: int) -> np.ndarray:
    """The boolean mask [B, H, Nq, Nkv] of the five tensors of a block mask."""
    counts, indices, types, tile_indices, tiles = tensors
    q_block, kv_block = tiles.shape[1:]
    batches, heads, q_blocks = counts.shape
    found = np.zeros((batches, heads, q_blocks * q_block, -(-kv_len // kv_block) * kv_block), bool)
    causal = np.arange(found.shape[3]) <= np.arange(found.shape[2])[:, None] + kv_len - q_len
    for b, h, row in np.ndindex(counts.shape):
        for slot in range(counts[b, h, row]):
            at = (b, h, row, slot)
            kind, first_q, first_k = types[at], row * q_block, indices[at] * kv_block
            place = slice(first_q, first_q + q_block), slice(first_k, first_k + kv_block)
            if kind in (CAUSAL, FULL, PARTIAL):
                block = causal[place] if kind == CAUSAL else tiles[tile_indices[at]] if kind == PARTIAL else True
                found[b, h][place] = block
    return found[..., :q_len, :kv_len]
