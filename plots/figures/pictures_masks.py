"""Pictures of masks and their blocks, as a step saves them."""

import tempfile
from pathlib import Path

import numpy as np

from plots.figures.pictures_loops import N, saved_mask
from plots.figures.pictures_svg import Picture
from tests.lib import masks

BLOCK = 64
TYPES = {  # letter and fill, by the type's number
    masks.FULL: ("FULL", "F", "v", "every entry is attended", "no mask code"),
    masks.CAUSAL: ("CAUSAL", "C", "q", "the causal rule decides", "positions are compared"),
    masks.PARTIAL: ("PARTIAL", "P", "k", "any other entries", "the bits of its tile decide"),
    masks.MASKED: ("MASKED", "M", "", "nothing is attended", "not listed, never visited"),
}
PRESETS = {
    "window": ("window:150", "Query q attends the 150 keys up to its own: q - 150 < k <= q."),
    "document": ("document:3", "Three documents: query q attends key k <= q of its own document."),
    "prefix": ("prefix:100", "Query q attends key k if k < 100 or k <= q."),
}
HOLE = np.s_[272:320, 84:120]  # of the mask with all types


def types_of(blocks: masks.BlockMask) -> np.ndarray:
    """The type of each block."""
    side = blocks.counts.shape[2]
    types = np.full((side, side), masks.MASKED)
    for row in range(side):
        for slot in range(blocks.counts[0, 0, row]):
            types[row, blocks.indices[0, 0, row, slot]] = blocks.types[0, 0, row, slot]
    return types


def mask_picture(
    name: str, title: str, rule: str, attended: np.ndarray, blocks: masks.BlockMask, directory: Path
) -> None:
    types = types_of(blocks)
    side = len(types)
    edge = 54
    left, top = 56, 96
    scale = edge / BLOCK
    counts = {kind: int((types == kind).sum()) for kind in TYPES}
    picture = Picture(
        name,
        880,
        top + edge * side + 40,
        title,
        f"{rule} {N} queries, {N} keys, blocks of {BLOCK} x {BLOCK}. Blocks: "
        + ", ".join(f"{counts[kind]} {TYPES[kind][0]}" for kind in TYPES)
        + ". Row by row: "
        + " / ".join("".join(TYPES[kind][1] for kind in row) for row in types)
        + ".",
    )
    picture.text(8, 20, title, "large")
    picture.text(8, 44, rule)
    picture.text(left + edge * side / 2, top - 22, "keys", "small muted", "middle")
    picture.text(18, top + edge * side / 2, "queries", "small muted", "middle", turned=True)
    for i in range(side):
        picture.text(left + (i + 0.5) * edge, top - 6, str(BLOCK * i), "small muted", "middle")
        picture.text(left - 6, top + (i + 0.5) * edge + 4, str(BLOCK * i), "small muted", "end")
    for kind, (_, _, fill, *_) in TYPES.items():
        if fill and counts[kind]:
            of_kind = np.kron(types == kind, np.ones((BLOCK, BLOCK), bool)).astype(bool)
            picture.area(left, top, scale, attended & of_kind, f"{fill} thin")
    for row, column in np.ndindex(types.shape):
        picture.rect(left + column * edge, top + row * edge, edge, edge, "none faint")
    for row, column in np.ndindex(types.shape):
        x, y, kind = left + column * edge, top + row * edge, types[row, column]
        if kind != masks.MASKED:
            picture.rect(x, y, edge, edge, "none thin")
        # In this corner no edge of the masks above crosses the letter.
        picture.text(x + 4, y + edge - 6, TYPES[kind][1], "muted" if kind == masks.MASKED else "bold")
    x, y = left + edge * side + 36, top + 12
    for kind, (full_name, letter, fill, entries, work) in TYPES.items():
        picture.rect(x, y - 16, 24, 24, f"{fill or 'none'} thin")
        picture.text(x + 12, y + 1, letter, "bold", "middle")
        picture.text(x + 36, y, f"{full_name}: {counts[kind]} block{'s' * (counts[kind] != 1)}", "bold")
        picture.text(x + 36, y + 19, entries)
        picture.text(x + 36, y + 38, work)
        y += 78
    visited = types.size - counts[masks.MASKED]
    y += 6
    picture.text(x, y, f"{visited} of {types.size} blocks are visited;", "")
    picture.text(x, y + 20, f"{100 * attended.mean():.1f} % of the entries are attended.")
    picture.text(
        left,
        top + edge * side + 24,
        "Coloured and outlined: attended entries. The letter is the type of the block.",
        "small",
    )
    picture.save(directory)


def mask_pictures(program: Path, directory: Path) -> None:
    size = ("--mask-block", f"{BLOCK}x{BLOCK}")
    for name, (mask, rule) in PRESETS.items():
        attended, blocks = saved_mask(program, mask, *size)
        mask_picture(f"mask_{name}", f"--mask {mask}", rule, attended, blocks, directory)
    causal = np.tri(N, dtype=bool)
    causal[HOLE] = False
    with tempfile.TemporaryDirectory() as folder:
        np.save(file := Path(folder) / "mask.npy", causal)
        attended, blocks = saved_mask(program, str(file), *size)
    rows, columns = HOLE
    mask_picture(
        "mask_blocks",
        "A causal mask with a hole, cut into blocks",
        f"Key k <= q is attended, but not keys {columns.start} to {columns.stop - 1} by "
        f"queries {rows.start} to {rows.stop - 1}.",
        attended,
        blocks,
        directory,
    )
