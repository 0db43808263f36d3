"""Steps built on x86-64 for Linux on arm64 are right there, and the lab works: the commands of docs/laptops.md, which
run the programs in an emulator."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.lib.programs import REPOSITORY
from tests.lib.source_tree import SourceTree

COMMANDS = re.search(
    r"^```console\n(make [^\n]*CROSS_COMPILE=.*?)^```",
    (REPOSITORY / "docs/laptops.md").read_text(),
    re.MULTILINE | re.DOTALL,
)[1]
STEPS = list(dict.fromkeys(re.findall(r"\bstep\w+", COMMANDS)))


@pytest.mark.exhaustive  # the workflow runs all tests on arm64
@pytest.mark.cpu_only("it builds for the CPU backend")
@pytest.mark.skipif(
    not (shutil.which("aarch64-linux-gnu-g++") and shutil.which("qemu-aarch64")),
    reason="needs a compiler for arm64 and qemu-aarch64, which `make deps` installs on x86-64",
)
def test_steps_built_for_arm64_are_right(tmp_path: Path) -> None:
    tree = SourceTree(tmp_path)
    for step in STEPS:
        tree.compile_only(step, 64)
    done = subprocess.run(
        ["bash", "-euc", COMMANDS], cwd=tree.root, capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    reports = re.split(r"^(?=step\d)", done.stdout, flags=re.MULTILINE)[1:]
    assert [report.split()[0] for report in reports] == STEPS
    for report in reports:
        for line in (
            r"device +CPU backend \(aarch64, .*",
            r"check +RIGHT: 512 of 512 rows .*",
            "findings   0",
            r" +\S+\.cuh?:\d+  .+",
        ):  # a source line is quoted
            assert re.search(f"^{line}$", report, re.MULTILINE), f"{line}\n{report}"
