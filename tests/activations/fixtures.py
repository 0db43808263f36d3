"""Directories of tensors that the programs read, with their origin and checksums."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np

from tests.activations.layers import Activations

# To be raised whenever the tool writes different numbers.
TOOL_VERSION = 1
CHECKSUMS = "checksums.txt"
SAMPLED_ROWS = 16


def _save(path: Path, array: np.ndarray) -> None:
    """Saves the array with a batch dimension in front."""
    np.save(path, np.ascontiguousarray(array[None]))


def write(directory: Path, a: Activations, provenance: dict) -> Path:
    """q, k and v for `--input`, some rows of the model's own output, and their origin."""
    directory.mkdir(parents=True)
    rows = np.linspace(0, a.q.shape[1] - 1, SAMPLED_ROWS).astype(int)
    # The last bits of a double differ between machines; those of a float do not.
    for name, array in (
        ("q", a.q),
        ("k", a.k),
        ("v", a.v),
        ("o_rows", a.o[:, rows].astype(np.float32)),
        ("lse_rows", a.lse[:, rows].astype(np.float32)),
    ):
        _save(directory / f"{name}.npy", array)
    known = {**provenance, "rows_of_o": rows.tolist(), "tool_version": TOOL_VERSION}
    (directory / "provenance.json").write_text(json.dumps(known, indent=2) + "\n")
    return directory


def provenance_of(directory: Path) -> dict:
    """The provenance as given to write(), with the indices of the stored rows of O."""
    return json.loads((directory / "provenance.json").read_text())


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def checksum_lines(root: Path, directories: list[str]) -> list[str]:
    """One line for each file, in the format of `sha256sum`."""
    files = sorted(path for name in directories for path in (root / name).iterdir())
    return [f"{sha256(path)}  {path.relative_to(root)}" for path in files]


def changed_files(root: Path) -> list[str]:
    """A sentence for each file in the list of checksums that is missing or different."""
    found = []
    for line in (root / CHECKSUMS).read_text().splitlines():
        expected, name = line.split("  ")
        if not (root / name).is_file():
            found.append(f"{root / name}: missing")
        elif sha256(root / name) != expected:
            found.append(f"{root / name}: has another checksum than {CHECKSUMS} says")
    return found


def differences(fresh: Path, kept: Path, directories: list[str]) -> list[str]:
    """Names of the files that are not the same in `fresh` and `kept`."""
    lines = [
        {line for name in directories if (root / name).is_dir() for line in checksum_lines(root, [name])}
        for root in (fresh, kept)
    ]
    return sorted({line.split("  ")[1] for line in lines[0] ^ lines[1]})


def keep(fresh: Path, kept: Path, directories: list[str]) -> None:
    """Replaces these directories in `kept` and the list of checksums."""
    for name in directories:
        shutil.rmtree(kept / name, ignore_errors=True)
        shutil.copytree(fresh / name, kept / name)
    (kept / CHECKSUMS).write_text("\n".join(checksum_lines(kept, [*directories, "texts"])) + "\n")
