"""`pip install .` in an environment of its own."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.lib.programs import REPOSITORY
from tests.lib.steps import step_names

CALLS = """
import sys
import numpy as np
import attention_steps
from attention_steps import magic
q = np.random.default_rng(1).standard_normal((2, 70, 64)).astype(np.float16)
o, lse = attention_steps.step(sys.argv[1])(q, q, q, mask="causal")
lab = attention_steps.step(sys.argv[1]).lab(q, q, q, mask="causal")
assert lab.right and lab.findings == [] and o.shape == q.shape
assert any(line.file.startswith("steps/") and line.source for line in lab.lines), lab
with open("mine.cu", "w") as file:
    file.write(attention_steps.step(sys.argv[1]).source)
assert (attention_steps.build("mine.cu")(q, q, q, mask="causal")[0] == o).all()
magic.cell_magic("exercise=ex00", magic._classroom("start", "ex00"))
magic.cell_magic("exercise=ex05", magic._classroom("start", "ex05"))
deadlock = magic.cell_magic("exercise=broken18", magic._classroom("start", "broken18"))
assert deadlock.lab.findings and str(attention_steps.gallery.root()) not in str(deadlock), deadlock
built = attention_steps.gallery.root() / "build/cpu"
assert len(list(built.glob("steps/*.o"))) == 0, "a step was compiled again"
"""


def test_the_version_is_that_of_the_gallery() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert project["version"] == re.search(r"^version: (\S+)$", (REPOSITORY / "CITATION.cff").read_text(), re.M)[1]


@pytest.mark.exhaustive
def test_an_installed_package_needs_no_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True)
    python = tmp_path / "env/bin/python"
    subprocess.run([python, "-m", "pip", "install", "-q", REPOSITORY], check=True, timeout=900)
    monkeypatch.delenv("ATTENTION_STEPS_BUILD")
    subprocess.run([python, "-c", CALLS, step_names()[1].removeprefix("step")], cwd=tmp_path, check=True)
