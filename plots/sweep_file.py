"""What is there already of a sweep that was interrupted."""

import json
from pathlib import Path

from run_file import RunError, can_go_on, refuse_others
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


def read_whole_rows(path: Path) -> list[dict]:
    """All rows; every line must be one."""
    rows = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        try:
            row = json.loads(line)
            identity_of(row)
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path}:{number}: is no row of a step; delete the file to "
                             "measure anew") from error
        rows.append(row)
    return rows


def resume(path: Path, origin: dict) -> list[dict]:
    """The rows that are there, fit to have more appended."""
    if not path.exists():
        return []
    if not can_go_on(origin["commit"]):
        path.unlink()
        return []
    drop_unfinished_line(path)
    rows = read_whole_rows(path)
    refuse_others(path, rows, origin, ORIGIN)
    return rows
