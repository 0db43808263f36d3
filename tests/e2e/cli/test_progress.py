"""The bar on stderr while the reference is computed: seen on a terminal, nowhere else, and gone at
the end."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.lib.programs import RIGHT, WRONG, Program, run_on_terminal

# A check of some seconds on one core, far above the one second after which the bar comes.
SLOW_CHECK = ["-r", "0", "-b", "1", "-H", "4", "-n", "4096", "-d", "128", "-c", "all"]
ONE_CORE = {"OMP_NUM_THREADS": "1"}
BAR = re.compile(r"\rchecking \[(#* *)\] (\d+) of 16384 rows, \d+ s left *")


def after_bars(text: str) -> str:
    """What remains in sight, the bars checked and taken away."""
    bars = list(BAR.finditer(text))
    assert bars and bars[0].start() == 0, text
    rows = [int(bar[2]) for bar in bars]
    assert rows == sorted(set(rows)) and len(rows) < 200
    for bar in bars:
        assert len(bar[1]) == 24 and bar[1].count("#") == 24 * int(bar[2]) // 16384
        assert len(bar[0]) <= 80  # with the carriage return
    wiped = re.fullmatch(r"\r( +)\r(.*)", text[bars[-1].end():], re.DOTALL)
    assert wiped and len(wiped[1]) == len(bars[-1][0]) - 1, text
    return wiped[2]


def test_bar_on_a_terminal() -> None:
    code, text = run_on_terminal([Program("step02").path, *SLOW_CHECK], ONE_CORE)
    assert (code, after_bars(text)) == (RIGHT, "")


@pytest.mark.cpu_only("the step that is wrong on purpose is built for the CPU backend")
def test_bar_is_gone_before_a_failure_is_told(faulty: Path) -> None:
    code, text = run_on_terminal([faulty, *SLOW_CHECK], {**ONE_CORE, "FAULT": "no launch"})
    assert code == WRONG and after_bars(text).startswith("WRONG")


@pytest.mark.cpu_only("the step that is wrong on purpose is built for the CPU backend")
def test_no_bar_in_a_pipe(faulty: Path) -> None:
    env = {**os.environ, **ONE_CORE, "FAULT": "no launch"}
    done = subprocess.run([faulty, *SLOW_CHECK], env=env, capture_output=True, text=True,
                          timeout=60, check=False)
    assert done.returncode == WRONG
    assert done.stderr.startswith("WRONG") and "\r" not in done.stderr
