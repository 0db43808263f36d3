"""The progress line on stderr while kernels run and rows are checked: it is shown on a terminal
only and erased at the end; and the time limit."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.lib.programs import DEVICE, RIGHT, WRONG, Program, run_on_terminal

# A run of several seconds on one core; the line appears after one second.
SLOW = ["-r", "0", "-b", "1", "-H", "4", "-n", "3072", "-d", "128", "-c", "all"]
ONE_CORE = {"OMP_NUM_THREADS": "1"}
LINE = re.compile(r"\r(running|checking): (\d+) of \d+ (?:blocks|rows), (\d+) s\x1b\[K")
GONE = "\r\x1b[K"


@pytest.mark.cpu_only("the step that is wrong on purpose is built for the CPU backend")
def test_line_is_erased_before_a_failure_is_reported(faulty: Path) -> None:
    code, text = run_on_terminal([faulty, *SLOW], {**ONE_CORE, "FAULT": "no launch"})
    lines, rest = text.split("WRONG", 1)
    assert code == WRONG and lines.endswith(GONE) and not LINE.search(rest)
    done = [int(match[2]) for match in LINE.finditer(lines) if match[1] == "checking"]
    assert done and done == sorted(done)
    assert LINE.sub("", lines).replace(GONE, "") == ""


@pytest.mark.cpu_only("the step that is wrong on purpose is built for the CPU backend")
def test_no_line_in_a_pipe(faulty: Path) -> None:
    env = {**os.environ, **ONE_CORE, "FAULT": "no launch"}
    done = subprocess.run([faulty, *SLOW, "-H", "2"], env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == WRONG
    assert done.stderr.startswith("WRONG") and "\r" not in done.stderr


@pytest.mark.cpu_only("a GPU build refuses --time-limit")
def test_time_limit(any_step: Program, tmp_path: Path) -> None:
    """The header is printed, the kernel is stopped, and files that the run created are removed."""
    done = any_step.run("-n", 16384, "--time-limit", 0.5, "-o", tmp_path / "out")
    assert done.returncode == DEVICE and "Nq=16384" in done.stdout and "0.5" in done.stderr
    assert not (tmp_path / "out").exists()
    assert any_step.run_right("-n", 8, "--time-limit", 60).returncode == RIGHT
