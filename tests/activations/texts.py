"""The texts that the models read, and the masks for them."""

from pathlib import Path

import numpy as np

DATA = Path(__file__).resolve().parents[1] / "data"
BOOK = "ruth"
PSALM = "psalm_046"
PACKED = ("psalm_117", "psalm_134", "psalm_131", "psalm_133", "psalm_123", "psalm_100")

# Patches of a picture of 224 x 224 pixels, 16 x 16 pixels each.
IMAGE = 14 * 14
# A page with three pictures; the captions are as long as the packed psalms.
PICTURES = 3


def read(name: str) -> str:
    """A text of tests/data/texts as one paragraph; the files hold one verse a line."""
    return " ".join((DATA / "texts" / f"{name}.txt").read_text().split())


def packed_positions(lengths: list[int]) -> np.ndarray:
    """Positions of packed documents: each document counts from 0."""
    return np.concatenate([np.arange(length) for length in lengths])


def packed_mask(lengths: list[int]) -> np.ndarray:
    """[N, N], bool: causal within each document, the same as `--mask document:...`."""
    document = np.repeat(np.arange(len(lengths)), lengths)
    return (document[:, None] == document) & np.tri(len(document), dtype=bool)


def page_layout(captions: list[int], length: int) -> list[tuple[str, int]]:
    """Alternating captions and pictures, up to `length` tokens; the last caption fills the rest."""
    spans = []
    for caption in captions[:PICTURES]:
        spans += [("text", caption), ("image", IMAGE)]
    left = length - sum(count for _, count in spans)
    assert left > 0, f"{PICTURES} pictures with captions take more than {length} tokens"
    return [*spans, ("text", left)]


def layout_mask(spans: list[tuple[str, int]]) -> np.ndarray:
    """[N, N], bool: text is causal; patches attend their whole picture and all before it."""
    starts = np.cumsum([0, *(count for _, count in spans)])
    mask = np.tri(starts[-1], dtype=bool)
    for (kind, count), start in zip(spans, starts):
        if kind == "image":
            mask[start : start + count, start : start + count] = True
    return mask
