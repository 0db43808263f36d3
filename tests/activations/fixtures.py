"""Directories of tensors that the programs read, with where they come from and their checksums."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np

from tests.activations.layers import Activations

# To be raised whenever the tool writes other numbers than before.
TOOL_VERSION = 1
CHECKSUMS = "checksums.txt"
SAMPLED_ROWS = 16


def _save(path: Path, array: np.ndarray) -> None:
    """With a dimension in front, which is the batch."""
    np.save(path, np.ascontiguousarray(array[None]))


def write(directory: Path, a: Activations, provenance: dict) -> Path:
    """q, k and v for `--input`; some rows of the model's own output; where they come from."""
    directory.mkdir(parents=True)
    rows = np.linspace(0, a.q.shape[1] - 1, SAMPLED_ROWS).astype(int)
    # The last bits of a double are not the same on every machine; those of a float are.
    for name, array in (("q", a.q), ("k", a.k), ("v", a.v),
                        ("o_rows", a.o[:, rows].astype(np.float32)),
                        ("lse_rows", a.lse[:, rows].astype(np.float32))):
        _save(directory / f"{name}.npy", array)
    known = {**provenance, "rows_of_o": rows.tolist(), "tool_version": TOOL_VERSION}
    (directory / "provenance.json").write_text(json.dumps(known, indent=2) + "\n")
    return directory


def provenance_of(directory: Path) -> dict:
    """What write() was told, with the rows that it kept of O."""
    return json.loads((directory / "provenance.json").read_text())


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def checksum_lines(root: Path, directories: list[str]) -> list[str]:
    """One line a file, as `sha256sum` writes and checks them."""
    files = sorted(path for name in directories for path in (root / name).iterdir())
    return [f"{sha256(path)}  {path.relative_to(root)}" for path in files]


def changed_files(root: Path) -> list[str]:
    """What is wrong with the files that the list of checksums names, one sentence each."""
    found = []
    for line in (root / CHECKSUMS).read_text().splitlines():
        expected, name = line.split("  ")
        if not (root / name).is_file():
            found.append(f"{root / name}: missing")
        elif sha256(root / name) != expected:
            found.append(f"{root / name}: has another checksum than {CHECKSUMS} says")
    return found


def differences(fresh: Path, kept: Path, directories: list[str]) -> list[str]:
    """Names of the files that `fresh` and `kept` do not both hold with the same bytes."""
    lines = [{line for name in directories if (root / name).is_dir()
              for line in checksum_lines(root, [name])} for root in (fresh, kept)]
    return sorted({line.split("  ")[1] for line in lines[0] ^ lines[1]})


def keep(fresh: Path, kept: Path, directories: list[str]) -> None:
    """Replaces what is kept of these directories, and the list of checksums, by what is fresh."""
    for name in directories:
        shutil.rmtree(kept / name, ignore_errors=True)
        shutil.copytree(fresh / name, kept / name)
    (kept / CHECKSUMS).write_text("\n".join(checksum_lines(kept, [*directories, "texts"])) + "\n")
