"""What is there already of a sweep that was interrupted."""

from pathlib import Path

from run_file import can_go_on, read_whole_rows, refuse_others
from sweep_grid import identity_of

# One run is of one commit on one card, under one driver and toolkit. Rows of wrong answers are not
# timed and have no driver.
ORIGIN = ("commit", "device", "gpu_uuid", "driver", "cuda_runtime")


def drop_unfinished_line(path: Path) -> None:
    """What an interruption left of a line that was being written."""
    data = path.read_bytes()
    whole = data[:data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        path.write_bytes(whole)


def read_rows(path: Path) -> list[dict]:
    """All rows; every line must be one."""
    return read_whole_rows(path, "a step", identity_of)


def resume(path: Path, origin: dict) -> list[dict]:
    """The rows that are there, fit to have more appended."""
    if not path.exists():
        return []
    if not can_go_on(origin["commit"]):
        path.unlink()
        return []
    drop_unfinished_line(path)
    rows = read_rows(path)
    refuse_others(path, rows, origin, ORIGIN)
    return rows
