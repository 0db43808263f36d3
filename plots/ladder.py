"""Writes the README's table of steps from measured rows, between its markers.

Usage: ladder.py README.md ROWS.jsonl ... ; with --check it only compares and exits with 1 if they
differ.
"""

import json
import re
import sys
from pathlib import Path

SHAPE = {
    "batch": 4,
    "heads": 16,
    "kv_heads": 16,
    "seqlen": 4096,
    "seqlen_kv": 4096,
    "head_dim": 128,
    "dtype": "fp16",
    "mask": "full",
    "layout": "bhnd",
    "input": "normal",
}
BEGIN = "<!-- ladder: written by `make readme` from plots/results -->"
END = "<!-- /ladder -->"


def read_rows(paths: list[str]) -> list[dict]:
    """All rows of all files, in order."""
    return [json.loads(line) for path in paths for line in Path(path).read_text().splitlines()]


def latest_of_each_step(rows: list[dict]) -> list[dict]:
    """The last timed and right row of the table's shape for each step, by date."""
    latest = {}
    timed = [row for row in rows if row.get("samples")]
    for row in sorted(timed, key=lambda row: row["date"]):
        fits = all(row[field] == value for field, value in SHAPE.items())
        if fits and row["right"]:
            latest[row["step"]] = row
    return [latest[step] for step in sorted(latest)]


def source_facts(step: str) -> tuple[str, str, str]:
    """File, title and idea of a step, as its own source states them."""
    path = next(Path("steps").glob(f"{step}_*.cu"))
    text = path.read_text()
    title = re.search(r'\.title = "(.*)"', text)[1]
    idea = re.search(r'\.idea = "(.*)"', text)[1]
    return str(path), title, idea


def human_bytes(count: int) -> str:
    """1500000 as 1.5 MB."""
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def words(items: list[str]) -> str:
    """a; a and b; a, b and c."""
    return " and ".join(filter(None, [", ".join(items[:-1]), items[-1]]))


def origins(rows: list[dict]) -> str:
    """Where the numbers come from: once if all are of one origin, else for each of them."""
    steps = {}
    for row in rows:
        origin = (f"on one {row['device']} (CUDA {row['cuda_runtime']}, {row['date'][:10]}, "
                  f"commit {row['commit']})")
        steps.setdefault(origin, []).append(row["step"].removeprefix("step"))
    if len(steps) == 1:
        return f", {next(iter(steps))}."
    each = [f"step{'s' * (len(numbers) > 1)} {words(numbers)} {origin}"
            for origin, numbers in steps.items()]
    return f". Measured: {'; '.join(each)}."


def table(rows: list[dict]) -> str:
    """The table in Markdown, with a line that says where its numbers come from."""
    lines = [
        "| step | idea | ms | TFLOP/s | of its ceiling | extra memory | error / allowed |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        path, title, idea = source_facts(row["step"])
        error = f"{row['max_error']:.1e} / {row['allowed_error']:.1e}"
        lines.append(
            f"| [{row['step'].removeprefix('step')} {title}]({path}) | {idea} "
            f"| {row['median_ms']:.3g} | {row['tflops']:.1f} "
            f"| {row['ceiling_percent']:.0f} % of {row['ceiling']} "
            f"| {human_bytes(row['extra_bytes'])} | {error} |"
        )
    lines += [
        "",
        f"Forward pass, {SHAPE['dtype']}, B={SHAPE['batch']}, H={SHAPE['heads']}, "
        f"N={SHAPE['seqlen']}, D={SHAPE['head_dim']}, no mask{origins(rows)} "
        "The ceilings are measured in the same run.",
    ]
    return "\n".join(lines)


def with_table(readme: str, text: str) -> str:
    """The README with `text` between the markers."""
    before, rest = readme.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def main() -> int:
    arguments = [argument for argument in sys.argv[1:] if argument != "--check"]
    if len(arguments) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    readme = Path(arguments[0])
    rows = latest_of_each_step(read_rows(arguments[1:]))
    if not rows:
        print(f"ladder: no row of the table's shape in {' '.join(arguments[1:])}", file=sys.stderr)
        return 1
    old = readme.read_text()
    if old.count(BEGIN) != 1 or old.count(END) != 1:
        print(f"ladder: {readme} must hold once each: {BEGIN} and {END}", file=sys.stderr)
        return 1
    new = with_table(old, table(rows))
    if "--check" in sys.argv:
        return int(old != new)
    readme.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
