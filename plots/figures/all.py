"""Draws the figures from the stored records of one GPU, in a light and a dark variant.

Usage: python3 -m plots.figures.all RESULTS-OF-A-GPU DIRECTORY

Writes FIGURE_light and FIGURE_dark, .svg and .png, to DIRECTORY for each of: waterfall, sparsity, and
for each chapter, called by its first step, tflops_CHAPTER and roofline_CHAPTER. The chapters of
backward steps have no roofline; their records are in the folder `backward` beside that of the GPU. The decode steps
have decode and decode_roofline, from the folder `decode`. Prints a line for a figure that is left out because its
records are missing.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import matplotlib
from matplotlib.figure import Figure

from plots.figures import bandwidth, decode_roofline, roofline, sparsity, style, tflops, waterfall
from plots.figures.decode import DecodeResults
from plots.figures.records import Results, load
from tests.lib.steps import chapters


class Kind(NamedTuple):
    """A figure: its data, None if records are missing, and what draws them."""

    data: Callable[[Results | DecodeResults], dict | None]
    draw: Callable[[dict, style.Theme], Figure]


FIGURES = {figure.NAME: Kind(figure.data, figure.draw) for figure in (waterfall, sparsity)} | {
    f"{figure.NAME}_{chapter[0].removeprefix('step')}": Kind(partial(figure.data, chapter=chapter), figure.draw)
    for figure in (tflops, roofline)
    for chapter in chapters()
}
BACKWARD = {
    f"{tflops.NAME}_{chapter[0].removeprefix('step')}": Kind(
        partial(tflops.data, chapter=chapter, dtype="bf16"), tflops.draw
    )
    for chapter in chapters("backward")
}
DECODE = {figure.NAME: Kind(figure.data, figure.draw) for figure in (bandwidth, decode_roofline)}
FIGURES |= BACKWARD | DECODE


def data_of_figures(directory: Path) -> dict[str, dict | None]:
    """The data of each figure, from the records of a GPU and those of backward and decode steps."""
    results, backward = load(directory), load(directory.parent / "backward")
    decode = DecodeResults(directory.parent / "decode")
    return {
        name: figure.data(backward if name in BACKWARD else decode if name in DECODE else results)
        for name, figure in FIGURES.items()
    }


def draw_figure(name: str, found: dict, directory: Path, kinds: tuple[str, ...]) -> None:
    """Writes NAME_light and NAME_dark to the directory, with each suffix of `kinds`."""
    for theme in style.THEMES:
        with matplotlib.rc_context(style.settings(theme)):
            style.save(FIGURES[name].draw(found, theme), directory, f"{name}_{theme.name}", found, kinds)


def main() -> int:
    directory = Path(sys.argv[2])
    for name, found in data_of_figures(Path(sys.argv[1])).items():
        if found is None:
            print(f"figures: {name} left out, as {sys.argv[1]} has no records of it: make bench")
            continue
        draw_figure(name, found, directory, ("svg", "png"))
        print(f"wrote {directory / name}_light and _dark, .svg and .png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
