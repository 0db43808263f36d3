"""The file of one sweep: where it lies, what of it is there already, what does not belong to it."""

import json
from collections.abc import Iterator
from pathlib import Path

from sweep_grid import identity_of

# While a sweep is not complete its file has this behind its name, so that nobody takes it for one.
PARTIAL = ".partial"
# One run is of one commit on one GPU, under one driver and toolkit.
ORIGIN = ("commit", "device", "driver", "cuda_runtime")
# What git names no commit: the next run may be of other code.
UNNAMED = ("-dirty", "unknown")


class SweepError(Exception):
    """One line for the user, and the exit code."""

    def __init__(self, text: str, code: int = 2) -> None:
        super().__init__(text)
        self.code = code


def numbered(directory: Path, stem: str) -> Iterator[Path]:
    """sweep_COMMIT.jsonl, sweep_COMMIT_2.jsonl, ..."""
    yield directory / f"{stem}.jsonl"
    number = 2
    while True:
        yield directory / f"{stem}_{number}.jsonl"
        number += 1


def choose(directory: Path, stem: str) -> Path:
    """The file of the sweep to go on with, or to begin: the first that is not complete."""
    return next(path for path in numbered(directory, stem) if not path.exists())


def partial_of(path: Path) -> Path:
    """The name that `path` has until all of it is there."""
    return path.with_name(path.name + PARTIAL)


def drop_unfinished_line(path: Path) -> None:
    """What an interruption left of a line that was being written."""
    data = path.read_bytes()
    whole = data[:data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        path.write_bytes(whole)


def read_whole_rows(path: Path) -> list[dict]:
    """All rows; every line must be one."""
    rows = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        try:
            row = json.loads(line)
            identity_of(row)
        except (ValueError, KeyError, TypeError) as error:
            raise SweepError(f"{path}:{number}: is no row of a step; delete the file to "
                             "measure anew") from error
        rows.append(row)
    return rows


def refuse_others(path: Path, rows: list[dict], origin: dict) -> None:
    """Rows that were not made by these programs on this GPU cannot stand beside new ones."""
    for number, row in enumerate(rows, start=1):
        for field in ORIGIN:
            # Rows of wrong answers are not timed and have no driver.
            if field in row and row[field] != origin.get(field):
                raise SweepError(f"{path}:{number}: {field} {row[field]}, but this run has "
                                 f"{origin.get(field)}; name another file or delete this one")


def resume(path: Path, origin: dict) -> list[dict]:
    """The rows that are there, fit to have more appended."""
    if not path.exists():
        return []
    if origin["commit"].endswith(UNNAMED):
        path.unlink()
        return []
    drop_unfinished_line(path)
    rows = read_whole_rows(path)
    refuse_others(path, rows, origin)
    return rows
