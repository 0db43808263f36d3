"""Writes the README's table of steps from measured rows, and the pictures of the docs.

Usage: ladder.py [--check] README.md RESULTS-OF-A-GPU PICTURES
The table goes between the markers in README.md, two variants of each figure to the directory
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
    import figure_sparsity
    import figure_waterfall
    from figures import FIGURES, draw_figure
    from style import THEMES
except ModuleNotFoundError as missing:
    sys.exit(f"ladder: Python needs {missing.name}. Install it: make deps")

from rows import HEADLINE, Results, Row, RowsError, load
from sections import SectionError, with_section

STEPS = figure_waterfall.STEPS
MMA = "mma.sync"
LABELS = {figure.NAME: figure.labels for figure in (figure_waterfall, figure_sparsity)}
TEXT = "{http://www.w3.org/2000/svg}text"
DESCRIPTION = "{http://purl.org/dc/elements/1.1/}description"


# --- The table -----------------------------------------------------------------------------------

def source_facts(step: str) -> tuple[str, str, str]:
    """File, title and idea of a step, as its own source states them."""
    path = next(STEPS.glob(f"{step}_*.cu"), None)
    if path is None:
        raise RowsError(f"{STEPS.name}: has no {step}, of which there are rows")
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
                      f" ({ratio(row.speed_over_fa2_p10)} – {ratio(row.speed_over_fa2_p90)})")
            return f"{ratio(row.speed_over_fa2)}{spread}"
    return "–"


def ratio(value: float) -> str:
    """Three digits that count."""
    return f"{value:#.3g}"


def origin_of(row: Row, card: str = "one") -> str:
    return f"on {card} {row.device} (CUDA {row.cuda_runtime}, {row.date[:10]}, commit {row.commit})"


def peer_note(results: Results) -> str:
    """How FlashAttention-2 was measured; nothing where it was not."""
    peers = (results.compare.select(**HEADLINE, mask="full", peer="FlashAttention-2")
             if results.compare else [])
    if not peers:
        return ""
    cards = peers[0].gpu_uuid, results.sweep.rows[0].gpu_uuid
    card = "one" if None in cards else "the same" if cards[0] == cards[1] else "another"
    return (" × FA2: as many times as fast as PyTorch's FlashAttention-2, with which all steps "
            f"took turns in a run of their own, {origin_of(peers[0], card)}; in brackets, where "
            "they are kept, the first and last decile of the rounds.")


def table(results: Results) -> str:
    """The table in Markdown, with a line that says where its numbers come from."""
    rows = results.headline("full")
    lines = ["| step | idea | TFLOP/s | of mma.sync | × FA2 | error / allowed |",
             "|---|---|---|---|---|---|"]
    for row in rows:
        path, title, idea = source_facts(row.step)
        lines.append(f"| [{row.name()} {title}]({path}) | {idea} | {row.tflops:.1f} "
                     f"| {of_ceiling(row)} | {over_fa2(row.step, results)} "
                     f"| {row.max_error:.1e} / {row.allowed_error:.1e} |")
    lines += ["", f"Forward pass, {HEADLINE['dtype']}, B={HEADLINE['batch']}, "
              f"H={HEADLINE['heads']}, N={HEADLINE['seqlen']}, D={HEADLINE['head_dim']}, no mask, "
              f"{origin_of(rows[-1])}. mma.sync, FFMA and copy: what bare loops of them reach "
              "there."
              f"{peer_note(results)}"]
    return "\n".join(lines)


# --- The pictures --------------------------------------------------------------------------------

def picture_path(pictures: Path, name: str, theme: str) -> Path:
    return pictures / f"{name}_{theme}.svg"


def markup(readme: Path, pictures: Path, found: dict) -> str:
    """The waterfall in HTML, light or dark as the page, with its numbers for who cannot see it."""
    light, dark = (Path(os.path.relpath(picture_path(pictures, figure_waterfall.NAME, theme.name),
                                        readme.parent)) for theme in THEMES)
    told = [f"{step['step'].removeprefix('step')} {figure_waterfall.speed_label(before, speed)}"
            for panel in found["panels"][:1] for step, (before, speed)
            in zip(panel["steps"], figure_waterfall.changes(panel["steps"]), strict=True)]
    alt = " ".join(f"From step to step, TFLOP/s and speedup: {', '.join(told)}".split())
    return ("<picture>\n"
            f'  <source media="(prefers-color-scheme: dark)" srcset="{dark.as_posix()}">\n'
            f'  <img src="{light.as_posix()}" width="800" alt="{alt}">\n'
            "</picture>")


def labels_of(found: dict) -> list[str]:
    """What must be written in a picture."""
    return LABELS[found["figure"]](found) if found["figure"] in LABELS else []


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
    return (told == json.loads(json.dumps(found))
            and all(label in texts for label in labels_of(found)))


def content(readme: Path, pictures: Path, results: Results) -> tuple[dict[str, dict], str]:
    """What the figures show, by name, and the README as it should be."""
    figures = {name: found for name, figure in FIGURES.items()
               if (found := figure.data(results)) is not None}
    picture = markup(readme, pictures, figures[figure_waterfall.NAME])
    return figures, with_section(readme.read_text(encoding="utf-8"), "ladder",
                                 "`make readme` from plots/results",
                                 f"{table(results)}\n\n{picture}")


def differences(readme: Path, pictures: Path, results: Results) -> list[str]:
    """What is not as it should be, each with its name."""
    figures, text = content(readme, pictures, results)
    wrong = [] if readme.read_text(encoding="utf-8") == text else [
        f"{readme}: not what the rows give"]
    return wrong + [f"{path}: shows not what the rows give"
                    for name, found in figures.items() for theme in THEMES
                    if not shows(path := picture_path(pictures, name, theme.name), found)]


def fail(message: str, code: int = 1) -> int:
    print(f"ladder: {message}", file=sys.stderr)
    return code


def update(readme: Path, pictures: Path, results: Results) -> None:
    """Pictures first: a README that is written is right."""
    figures, text = content(readme, pictures, results)
    for name, found in figures.items():
        draw_figure(name, found, pictures, ("svg",))
    scratch = readme.with_name(readme.name + ".new")
    scratch.write_text(text, encoding="utf-8")
    os.replace(scratch, readme)


def main() -> int:
    arguments = [argument for argument in sys.argv[1:] if argument != "--check"]
    if len(arguments) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    readme, directory, pictures = map(Path, arguments)
    try:
        results = load(directory)
        if not results.headline("full"):
            return fail(f"no row of the table's shape in {directory}; make sweep measures some")
        if "--check" not in sys.argv:
            update(readme, pictures, results)
            return 0
        wrong = differences(readme, pictures, results)
    except RowsError as error:
        return fail(str(error), 2)
    except SectionError as error:
        return fail(f"{readme} {error}")
    except OSError as error:
        return fail(f"{error.filename}: {error.strerror}")
    except UnicodeDecodeError:
        return fail(f"{readme}: is no UTF-8 text")
    return fail("; ".join(wrong) + ": make readme") if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
