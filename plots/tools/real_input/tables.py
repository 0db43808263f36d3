"""Writes the tables of docs/real-input.md from measured records, between their markers.

Usage: python3 -m plots.tools.real_input.tables real-input.md DIRECTORY

DIRECTORY has the records of measure.py.
"""

import json
import math
import sys
from pathlib import Path

from plots.sections import with_section
from plots.tools.real_input.inputs import INPUTS, LONG
from tests.lib.programs import REPOSITORY, read_records
from tests.lib.steps import having

# Indices of 101 quantiles.
MEDIAN, LAST_PERCENT = 50, 99
ONE_HOT = 15  # of the entropies, from the start; of P of the first key, from the end
# Of each group of steps with the same bits, because they share their arithmetic, one; last that of
# the tensor cores.
SHOWN_STEPS = having("real_input")
TITLES = {given.name: given.title for given in (*INPUTS, LONG)}


def in_markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def provenance_of(name: str) -> dict:
    """The provenance that `make activations` writes next to a fixture."""
    return json.loads((REPOSITORY / "tests" / "data" / name / "provenance.json").read_text())


def proof_table() -> str:
    known, packed = provenance_of("smollm2_layer12"), provenance_of("smollm2_packed")
    tokens = str(known["perplexities_tokens"])
    return in_markdown(
        ["SmolLM2", "tokens", "perplexity"],
        [
            *([name, tokens, f"{x:.4g}"] for name, x in known["perplexities"].items()),
            ["as it should be, all that is kept", str(sum(known["tokens"])), f"{known['perplexity']:.4g}"],
            ["the six psalms", str(sum(packed["tokens"])), f"{packed['perplexity']:.4g}"],
        ],
    )


def cosine_table() -> str:
    known = provenance_of("minilm_layer0")
    return in_markdown(
        ["sentences", "cosine here", "published"],
        [
            [f"{a} / {b}", f"{found:.5f}", f"{published:.4f}"]
            for a, b, found, published in known["cosines_found_and_published"]
        ],
    )


def scores_table(directory: Path) -> str:
    head = [
        "input",
        "largest score",
        "largest score of a row: median, 99 %",
        f"entropy: 1 %, {ONE_HOT} %, median",
        f"probability of the first key: median, {100 - ONE_HOT} %, 99 %",
        "heads that mostly put half of it there",
    ]
    return in_markdown(
        head,
        [
            [
                TITLES[record["name"]],
                f"{record['largest_score']:.1f}",
                f"{record['row_max'][MEDIAN]:.1f}, {record['row_max'][LAST_PERCENT]:.1f}",
                ", ".join(f"{record['entropy'][at]:.2f}" for at in (1, ONE_HOT, MEDIAN)),
                ", ".join(f"{record['first_key'][at]:.3f}" for at in (MEDIAN, 100 - ONE_HOT, LAST_PERCENT)),
                str(record["heads_half_on_first_key"]),
            ]
            for record in read_records(directory / "scores.jsonl")
        ],
    )


def errors_table(directory: Path) -> str:
    records = {
        (record["name"], record["step"], record["dtype"]): record for record in read_records(directory / "errors.jsonl")
    }
    columns = [(step, dtype) for dtype in ("fp16", "bf16") for step in SHOWN_STEPS]
    table = []
    for given in INPUTS:
        cells = [(records[(given.name, *column)], "") for column in columns]
        cells.append((records[given.name, SHOWN_STEPS[-1], "bf16"], "_of_inputs"))
        table.append(
            [given.title, *(f"{record['mean_error' + of]:.1e}, {record['max_error' + of]:.1e}" for record, of in cells)]
        )
    return in_markdown(["input", *map(", ".join, columns), "rounding the input to bf16"], table)


