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


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    program, results = Path(sys.argv[1]), Path(sys.argv[2])
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "row"
        try:
            done = subprocess.run([program, "--ceilings", "--json", path], check=False)
        except OSError as error:
            print(f"ceilings: {program}: {error.strerror}; make all BACKEND=cuda", file=sys.stderr)
            return 2
        if done.returncode != 0:
            return done.returncode
        row = path.read_text()
    file = results / short_name(json.loads(row)["device"]) / "ceilings.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as rows:
        rows.write(row)
    print(f"added to   {file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
