"""What the lab counted and found in a run, as objects that print, plot and become tables."""

import html
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from .gallery import StepError

VERDICTS = {True: "RIGHT", False: "WRONG", None: "NOT CHECKED"}


class Counts(dict):
    """Numbers by the names of docs/json-records.md, such as shared_load_conflicts; a missing one is 0."""

    def __missing__(self, name: str) -> int:
        return 0

    def _sum(self, ending: str) -> int:
        return sum(count for name, count in self.items() if name.endswith(ending))

    @property
    def sectors(self) -> int:
        """32-byte sectors of global memory, read or written."""
        return self._sum("_sectors") - self._sum("_most_sectors")

    @property
    def wavefronts(self) -> int:
        """Wavefronts of shared memory."""
        return self._sum("_wavefronts")

    @property
    def conflicts(self) -> int:
        """Wavefronts that bank conflicts cause."""
        return self._sum("_conflicts")


def _counts(record: dict, besides: tuple[str, ...]) -> Counts:
    return Counts({name: n for name, n in record.items() if type(n) is int and n and name not in besides})


@dataclass
class Line:
    """A line of the source, and what was counted there."""

    file: str
    line: int
    source: str
    kernel: str
    counts: Counts = field(repr=False)

    def __str__(self) -> str:
        what = ", ".join(
            f"{count} {name}"
            for name in ("sectors", "wavefronts", "conflicts")
            if (count := getattr(self.counts, name))
        )
        others = ", ".join(f"{self.counts[name]} {name}" for name in ("mma", "wgmma") if self.counts[name])
        return f"{self.file}:{self.line}  {self.source}\n    {', '.join(filter(None, (what, others))) or 'no memory'}"


@dataclass
class Problem:
    """An error that the lab reports, or a note of what is none: `place` is file and line, `calls` who called."""

    what: str
    place: str
    calls: str
    other_place: str
    where: str
    count: int

    def __str__(self) -> str:
        places = [text for text in (self.place and f"at {self.place}", self.calls) if text]
        after = f"\n    after {self.other_place}" if self.other_place else ""
        return f"{self.what}\n    {', '.join(places)}{after}\n    {self.count} times, first: {self.where}"

    @property
    def line(self) -> int:
        """The number of the line at fault, 0 if there is none."""
        return int(self.place.rpartition(":")[2] or 0)


def _problem(record: dict) -> Problem:
    words = (record.get(name) or "" for name in ("what", "place", "calls", "other_place", "where"))
    return Problem(*words, record.get("count") or 1)


