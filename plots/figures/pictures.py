"""Writes the pictures of the pages on the steps, as SVG text: tiles, fragments, banks, pipelines,
masks, the online softmax, the backward pass, maps of errors, and the programs of chapter 0.

Usage: python3 -m plots.figures.pictures PROGRAMS BROKEN DIRECTORY
       python3 -m plots.figures.pictures --broken SOURCE.cu COPY.cu

PROGRAMS has the steps of the CPU backend, and in events/ those that record_events.c is part of.
BROKEN is the step of the map of errors, built from the copy that the second form writes, in which O
is not rescaled.
`make pictures` calls both.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from plots.figures import (
    pictures_attention,
    pictures_backward,
    pictures_hardware,
    pictures_masks,
    pictures_matrices,
    pictures_numbers,
    pictures_order,
    pictures_programs,
    pictures_roles,
    pictures_tiles,
    pictures_vectors,
)
from tests.lib.steps import drawn_in, having


def writers(programs: Path, broken: Path) -> dict[str, Callable[[Path], None]]:
    """For each group of pictures, a function that writes them to a directory."""
    return {
        "attention": pictures_attention.attention,
        "backward": pictures_backward.all_of,
        "tiles": lambda to: [
            pictures_tiles.three_kernels(programs / drawn_in("kernels"), to),
            *(pictures_tiles.fused(step, programs / step, to) for step in having("loop")),
        ],
        "fragments": lambda to: [pictures_hardware.fragment(operand, to) for operand in pictures_hardware.OPERANDS],
        "banks": lambda to: [pictures_hardware.banks(kind, to) for kind in pictures_hardware.BANK_TITLES],
        "threads": lambda to: [
            pictures_hardware.grid_to_lane(programs / drawn_in("threads"), to),
            pictures_hardware.coalescing(to),
        ],
        "vectors": lambda to: [draw(to) for draw in pictures_vectors.PICTURES],
        "pipelines": lambda to: [pictures_order.pipeline(step, programs / step, to) for step in having("pipeline")],
        "roles": lambda to: [pictures_roles.roles(step, programs / "events" / step, to) for step in having("roles")],
        "matrices": pictures_matrices.all_of,
        "programs": pictures_programs.all_of,
        "softmax": pictures_numbers.online_softmax,
        "masks": lambda to: pictures_masks.mask_pictures(programs / drawn_in("masks"), to),
        "errors": lambda to: [
            pictures_numbers.error_map("error_right", programs / drawn_in("errors"), to),
            pictures_numbers.error_map("error_broken", broken, to),
        ],
    }


def main() -> int:
    if sys.argv[1] == "--broken":
        source, copy = map(Path, sys.argv[2:])
        copy.write_text(pictures_numbers.broken_source(source.read_text()))
        return 0
    programs, broken, directory = map(Path, sys.argv[1:])
    for write in writers(programs, broken).values():
        write(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
