"""Masks as --mask takes them, or as boolean arrays, in the form that a step takes."""

from pathlib import Path

import numpy as np

from .gallery import StepError

CAUSAL, FULL, PARTIAL = 1, 2, 3  # BlockType of block_mask.h


def as_option(mask: object, folder: Path) -> list[str]:
    """The words of the command line for a mask; an array becomes a file in `folder`."""
    if mask is None:
        return []
    if isinstance(mask, str):
        return ["--mask", mask]
    mask = np.asarray(mask)
    if mask.dtype != bool:
        raise StepError(f"mask: its type is {mask.dtype}, must be bool, where True is a key that the query attends to")
    np.save(folder / "mask.npy", mask)
    return ["--mask", str(folder / "mask.npy")]


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
