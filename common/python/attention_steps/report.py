"""What the lab counted and found in a run, as objects that print, plot and become tables."""

import html
import linecache
import re
from collections import defaultdict
from dataclasses import dataclass, field

from .gallery import StepError, root

SIZES = "line", "launches", "blocks", "batch", "heads", "kv_heads", "seqlen", "seqlen_kv", "head_dim"
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


def _source(record: dict) -> str:
    """The text of a line. An installed program does not find its sources itself."""
    return record["source"] or linecache.getline(str(root() / record["file"]), record["line"]).strip()


def _counts(record: dict) -> Counts:
    return Counts({name: n for name, n in record.items() if type(n) is int and n and name not in SIZES})


@dataclass
class Line:
    """A line of the source: `file`, `line`, its text `source`, the `kernel`, and the `counts` of what happened there."""

    file: str
    line: int
    source: str
    kernel: str
    counts: Counts = field(repr=False)

    def __str__(self) -> str:
        names = "sectors", "wavefronts", "conflicts", "mma", "wgmma"
        counts = [(getattr(self.counts, name, self.counts[name]), name) for name in names]
        what = ", ".join(f"{count} {name}" for count, name in counts if count) or "no memory"
        return f"{self.file}:{self.line}  {self.source}\n    {what}"


@dataclass
class Problem:
    """An error that the lab reports, or a note of what is none: `what` it is, and how often, `count`; `place`, file and
    line, and `calls`, who called; `other_place`, of an access that it collides with; `where` in memory it was first."""

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


@dataclass(repr=False)
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
    record: dict
    why: str
    text: str

    @classmethod
    def of(cls, records: list[dict], record: dict, why: str, text: str) -> "Lab":
        kinds = defaultdict(list)
        for r in records:
            kinds[r["record"]].append(r)
        if not kinds["run"]:
            raise StepError(why.strip() or text.strip() or "the program wrote no report")
        lines = [Line(r["file"], r["line"], _source(r), r["kernel"], _counts(r)) for r in kinds["line"]]
        lines.sort(key=lambda line: (line.counts.sectors, line.counts.wavefronts), reverse=True)
        names = "what", "place", "calls", "other_place", "where"
        findings, notes = (
            [Problem(*(r.get(name) or "" for name in names), r.get("count") or 1) for r in kinds[kind]]
            for kind in ("finding", "note")
        )
        (run,) = kinds["run"]
        return cls(run["step"], record.get("right"), findings, notes, _counts(run), lines, record, why, text)

    @property
    def conflicts(self) -> list[Line]:
        """The lines with bank conflicts, the worst first."""
        lines = (line for line in self.lines if line.counts.conflicts)
        return sorted(lines, key=lambda line: -line.counts.conflicts)

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

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def table(self) -> list[dict]:
        """A row for each line of the source: its place and text, and its counts that are not 0."""
        places = "file", "line", "source", "kernel"
        return [{name: getattr(line, name) for name in places} | line.counts for line in self.lines]

    def frame(self) -> object:
        """The table as a DataFrame; needs pandas."""
        import pandas

        return pandas.DataFrame(self.table()).fillna(0).convert_dtypes()

    def plot(self, most: int = 12) -> object:
        """A figure of the sectors and wavefronts of the lines with most of them, conflicts apart; needs matplotlib."""
        import matplotlib.pyplot as plt

        lines = [line for line in self.lines if line.counts.sectors or line.counts.wavefronts][:most][::-1]
        labels = [f"{line.source[:48]}  {line.file.rpartition('/')[2]}:{line.line}" for line in lines]
        figure, (left, right) = plt.subplots(
            1, 2, sharey=True, figsize=(10, 1 + 0.3 * len(lines)), layout="constrained"
        )
        left.barh(labels, [line.counts.sectors for line in lines])
        left.set_xlabel("sectors of global memory")
        plain = [line.counts.wavefronts - line.counts.conflicts for line in lines]
        right.barh(labels, plain, label="without conflicts")
        right.barh(labels, [line.counts.conflicts for line in lines], left=plain, label="bank conflicts")
        right.set_xlabel("wavefronts of shared memory")
        right.legend()
        figure.suptitle(self.verdict())
        plt.close(figure)  # else a notebook shows it twice
        return figure

    def compare(self, other: "Lab") -> dict[str, tuple[int, int]]:
        """The counts that differ from those of another run: the other's and one's own."""
        return {
            name: (other.counts[name], self.counts[name])
            for name in sorted({*self.counts, *other.counts} - {"findings", "notes"})
            if other.counts[name] != self.counts[name] and "_most_" not in name
        }

    def annotated(self, source: str, file: str) -> str:
        """HTML of a source, the text of this file: counts and findings beside the lines where they happened."""
        counts, said = defaultdict(Counts), defaultdict(dict)
        for line in self.lines:
            if line.file.endswith(file):
                for name, n in line.counts.items():
                    counts[line.line][name] += n
        for problem in self.findings:
            for place in (problem.place, *re.findall(r"\S+:\d+", problem.calls)):
                path, _, number = place.rpartition(":")
                if path.endswith(file):
                    said[int(number)][problem.what] = True
                    break
        rows = []
        for number, text in enumerate(source.splitlines(), 1):
            c = counts[number]
            cells = "".join(f"<td>{n or ''}</td>" for n in (c.sectors, c.wavefronts, c.conflicts))
            style = ' style="background:#fdd;color:#000"' if said[number] else ""
            why = "".join(f"<br><b>{html.escape(what)}</b>" for what in said[number])
            code = f'<td style="text-align:left"><code style="white-space:pre">{html.escape(text)}</code>{why}</td>'
            rows.append(f"<tr{style}><td>{number}</td>{code}{cells}</tr>")
        head = "".join(f"<th>{name}</th>" for name in ("line", "source", "sectors", "wavefronts", "conflicts"))
        return f"<table><tr>{head}</tr>{''.join(rows)}</table>"
