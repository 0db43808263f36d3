"""Masks as --mask takes them, or as boolean arrays, in the form that a step takes."""

from pathlib import Path

import numpy as np

from .gallery import StepError
from .library import MASK_FILES, BlockMask, Device, Memory, StepLibrary, block_mask, span_mask

CAUSAL, FULL, PARTIAL = 1, 2, 3  # BlockType of block_mask.h


def is_plain(mask: object) -> bool:
    """True for the masks that need no tensors."""
    return mask is None or (isinstance(mask, str) and mask in ("full", "causal"))


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


def spans(mask: np.ndarray) -> np.ndarray:
    """The first key of each query and the end of its keys, int32 [B, H, Nq, 2], of a boolean mask in which each
    query attends to one span of keys."""
    first = mask.argmax(-1)
    return np.stack([first, first + mask.sum(-1)], -1).astype(np.int32)


class DeviceMask:
    """A mask in device memory."""

    def __init__(self, library: StepLibrary, folder: Path, q_len: int, kv_len: int) -> None:
        """`folder` has the files that --save-mask wrote."""
        device, tensors = Device(library), [np.load(folder / f"{name}.npy") for name in MASK_FILES]
        if library.takes_spans:
            tensors = [spans(dense(tensors, q_len, kv_len))]
        self.memory: list[Memory] = [device.upload(tensor) for tensor in tensors]
        if library.takes_spans:
            self.c: BlockMask = span_mask(tensors[0].shape, self.memory[0].address)
        else:
            self.c = block_mask([tensor.shape for tensor in tensors], [memory.address for memory in self.memory])
