"""Draws the figures from the stored rows of one GPU, in a light and a dark variant.

Usage: figures.py [--gpu NAME] [--only FIGURE] RESULTS DIRECTORY
Writes FIGURE_light and FIGURE_dark, .svg and .png, to DIRECTORY for each of: waterfall, tflops,
roofline, sparsity, error. RESULTS holds a directory for each GPU, see rows.py. A figure whose rows
are missing is left out, and a line says which command measures them.

Exit codes: 0, 1 when no figure has its rows, 2 bad usage, rows or directory, or no rows at all.
"""

import argparse
import sys
from pathlib import Path

try:
    import matplotlib

    import figure_error
    import figure_roofline
    import figure_sparsity
    import figure_tflops
    import figure_waterfall
    import style
except ModuleNotFoundError as missing:
    sys.exit(f"figures: Python needs {missing.name}. Install it: make deps")

from rows import Results, RowsError, gpu_directory, load

FIGURES = {figure.NAME: figure for figure in (figure_waterfall, figure_tflops, figure_roofline,
                                              figure_sparsity, figure_error)}
BESIDE_PEERS = (figure_tflops.NAME, figure_sparsity.NAME)


def draw_figure(name: str, found: dict, directory: Path, kinds: tuple[str, ...]) -> None:
    """NAME_light and NAME_dark, of these kinds."""
    for theme in style.THEMES:
        with matplotlib.rc_context(style.settings(theme)):
            style.save(FIGURES[name].draw(found, theme), directory, f"{name}_{theme.name}", found,
                       kinds)


def draw_all(results: Results, names: list[str], directory: Path) -> int:
    """How many figures there are rows for."""
    files = [run.path.name for run in (results.sweep, results.compare) if run]
    if files:
        print(f"figures: of {' and '.join(files)}")
    drawn = 0
    for name in names:
        found = FIGURES[name].data(results)
        if found is None:
            print(f"figures: {name} left out, as its rows are missing: make sweep")
            continue
        draw_figure(name, found, directory, ("svg", "png"))
        print(f"wrote {directory / name}_light and _dark, .svg and .png")
        drawn += 1
    if results.compare is None and any(name in BESIDE_PEERS for name in names):
        print("figures: no peers are shown, as their rows are missing: make compare")
    return drawn


def main() -> int:
    parser = argparse.ArgumentParser(description="Draws the figures from the stored rows.")
    parser.add_argument("--gpu", help="whose rows (default: the only one's)")
    parser.add_argument("--only", choices=FIGURES, help="just this figure")
    parser.add_argument("results", metavar="RESULTS", type=Path)
    parser.add_argument("directory", metavar="DIRECTORY", type=Path)
    words = parser.parse_args()
    try:
        results = load(gpu_directory(words.results, words.gpu))
    except RowsError as error:
        print(f"figures: {error}", file=sys.stderr)
        return 2
    try:
        drawn = draw_all(results, [words.only] if words.only else list(FIGURES), words.directory)
    except OSError as error:
        print(f"figures: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    return 0 if drawn else 1


if __name__ == "__main__":
    sys.exit(main())
