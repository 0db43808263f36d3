"""The CPU backend alone, as `make simt` builds it, compiles a program outside of the repository: that of its README."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.lib.programs import REPOSITORY, RIGHT, WRONG

pytestmark = pytest.mark.cpu_only("it is the CPU backend")

README = (REPOSITORY / "common/simt/README.md").read_text()
SOURCE = re.search(r"^```cuda\n(.*?)^```", README, re.MULTILINE | re.DOTALL)[1]


def shown(command: str) -> list[str]:
    """The lines that the README shows of a command's output."""
    return re.search(rf"^\$ \S*{re.escape(command)}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)[1].splitlines()


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    return shutil.copytree(REPOSITORY / "build/simt", tmp_path / "a kit")


def compile_and_run(kit: Path, source: str, *options: str) -> subprocess.CompletedProcess:
    folder = kit.parent
    (folder / "sum.cu").write_text(source)
    subprocess.run(
        [kit / "simtcc", *options, "-Wall", "-Wextra", "-Werror", "-o", "sum", "sum.cu"], cwd=folder, check=True
    )
    return subprocess.run(
        [folder / "sum"], cwd=folder, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def test_the_program_of_the_readme_runs(kit: Path) -> None:
    done = compile_and_run(kit, SOURCE)
    assert done.returncode == RIGHT
    assert done.stdout.splitlines() == shown("simtcc -o sum sum.cu && ./sum")


def test_the_lab_counts_its_work_and_finds_a_missing_barrier(kit: Path) -> None:
    done = compile_and_run(kit, SOURCE, "--lab")
    assert done.returncode == RIGHT
    assert done.stdout.splitlines() == shown("simtcc --lab -o sum sum.cu && ./sum")
    done = compile_and_run(kit, re.sub(r".*__syncthreads.*\n", "", SOURCE), "--lab")
    assert done.returncode == WRONG
    assert re.search(r"^```console\n(finding .*?)^```", README, re.MULTILINE | re.DOTALL)[1] in done.stdout
