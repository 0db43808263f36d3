"""Writes the claim and the table of steps of README.md and of the site's first page, and the figures of the docs.

Usage: python3 -m plots.figures.readme ROOT RESULTS-OF-A-GPU

Writes between markers in ROOT/README.md, ROOT/docs/index.md and ROOT/docs/figures.md, and two variants of each figure
to ROOT/docs/pictures. The links to the public address, if CITATION.cff has one, are written there and in the
notebook, too.
"""

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from statistics import geometric_mean

from plots import address
from plots.figures import waterfall
from plots.figures.all import DECODE, data_of_figures, draw_figure
from plots.figures.decode import DecodeResults
from plots.figures.records import DENSE, HEADLINE, SHORT_NAMES, Results, load, name_of
from plots.figures.style import THEMES
from plots.sections import with_section
from tests.lib.steps import STEPS, source_of, step_names

SHORTS = ("fa2", "cudnn", "fa3")
LONG_NAMES = {"fa2": "FlashAttention-2", "cudnn": "cuDNN", "fa3": "FlashAttention-3"}


# --- The claim -----------------------------------------------------------------------------------


def over(record: dict, short: str) -> str:
    """The median of the speedup over a baseline; a dash without one."""
    short += "_fp8" * (record["dtype"] == "e4m3")
    ratio = record.get(f"speed_over_{short}")
    return "–" if ratio is None else f"{ratio:#.3g}"


def claim(results: Results) -> str:
    """How the fastest step compares, at the table's length and at the longest, and with masks."""
    best = max(results.headline("full"), key=lambda record: record["tflops"])
    step = results.select(step=best["step"], dtype=best["dtype"])
    long = max(
        (record for record in step if record["mask"] == "full" and record["head_dim"] == best["head_dim"]),
        key=lambda record: record["seqlen"],
    )
    shorts = [short for short in reversed(SHORTS) if f"speed_over_{short}" in long]
    flex = {
        (record["mask"].split(":")[0], record["seqlen"], record["head_dim"]): record["speed_over_flex"]
        for record in step
        if "speed_over_flex" in record and record["mask"] not in DENSE
    }
    kinds, lengths, dims = map(sorted, map(set, zip(*flex, strict=True))) if flex else ([], [], [])
    masks = (
        f" With the masks {listed(f'`{kind}`' for kind in kinds)} (D = {listed(dims)}, N = "
        f"{listed(lengths)}), it is {min(flex.values()):.1f} to {max(flex.values()):.1f} times as "
        "fast as compiled FlexAttention."
        if flex
        else ""
    )
    return (
        f"on one {best['device']}, step {name_of(best)} is "
        f"{listed(f'{over(best, short)} times as fast as {LONG_NAMES[short]}' for short in shorts)}"
        f" ({best['dtype']}, D = {best['head_dim']}, N = {best['seqlen']}, no mask; at N = "
        f"{long['seqlen']}: {listed(over(long, short) for short in shorts)}).{masks}"
    )


def backward_claim(results: Results) -> str:
    """How the fastest backward step compares on the table's shape."""
    best = max(results.headline("full"), key=lambda record: record["tflops"], default=None)
    if best is None:
        return ""
    shorts = [short for short in reversed(SHORTS) if f"speed_over_{short}" in best]
    return (
        f"step {name_of(best)} is "
        f"{listed(f'{over(best, short)} times as fast as {LONG_NAMES[short]}' for short in shorts)}"
        f" ({best['dtype']}, D = {best['head_dim']}, N = {best['seqlen']}, no mask)."
    )


