"""Writes the README's table of steps from measured rows, and the picture under it.

Usage: ladder.py [--check] README.md RESULTS-OF-A-GPU PICTURES
The table goes between the markers in README.md, the waterfall's two variants to the directory
PICTURES. With --check nothing is written: exit code 1 says that the README, or what the pictures
show, is not what the rows give.
"""

import json
import os
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

try:
    import figure_waterfall
    from figures import draw_figure
    from style import THEMES
except ModuleNotFoundError as missing:
    sys.exit(f"ladder: Python needs {missing.name}. Install it: make deps")

from rows import HEADLINE, Results, Row, RowsError, load
from sections import SectionError, with_section

STEPS = figure_waterfall.STEPS
MMA = "mma.sync"
TEXT = "{http://www.w3.org/2000/svg}text"
DESCRIPTION = "{http://purl.org/dc/elements/1.1/}description"


def steps_of(results: Results) -> list[Row]:
    """The row of the table's shape for each step whose answer was found right."""
    rows = results.sweep.select(**HEADLINE, mask="full", right=True) if results.sweep else []
    return sorted(rows, key=lambda row: row.step or "")


# --- The table -----------------------------------------------------------------------------------

def source_facts(step: str) -> tuple[str, str, str]:
    """File, title and idea of a step, as its own source states them."""
    path = next(STEPS.glob(f"{step}_*.cu"))
    idea = re.search(r'\.idea = "(.*)"', path.read_text())[1]
    return f"{STEPS.name}/{path.name}", figure_waterfall.title_of(step), idea


def of_ceiling(row: Row) -> str:
    """Percent of what mma.sync alone reaches; of the step's own ceiling too where it is another."""
    own = f"{row.ceiling_percent:.0f} % of {row.ceiling}"
    if not row.ceiling_mma_tflops:
        return own
    share = f"{100 * row.tflops / row.ceiling_mma_tflops:.0f} %"
    return share if row.ceiling == MMA else f"{share} ({own})"


def over_fa2(step: str, results: Results) -> str:
    """Speed over FlashAttention-2's in the same run, with the deciles of the rounds' ratios."""
    rows = results.compare.select(**HEADLINE, mask="full", step=step) if results.compare else []
    for row in rows:
        if row.speed_over_fa2 is not None:
            spread = ("" if row.speed_over_fa2_p10 is None or row.speed_over_fa2_p90 is None else
                      f" ({row.speed_over_fa2_p10:.2f} – {row.speed_over_fa2_p90:.2f})")
            return f"{row.speed_over_fa2:.2f}{spread}"
    return "–"


def words(items: list[str]) -> str:
    """a; a and b; a, b and c."""
    return " and ".join(filter(None, [", ".join(items[:-1]), items[-1]]))


def origin_of(row: Row) -> str:
    return f"on one {row.device} (CUDA {row.cuda_runtime}, {row.date[:10]}, commit {row.commit})"


def origins(rows: list[Row]) -> str:
    """Where the numbers come from: once if all are of one origin, else for each of them."""
    steps: dict[str, list[str]] = {}
    for row in rows:
        steps.setdefault(origin_of(row), []).append(row.name())
    if len(steps) == 1:
        return f", {next(iter(steps))}."
    each = [f"step{'s' * (len(numbers) > 1)} {words(numbers)} {origin}"
            for origin, numbers in steps.items()]
    return f". Measured: {'; '.join(each)}."


def peer_note(results: Results) -> str:
    """How FlashAttention-2 was measured; nothing where it was not."""
    peers = (results.compare.select(**HEADLINE, mask="full", peer="FlashAttention-2")
             if results.compare else [])
    return "".join(" × FA2: as many times as fast as PyTorch's FlashAttention-2, both measured in "
                   f"turns in a run of their own, {origin_of(row)}; in brackets, where they are "
                   "kept, the first and last decile of its rounds." for row in peers)


