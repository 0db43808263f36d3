"""The file of one run: how it is named, who may write it, and what does not belong to it."""

import fcntl
import json
import os
import signal
import sys
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path

# While a run is not complete its file has this behind its name, so that nobody takes it for one.
PARTIAL = ".partial"
# While a run is being written a file with this behind its name is locked.
LOCK = ".lock"
# What git names no commit: the next run may be of other code.
UNNAMED = ("-dirty", "unknown")


class RunError(Exception):
    """One line for the user, and the exit code."""

    def __init__(self, text: str, code: int = 2) -> None:
        super().__init__(text)
        self.code = code


def os_error(error: OSError) -> str:
    """Some are of no file, or tell no more than a text: a pipe that nobody reads, a library."""
    return f"{error.filename}: {error.strerror}" if error.filename else (
        error.strerror or str(error))


def exit_code(program: str, run: Callable[[], int]) -> int:
    """What `run` returns; of what a user can put right, one line and its code."""
    try:
        return run()
    except RunError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return error.code
    except OSError as error:
        print(f"{program}: {os_error(error)}", file=sys.stderr)
        return 3


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


def end_by_signals() -> None:
    """Batch systems end a run by SIGTERM, a terminal that is closed by SIGHUP: both are the
    KeyboardInterrupt that Ctrl-C is. nohup has a run ignore the latter, and so it stays."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.default_int_handler)


@contextmanager
def only_writer(path: Path) -> Iterator[None]:
    """No other run writes `path` meanwhile; its directory is made."""
    if path.is_dir():
        raise RunError(f"{path}: is a directory; must be a file, to be written")
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(path.name + LOCK)
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunError(f"{path}: is being written by another run") from error
        except OSError as error:
            raise RunError(f"{lock}: cannot be locked: {error.strerror}", 3) from error
        # Opened while another run ended and took its lock away: a third one may have a new lock.
        if os.fstat(file.fileno()).st_nlink == 0:
            raise RunError(f"{path}: was being written by another run until now; try again")
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def complete(path: Path) -> None:
    """Gives a run's file, which has all rows, its name."""
    partial = partial_of(path)
    if not partial.exists():
        raise RunError(f"{partial}: is gone, and with it the rows of this run", 3)
    refuse_complete(path)
    partial.rename(path)


def read_whole_rows(path: Path, what: str, identity: Callable[[dict], Hashable]) -> list[dict]:
    """All rows; every line must be one, of `what`, with the fields of its identity."""
    anew = f"is no row of {what}; delete the file to measure anew"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        number = path.read_bytes()[:error.start].count(b"\n") + 1
        raise RunError(f"{path}:{number}: {anew}") from error
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            hash(identity(row))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise RunError(f"{path}:{number}: {anew}") from error
        rows.append(row)
    return rows


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
