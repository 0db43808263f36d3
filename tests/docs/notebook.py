"""Runs docs/classroom.ipynb in a copy of the tree, where the files of its exercises are written, and saves it.

Usage: python3 -m tests.docs.notebook
"""

import os
import subprocess
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from tests.lib.programs import REPOSITORY, built_commit

NOTEBOOK = REPOSITORY / "docs/classroom.ipynb"


def run(copy: Path) -> nbformat.NotebookNode:
    """The notebook with its outputs, without the folder that the programs were built in and what the kernel says of
    itself."""
    for name in ("Makefile", "common", "steps", "docs", "plots", "tests", "build"):
        if (REPOSITORY / name).exists():
            subprocess.run(["cp", "-rl", REPOSITORY / name, copy / name], check=True)
    for path in (copy / "steps/exercises").glob("*[0-9].cu"):
        path.unlink()
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    about = notebook.metadata.copy()
    NotebookClient(
        notebook,
        timeout=120,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(copy / "docs")}},
    ).execute(env={name: value for name, value in os.environ.items() if not name.startswith("MAKE")})
    notebook.metadata = about
    for output in (output for cell in notebook.cells for output in cell.get("outputs", [])):
        for texts, name in (
            (output, "text"),
            *((output.get("data", {}), name) for name in ("text/html", "text/plain")),
        ):
            if name in texts:
                texts[name] = texts[name].replace(f"{REPOSITORY}/", "")
    return notebook


if __name__ == "__main__":
    os.environ |= {"BACKEND": "cpu", "COMMIT": built_commit()}  # the copy shares what is built, and has no commit
    with tempfile.TemporaryDirectory() as scratch:
        nbformat.write(run(Path(scratch)), NOTEBOOK)
