"""The table of times in the pages of decode steps."""

from pathlib import Path

from plots.bench.decode import DECODE_BASELINES, IDENTITY, DecodeCase, decode_cases
from tests.lib.programs import read_records

RIVALS = {short: name for short, name, *_ in DECODE_BASELINES}


class DecodeResults:
    """The records of the last commit in a folder that has any, by case and implementation."""

    def __init__(self, folder: Path) -> None:
        self.records: list[dict] = []
        for path in sorted(folder.glob("bench_*.jsonl")):
            records = read_records(path)
            if not self.records or max(r["date"] for r in records) > max(r["date"] for r in self.records):
                self.records = records

    def of(self, case: DecodeCase, name: str) -> dict | None:
        """That of a step or a baseline, if it was timed."""
        own = [
            r
            for r in self.records
            if name in (r.get("step"), r.get("short"))
            and all(r[field] == getattr(case, field) for field in IDENTITY)
            and "median_ms" in r
        ]
        return own[-1] if own else None

    def origin(self) -> str:
        """GPU, commit and date, for the subtitle of a picture."""
        date = max(record["date"] for record in self.records)[:10]
        return f"{self.records[0]['device']}, commit {self.records[0]['commit'][:12]}, {date}"

    def gpu(self) -> str:
        """H100, say."""
        return self.records[0]["device"].split()[1]


def times_of(results: DecodeResults, case: DecodeCase, step: str) -> list[str]:
    """What the columns of another GPU say."""
    own, cudnn = results.of(case, step), results.of(case, "cudnn")
    return [microseconds(own, "read_ms"), f"**{microseconds(own)}**", microseconds(cudnn)]


def microseconds(record: dict | None, field: str = "median_ms") -> str:
    return f"{1e3 * record[field]:.1f}" if record and field in record else "–"


def words_of(case: DecodeCase) -> str:
    """What a row is about."""
    more = [f"{case.seqlen} queries"] * (case.seqlen > 1) + [f"pages of {case.page_size}"] * (case.page_size > 0)
    more += [case.kv_dtype] * (case.kv_dtype != case.dtype)
    return ", ".join([f"{case.heads} / {case.kv_heads}", f"D = {case.head_dim}", *more])


def decode_speed(results: DecodeResults, step: str, before: str, *gpus: DecodeResults) -> list[str]:
    """Microseconds of the step in each case, beside the kernel that only reads, the step that it builds on, and others.
    At the end of a line, what it took on more GPUs."""
    rows = [(case, own) for case in decode_cases() if (own := results.of(case, step))]
    if not rows:
        return ["Not measured on a GPU yet: `make bench DECODE=1`."]
    first = rows[0][1]
    others = [
        (name, label)
        for name, label in [(before, f"step {before.removeprefix('step')}"), *RIVALS.items()]
        if any(results.of(case, name) for case, _ in rows)
    ]
    own_name = f"**step {step.removeprefix('step')}**"
    head = ["heads", "sequences", "keys", "MB", "reads alone", own_name, "of the limit"]
    more = [others for others in gpus if any(others.of(case, step) for case, _ in rows)]
    tail = [f"{others.gpu()}: {what}" for others in more for what in ("reads alone", own_name, "cuDNN")]
    lines = [
        [
            words_of(case),
            case.batch,
            case.lengths,
            f"{1e-6 * own['cache_bytes']:.0f}",
            microseconds(own, "read_ms"),
            f"**{microseconds(own)}**",
            f"{own['median_ms'] / own['read_ms']:.2f}",
            *(microseconds(results.of(case, name)) for name, _ in others),
            *(text for others in more for text in times_of(others, case, step)),
        ]
        for case, own in rows
    ]
    return [
        f"[Time](measuring.md) on one {first['device']}, bf16, one query unless said otherwise, in microseconds; an "
        f"empty kernel takes {microseconds(first, 'empty_ms')} (commit {first['commit'][:12]}, {first['date'][:10]})"
        + "".join(f"; the last columns are of another run, on an {others.origin()}" for others in more)
        + ":",
        "",
        "| " + " | ".join([*head, *(label for _, label in others), *tail]) + " |",
        "| " + " | ".join(["---", *["---:"] * (len(head) - 1 + len(others) + len(tail))]) + " |",
        *("| " + " | ".join(map(str, line)) + " |" for line in lines),
    ]
