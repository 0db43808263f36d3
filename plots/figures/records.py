"""Reads the benchmark's records of one GPU: plots/results/GPU/bench_COMMIT.jsonl."""

import json
from dataclasses import dataclass
from pathlib import Path

# The shape of the README's table and of the waterfall, without the mask.
HEADLINE = {"batch": 4, "heads": 16, "seqlen": 4096, "head_dim": 128, "dtype": "fp16"}
DENSE = ("full", "causal")
QUERIES = 16384  # B * N in every case of the benchmark
SHORT_NAMES = {"fa2": "FA2", "fa3": "FA3", "cudnn": "cuDNN", "flex": "Flex", "fa3_fp8": "FA3 e4m3"}


def name_of(record: dict) -> str:
    """The short name of a step or baseline: 02b, FA2."""
    return SHORT_NAMES[record["short"]] if "short" in record else record["step"].removeprefix("step")


def density(record: dict) -> float:
    """The share of entries that are unmasked."""
    return record["flops"] / (
        4 * record["head_dim"] * record["batch"] * record["heads"] * record["seqlen"] * record["seqlen_kv"]
    )


@dataclass(frozen=True)
class Results:
    """The records of one commit that have a time and are not wrong."""

    records: list[dict]

    def select(self, **wanted: object) -> list[dict]:
        """The records with these fields, sorted by name."""
        return sorted(
            (record for record in self.records if all(record.get(name) == value for name, value in wanted.items())),
            key=name_of,
        )

    def steps(self, **wanted: object) -> list[dict]:
        return [record for record in self.select(**wanted) if "step" in record]

    def headline(self, mask: str) -> list[dict]:
        """The records of the steps, in order, on the shape of the README's table."""
        return self.steps(**HEADLINE, mask=mask)

    def dtype_of(self, step: str) -> str:
        """fp16, or e4m3 for a step that takes nothing else, or bf16 for a backward step, as most of its cases are."""
        if self.select(step=step, kind="backward"):
            return "bf16"
        return "e4m3" if self.select(step=step, dtype="e4m3") else "fp16"

    def panel(self, head_dim: int, mask: str, dtype: str = "fp16") -> list[dict]:
        """The records of all steps and baselines, sorted by length."""
        return sorted(self.select(head_dim=head_dim, mask=mask, dtype=dtype), key=lambda record: record["seqlen"])

    def origin(self) -> str:
        """GPU, commit and date, for the subtitle of a picture."""
        first = self.records[0]
        date = max(record["date"] for record in self.records)[:10]
        return f"{first['device']}, commit {first['commit']}, {date}"


# What makes a case. All contestants of a case are measured in turns.
CASE = ("head_dim", "seqlen", "seqlen_kv", "mask", "dtype", "batch", "heads", "kv_heads")


def load(directory: Path) -> Results:
    """Reads the records of each case from the commit that was measured last in this case."""
    runs = [
        [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for path in sorted(directory.glob("bench_*.jsonl"))
    ]
    newest: dict[tuple, list[dict]] = {}
    for run in sorted(filter(None, runs), key=lambda run: max(record["date"] for record in run)):
        cases: dict[tuple, list[dict]] = {}
        for record in run:
            cases.setdefault(tuple(map(record.get, CASE)), []).append(record)
        newest |= cases
    # The commit measured last comes first: it is the one that pictures name.
    records = [record for case in newest.values() for record in case]
    last = max(records, key=lambda record: record["date"], default={}).get("commit")
    records.sort(key=lambda record: record["commit"] != last)
    return Results([record for record in records if "median_ms" in record and record.get("right") is not False])
