"""The file of one run: how it is named, and what does not belong to it."""

from collections.abc import Iterator
from pathlib import Path

# While a run is not complete its file has this behind its name, so that nobody takes it for one.
PARTIAL = ".partial"
# What git names no commit: the next run may be of other code.
UNNAMED = ("-dirty", "unknown")


class RunError(Exception):
    """One line for the user, and the exit code."""

    def __init__(self, text: str, code: int = 2) -> None:
        super().__init__(text)
        self.code = code


def numbered(directory: Path, stem: str) -> Iterator[Path]:
    """STEM.jsonl, STEM_2.jsonl, ..."""
    yield directory / f"{stem}.jsonl"
    number = 2
    while True:
        yield directory / f"{stem}_{number}.jsonl"
        number += 1


def choose(directory: Path, stem: str) -> Path:
    """The file of the run to go on with, or to begin: the first that is not complete."""
    return next(path for path in numbered(directory, stem) if not path.exists())


def refuse_complete(path: Path) -> None:
    """What was measured once is not written over."""
    if path.exists():
        raise RunError(f"{path}: is complete; name another file or delete this one")


def partial_of(path: Path) -> Path:
    """The name that `path` has until all of it is there."""
    return path.with_name(path.name + PARTIAL)


def can_go_on(commit: str) -> bool:
    """Whether rows of an interrupted run of `commit` are of the same code as the next ones."""
    return not commit.endswith(UNNAMED)


def refuse_others(path: Path, rows: list[dict], origin: dict, fields: tuple[str, ...]) -> None:
    """Rows that were not made by these programs on this machine cannot stand beside new ones: they
    differ in one of `fields`, which not every row has."""
    for number, row in enumerate(rows, start=1):
        for field in fields:
            if field in row and row[field] != origin.get(field):
                raise RunError(f"{path}:{number}: {field} {row[field]}, but this run has "
                               f"{origin.get(field)}; name another file or delete this one")