@dataclass
class Lab:
    """A run of a step on the CPU backend, checked and examined.

    `right` is the verdict, None if nothing was compared; `findings` are errors of the kernel and `notes` are none;
    `counts` are those of the pass, and `lines` has a Line for each line of the source, those with most work first.
    `record` is the whole record of the run, `why` says which rows are wrong, `text` is the program's own report.
    """

    step: str
    right: bool | None
    findings: list[Problem]
    notes: list[Problem]
    counts: Counts
    lines: list[Line]
    kernels: dict[str, Counts]
    record: dict = field(repr=False)
    why: str = field(repr=False)
    text: str = field(repr=False)

    @classmethod
    def of(cls, records: list[dict], record: dict, why: str, text: str) -> "Lab":
        kinds = {kind: [r for r in records if r["record"] == kind] for kind in ("run", "kernel", "line")}
        if not kinds["run"]:
            raise StepError(why.strip() or text.strip() or "the program wrote no report")
        besides = ("line", "launches", "blocks", "batch", "heads", "kv_heads", "seqlen", "seqlen_kv", "head_dim")
        lines = [Line(r["file"], r["line"], r["source"] or "", r["kernel"], _counts(r, besides)) for r in kinds["line"]]
        lines.sort(key=lambda line: (line.counts.sectors, line.counts.wavefronts), reverse=True)
        return cls(
            kinds["run"][0]["step"],
            record.get("right"),
            *([_problem(r) for r in records if r["record"] == kind] for kind in ("finding", "note")),
            _counts(kinds["run"][0], besides),
            lines,
            {r["kernel"]: _counts(r, besides) for r in kinds["kernel"]},
            record,
            why,
            text,
        )

    @property
    def conflicts(self) -> list[Line]:
        """The lines with bank conflicts, the worst first."""
        return sorted(
            (line for line in self.lines if line.counts.conflicts), key=lambda x: x.counts.conflicts, reverse=True
        )

    @property
    def traffic(self) -> list[Line]:
        """The lines that read or write global memory, those with most sectors first."""
        return [line for line in self.lines if line.counts.sectors]

    def verdict(self) -> str:
        return f"{self.step}: {VERDICTS[self.right]}, {len(self.findings)} findings"

    def __str__(self) -> str:
        totals = f"{self.counts.sectors} sectors, {self.counts.wavefronts} wavefronts"
        return "\n".join(
            [
                f"{self.verdict()}; {totals}, {self.counts.conflicts} of them by bank conflicts",
                *([self.why.rstrip()] if self.why.strip() else []),
                *map(str, self.findings),
                *map(str, self.lines[:8]),
                *([f"and {len(self.lines) - 8} more lines"] if len(self.lines) > 8 else []),
            ]
        )

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def table(self) -> list[dict]:
        """A row for each line of the source: its place and text, and each count that is not 0 in some line."""
        columns = {name: None for line in self.lines for name in line.counts}
        return [
            {"file": line.file, "line": line.line, "source": line.source, "kernel": line.kernel}
            | {name: line.counts[name] for name in columns}
            for line in self.lines
        ]

    def frame(self) -> object:
        """The table as a DataFrame; needs pandas."""
        import pandas

        return pandas.DataFrame(self.table())

    def plot(self, most: int = 12) -> object:
        """Draws sectors and wavefronts of the lines with most work, conflicts apart; needs matplotlib."""
        import matplotlib.pyplot as plt

        lines = self.lines[:most][::-1]
        labels = [f"{line.source[:48]}  {line.file.rpartition('/')[2]}:{line.line}" for line in lines]
        figure, (left, right) = plt.subplots(1, 2, sharey=True, figsize=(10, 0.6 + 0.32 * len(lines)))
        left.barh(labels, [line.counts.sectors for line in lines])
        left.set_xlabel("sectors of global memory")
        plain = [line.counts.wavefronts - line.counts.conflicts for line in lines]
        right.barh(labels, plain, label="without conflicts")
        right.barh(labels, [line.counts.conflicts for line in lines], left=plain, label="bank conflicts")
        right.set_xlabel("wavefronts of shared memory")
        right.legend()
        figure.suptitle(self.verdict())
        figure.tight_layout()
        return figure

    def compare(self, other: "Lab") -> dict[str, tuple[int, int]]:
        """The counts that differ from those of another run: the other's and one's own."""
        named = Counter(self.counts) | Counter(other.counts)
        return {
            name: (other.counts[name], self.counts[name])
            for name in sorted(named)
            if other.counts[name] != self.counts[name] and "_most_" not in name and name not in ("findings", "notes")
        }

    def annotated(self, source: str, file: str, number_of: Callable[[int], int] = lambda line: line) -> str:
        """HTML of a source: counts and findings beside the lines where they happened. `number_of` gives the line of
        `source` for a line of the file, 0 if it has none."""
        counts: dict[int, Counts] = {}
        for line in self.lines:
            if line.file.endswith(file):
                at = counts.setdefault(number_of(line.line), Counts())
                for name, n in line.counts.items():
                    at[name] += n
        said: dict[int, list[str]] = {}
        for problem in self.findings:
            for place in (problem.place, *re.findall(r"\S+:\d+", problem.calls)):
                path, _, number = place.rpartition(":")
                if path.endswith(file) and (at := number_of(int(number))):
                    said.setdefault(at, []).append(problem.what)
                    break
        rows = []
        for number, text in enumerate(source.splitlines(), 1):
            c = counts.get(number, Counts())
            cells = "".join(f"<td>{n or ''}</td>" for n in (c.sectors, c.wavefronts, c.conflicts))
            style = ' style="background:#fdd;color:#000"' if number in said else ""
            why = "".join(f"<br><b>{html.escape(what)}</b>" for what in dict.fromkeys(said.get(number, [])))
            code = f'<td style="text-align:left"><code style="white-space:pre">{html.escape(text)}</code>{why}</td>'
            rows.append(f"<tr{style}><td>{number}</td>{code}{cells}</tr>")
        head = "".join(f"<th>{name}</th>" for name in ("line", "source", "sectors", "wavefronts", "conflicts"))
        return f"<table><tr>{head}</tr>{''.join(rows)}</table>"