def decode_claim(results: DecodeResults) -> str:
    """How the fastest decode step compares in all cases that cuDNN has, from the smallest cache to the largest."""
    rows: dict[str, list[dict]] = {}
    for record in results.records:
        if "speed_over_cudnn" in record and record.get("step"):
            rows.setdefault(record["step"], []).append(record)
    if not rows:
        return ""
    step, own = max(rows.items(), key=lambda item: geometric_mean(r["speed_over_cudnn"] for r in item[1]))
    ranges = listed(
        f"{min(ratios):.2f} to {max(ratios):.2f} times as fast as {LONG_NAMES[short]}"
        for short in ("cudnn", "fa2")
        if (ratios := [record[f"speed_over_{short}"] for record in own if f"speed_over_{short}" in record])
    )
    sizes = [record["cache_bytes"] / 1e6 for record in own]
    return (
        f"with one query for each sequence, step {step.removeprefix('step')} is {ranges}, in {len(own)} cases "
        f"with {min(sizes):.0f} to {max(sizes):.0f} MB of K and V (bf16, on one {own[0]['device']})."
    )


def listed(words: Iterable[object]) -> str:
    *most, last = map(str, words)
    return f"{', '.join(most)} and {last}" if most else last


# --- The table -----------------------------------------------------------------------------------


def in_order() -> list[str]:
    """The steps in the order of reading, as docs/steps.md lists them, and then those that it does not list yet."""
    text = (STEPS.parent / "docs/steps.md").read_text()
    return list(dict.fromkeys([*re.findall(r"^- \[.*\]\((step\w+)\.md\)", text, re.MULTILINE), *step_names()]))


def table(results: Results, backward_results: Results, brief: bool = False) -> str:
    """The results table in Markdown, with a line on the origin of its numbers; a brief one for docs/index.md."""
    shorts = SHORTS[-1:] if brief else SHORTS
    in_e4m3 = results.steps(**HEADLINE | {"dtype": "e4m3"}, mask="full")
    records = {record["step"]: record for record in results.headline("full") + in_e4m3}
    behind = backward_results.headline("full")
    records |= {record["step"]: record for record in behind}
    lines = [
        "| step | idea | TFLOP/s | " + " | ".join(f"× {SHORT_NAMES[short]}" for short in shorts) + " |",
        f"|---|---|---:|{'---:|' * len(shorts)}",
    ]
    for step in in_order():
        source, record = source_of(step), records.get(step)
        numbers = ["–"] * (1 + len(shorts))
        if record:
            numbers = [f"{record['tflops']:.1f}", *(over(record, short) for short in shorts)]
        number = step.removeprefix("step")
        what = (
            f"[{number}]({step}.md) | {source.title}"
            if brief
            else f"[{number}](docs/{step}.md) [{source.title}]({STEPS.name}/{source.path.name}) | {source.idea}"
        )
        lines.append(f"| {what} | {' | '.join(numbers)} |")
    first = next(iter(records.values()))
    shape = ", ".join(
        f"{letter}={HEADLINE[name]}"
        for letter, name in (("B", "batch"), ("H", "heads"), ("N", "seqlen"), ("D", "head_dim"))
    )
    lines += [
        "",
        f"Forward pass, {HEADLINE['dtype']}, no mask, {shape} (batch entries, heads, "
        f"queries and keys, numbers per row), on one {first['device']} (CUDA "
        f"{first['cuda_runtime']}, {first['date'][:10]}, commit {first['commit']}); × is the "
        f"speedup over {'' if brief else 'FlashAttention-2 and cuDNN as PyTorch has them, and over '}"
        "FlashAttention-3: medians of interleaved runs.",
    ]
    backward, decode = step_names("backward"), step_names("decode")
    if others := [step.removeprefix("step") for step in in_order() if step not in (*records, *backward, *decode)]:
        lines[-1] += f" Steps {listed(others)} are for other head dimensions: see their pages."
    if in_e4m3:
        lines[-1] += f" Step {', '.join(map(name_of, in_e4m3))} and its baseline take e4m3."
    if backward:
        lines[-1] += f" Steps {listed([step.removeprefix('step') for step in backward])} are backward passes."
    if behind:
        lines[-1] += (
            f" They run on the same shape (commit {behind[0]['commit']}, {behind[0]['date'][:10]}, on one "
            f"{behind[0]['device']}), and × is then the speedup over the backward passes of the others."
        )
    if decode:
        lines[-1] += (
            f" Steps {listed([step.removeprefix('step') for step in decode])} decode: they are measured on caches of "
            "many lengths, see their pages."
        )
    return "\n".join(lines)


