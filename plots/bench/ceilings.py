"""Measures what the GPU can do at best, and adds the record to RESULTS/GPU/ceilings.jsonl.

Usage: python3 -m plots.bench.ceilings PROGRAM RESULTS

PROGRAM is any step's: it measures, prints, and keeps what it found for later runs.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

# What makers put around the name that people use.
BRANDS = ("nvidia", "geforce", "tesla")


class CeilingsError(Exception):
    """One line for the user, and the exit code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def short_name(device: str) -> str:
    """The folder of a GPU: `h200` for "NVIDIA H200"."""
    words = re.findall(r"[a-z0-9]+", device.lower())
    return "_".join([word for word in words if word not in BRANDS] or words)


def measure_ceilings(program: Path, **more: object) -> dict:
    """The record of a step's --ceilings, which names the GPU and the commit too."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "record"
        done = subprocess.run([program, "--ceilings", "--json", path], check=False, text=True,
                              stderr=subprocess.PIPE, **more)
        if done.returncode != 0:
            raise CeilingsError(done.stderr.strip(), done.returncode)
        return json.loads(path.read_text(encoding="utf-8"))


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        record = measure_ceilings(Path(sys.argv[1]))
    except CeilingsError as error:
        print(f"ceilings: {error}", file=sys.stderr)
        return error.code
    file = Path(sys.argv[2]) / short_name(record["device"]) / "ceilings.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as records:
        records.write(json.dumps(record) + "\n")
    print(f"added to   {file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