def table(results: Results) -> str:
    """The table in Markdown, with a line that says where its numbers come from."""
    rows = steps_of(results)
    lines = ["| step | idea | TFLOP/s | of mma.sync | × FA2 | error / allowed |",
             "|---|---|---|---|---|---|"]
    for row in rows:
        path, title, idea = source_facts(row.step)
        lines.append(f"| [{row.name()} {title}]({path}) | {idea} | {row.tflops:.1f} "
                     f"| {of_ceiling(row)} | {over_fa2(row.step, results)} "
                     f"| {row.max_error:.1e} / {row.allowed_error:.1e} |")
    lines += ["", f"Forward pass, {HEADLINE['dtype']}, B={HEADLINE['batch']}, "
              f"H={HEADLINE['heads']}, N={HEADLINE['seqlen']}, D={HEADLINE['head_dim']}, no mask"
              f"{origins(rows)} mma.sync, FFMA and copy: what bare loops of them reach there."
              f"{peer_note(results)}"]
    return "\n".join(lines)


# --- The picture ---------------------------------------------------------------------------------

def picture_path(pictures: Path, theme: str) -> Path:
    return pictures / f"{figure_waterfall.NAME}_{theme}.svg"


def markup(readme: Path, pictures: Path, found: dict) -> str:
    """The picture in HTML, light or dark as the page, with its numbers for who cannot see it."""
    light, dark = (Path(os.path.relpath(picture_path(pictures, theme.name), readme.parent))
                   for theme in THEMES)
    told = [f"{step['step'].removeprefix('step')} {figure_waterfall.speed_label(before, speed)}"
            for panel in found["panels"][:1] for step, (before, speed)
            in zip(panel["steps"], figure_waterfall.changes(panel["steps"]), strict=True)]
    alt = " ".join(f"From step to step, TFLOP/s and speedup: {', '.join(told)}".split())
    return ("<picture>\n"
            f'  <source media="(prefers-color-scheme: dark)" srcset="{dark.as_posix()}">\n'
            f'  <img src="{light.as_posix()}" width="800" alt="{alt}">\n'
            "</picture>")


def shows(picture: Path, found: dict) -> bool:
    """Whether a picture says of itself that it was drawn from these data, and its labels too.

    Its bytes are not compared: they depend on the version of Matplotlib.
    """
    try:
        root = ElementTree.parse(picture).getroot()
        told = json.loads(root.findtext(f".//{DESCRIPTION}") or "null")
    except (OSError, ElementTree.ParseError, json.JSONDecodeError):
        return False
    texts = [element.text for element in root.iter(TEXT)]
    return told == json.loads(json.dumps(found)) and all(
        figure_waterfall.speed_label(*change) in texts
        for panel in found["panels"] for change in figure_waterfall.changes(panel["steps"]))


def differences(readme: Path, text: str, pictures: Path, found: dict) -> list[str]:
    """What is not as it should be, each with its name."""
    wrong = [] if readme.read_text() == text else [f"{readme}: not what the rows give"]
    return wrong + [f"{path}: shows not what the rows give" for theme in THEMES
                    if not shows(path := picture_path(pictures, theme.name), found)]


def fail(message: str, code: int = 1) -> int:
    print(f"ladder: {message}", file=sys.stderr)
    return code


def main() -> int:
    arguments = [argument for argument in sys.argv[1:] if argument != "--check"]
    if len(arguments) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    readme, directory, pictures = map(Path, arguments)
    try:
        results = load(directory)
    except RowsError as error:
        return fail(str(error), 2)
    if not steps_of(results):
        return fail(f"no row of the table's shape in {directory}; make sweep measures some")
    old = readme.read_text()
    found = figure_waterfall.data(results)
    try:
        new = with_section(old, "ladder", "`make readme` from plots/results",
                           f"{table(results)}\n\n{markup(readme, pictures, found)}")
    except SectionError as error:
        return fail(f"{readme} {error}")
    if "--check" in sys.argv:
        wrong = differences(readme, new, pictures, found)
        return fail("; ".join(wrong) + ": make readme") if wrong else 0
    readme.write_text(new)
    draw_figure(figure_waterfall.NAME, found, pictures, ("svg",))
    return 0


if __name__ == "__main__":
    sys.exit(main())