# --- The pictures --------------------------------------------------------------------------------


def markup(found: dict) -> str:
    """The waterfall in HTML, in the page's light or dark theme, with its numbers as alt text."""
    light, dark = (f"docs/pictures/{waterfall.NAME}_{theme.name}.svg" for theme in THEMES)
    told = [
        f"{step['step'].removeprefix('step')} {waterfall.speed_label(before, speed)}"
        for panel in found["panels"][:1]
        for step, (before, speed) in zip(panel["steps"], waterfall.changes(panel["steps"]), strict=True)
    ]
    alt = " ".join(f"From step to step, TFLOP/s and speedup: {', '.join(told)}".split())
    masks = [step.removeprefix("step") for step in step_names() if source_of(step).block_masks]
    return (
        "<picture>\n"
        f'  <source media="(prefers-color-scheme: dark)" srcset="{dark}">\n'
        f'  <img src="{light}" width="800" alt="{alt}">\n'
        "</picture>\n\n"
        "Each bar begins at the speed of the step that this one builds on. Steps that add masks, "
        f"not speed, are not shown: {', '.join(masks)}."
    )


DECODE_ALT = {
    "decode": "TB/s of K and V of each decode step and baseline in each case, below a kernel that only reads",
    "decode_roofline": "The speed of decode steps under the measured ceilings, over operations per byte",
}


def decode_markup(name: str, found: dict | None) -> str:
    """A figure of decode steps in HTML, if they were measured."""
    if found is None:
        return "Not measured on a GPU yet: `make bench DECODE=1`, then `make readme`."
    return (
        "<picture>\n"
        f'  <source media="(prefers-color-scheme: dark)" srcset="pictures/{name}_dark.svg">\n'
        f'  <img src="pictures/{name}_light.svg" width="800" alt="{DECODE_ALT[name]}">\n'
        "</picture>"
    )


def write_figures(root: Path, figures: dict[str, dict | None]) -> None:
    page = root / "docs/figures.md"
    text = page.read_text(encoding="utf-8")
    for name in DECODE:
        markup_of = decode_markup(name, figures.get(name))
        text = with_section(text, name, "`make readme` from plots/results", markup_of)
    page.write_text(text, encoding="utf-8")


def write_pages(root: Path, results: Results, found: dict, backward: Results, decode: DecodeResults) -> None:
    repository = address.repository(root)
    told = {"Forward": claim(results), "Backward": backward_claim(backward), "Decode": decode_claim(decode)}
    claims = "\n".join(f"- **{kind}**: {text}" for kind, text in told.items() if text)
    sections = {
        "README.md": {"claim": claims, "results": table(results, backward), "ladder": markup(found)},
        "docs/index.md": {"claim": claims, "results": table(results, backward, True)},
    }
    for name, written in sections.items():
        text = (root / name).read_text(encoding="utf-8")
        for section, content in written.items():
            text = with_section(text, section, "`make readme` from plots/results", content)
        links = address.links(repository, badges=name == "README.md")
        text = with_section(text, "address", "`make readme` from CITATION.cff", links)
        (root / name).write_text(text, encoding="utf-8")
    notebook = root / "docs/classroom.ipynb"
    notebook.write_text(address.in_notebook(notebook.read_text(encoding="utf-8"), repository), encoding="utf-8")


def main() -> int:
    root, results = Path(sys.argv[1]), load(Path(sys.argv[2]))
    figures = {name: found for name, found in data_of_figures(Path(sys.argv[2])).items() if found is not None}
    for name, found in figures.items():
        draw_figure(name, found, root / "docs/pictures", ("svg",))
    write_figures(root, figures)
    folder = Path(sys.argv[2]).parent
    write_pages(root, results, figures[waterfall.NAME], load(folder / "backward"), DecodeResults(folder / "decode"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