def e4m3_table(directory: Path) -> str:
    """Mean and largest error of each type, and of e4m3 that part that rounding the inputs makes."""
    records = {
        (record["name"], record["dtype"], record["scales"]): record for record in read_records(directory / "e4m3.jsonl")
    }
    columns = {
        ("fp16", "", ""): "fp16",
        ("bf16", "", ""): "bf16",
        ("e4m3", "head", ""): "e4m3, a scale for each head",
        ("e4m3", "tensor", ""): "e4m3, one scale",
        ("e4m3", "head", "_of_inputs"): "of these from rounding Q, K and V, a scale for each head",
    }
    by = {record["by"] for record in records.values() if record["dtype"] == "e4m3"}
    told = {name: f"by step {name.removeprefix('step')}" for name in by}
    told["NumPy"] = "in NumPy, with the roundings of a kernel"
    table = [
        [
            given.title,
            *(
                f"{record['mean_error' + of]:.1e}, {record['max_error' + of]:.1e}"
                for record, of in ((records[given.name, dtype, scales], of) for dtype, scales, of in columns)
            ),
        ]
        for given in INPUTS
    ]
    return (
        in_markdown(["input", *columns.values()], table)
        + f"\n\nComputed {' and '.join(told[name] for name in sorted(by))}."
    )


def length_table(directory: Path) -> str:
    records = [
        record
        for record in read_records(directory / "errors.jsonl")
        if (record["step"], record["dtype"], record["mask"]) == (SHOWN_STEPS[-1], "fp16", "causal")
    ]
    spans = max((record["by_position"] for record in records), key=len)
    head = [f"{SHOWN_STEPS[-1]}, fp16", *(f"queries {span['first']}-{span['last']}" for span in spans)]
    table = []
    for record in records:
        cells = [f"{span['mean_error']:.2e}, {span['mean_norm']:.2f}" for span in record["by_position"]]
        table.append([TITLES[record["name"]], *cells, *[""] * (len(spans) - len(cells))])
    return in_markdown(head, table)


def limits_table() -> str:
    """The scores s at which exp(s) leaves a format, by its mantissa bits and exponents."""
    formats = {"fp16": (10, 15, -14), "bf16": (7, 127, -126), "single precision": (23, 127, -126)}
    return in_markdown(
        ["P in", "infinite beyond a score of", "loses bits below"],
        [
            [name, f"{math.log((2 - 2.0**-bits) * 2.0**largest):.1f}", f"{math.log(2.0**smallest):.1f}"]
            for name, (bits, largest, smallest) in formats.items()
        ],
    )


def no_maximum_table(directory: Path) -> str:
    wrong: dict[tuple, list] = {}
    records = read_records(directory / "no_maximum.jsonl")
    for record in records:
        wrong.setdefault((record["name"], record["step"], record["dtype"]), []).append(str(record["rows_wrong"]))
    columns = [(step, dtype) for step in SHOWN_STEPS for dtype in ("fp16", "bf16")]
    sharper = list(dict.fromkeys(f"{record['sharper']:g}" for record in records))
    head = [f"wrong rows at {', '.join(sharper)} times the scores", "rows", *map(", ".join, columns)]
    counts = {record["name"]: str(record["rows"]) for record in records}
    return in_markdown(
        head,
        [
            [given.title, counts[given.name], *(", ".join(wrong[given.name, step, dtype]) for step, dtype in columns)]
            for given in INPUTS
        ],
    )


def origin(directory: Path) -> str:
    records = [record for name in ("errors", "no_maximum") for record in read_records(directory / f"{name}.jsonl")]
    commits = sorted({record["commit"] for record in records})
    dates = sorted({record["date"][:10] for record in records})
    return f"Measured on the CPU backend, {', '.join(dates)}, commit {', '.join(commits)}."


def main() -> int:
    document, directory = map(Path, sys.argv[1:])
    sections = {
        "proof": proof_table(),
        "cosines": cosine_table(),
        "scores": scores_table(directory),
        "errors": errors_table(directory),
        "e4m3": e4m3_table(directory),
        "length": length_table(directory),
        "no-maximum": no_maximum_table(directory),
        "limits": limits_table(),
        "origin": origin(directory),
    }
    text = document.read_text()
    for name, content in sections.items():
        text = with_section(text, name, "`make real-input`", content)
    document.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
