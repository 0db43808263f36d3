"""Measures what the GPU can do at best, and adds a row of it to RESULTS/GPU/ceilings.jsonl.

Usage: ceilings.py PROGRAM RESULTS

PROGRAM is any step's: it measures, prints, and keeps what it found for later runs.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from gpu_name import short_name
from run_file import RunError, exit_code


def read_row(program: Path, path: Path) -> dict:
    """The row that `program` wrote to `path` when it measured."""
    try:
        row = json.loads(path.read_text(encoding="utf-8"))
        if not all(isinstance(row[name], str) for name in ("device", "commit")):
            raise TypeError
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{program} --ceilings --json FILE: wrote no row of ceilings", 3) from error
    return row


def measure(program: Path, results: Path) -> int:
    """The exit code of the program, which says itself what went wrong in it."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "row"
        try:
            done = subprocess.run([program, "--ceilings", "--json", path], check=False)
        except OSError as error:
            raise RunError(f"{program}: {error.strerror}; make all BACKEND=cuda") from error
        if done.returncode != 0:
            return done.returncode
        row, text = read_row(program, path), path.read_text(encoding="utf-8")
    file = results / short_name(row["device"]) / "ceilings.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as rows:
        rows.write(text)
    print(f"added to   {file}")
    return 0


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    program, results = map(Path, sys.argv[1:])
    return exit_code("ceilings", lambda: measure(program, results))


if __name__ == "__main__":
    sys.exit(main())
