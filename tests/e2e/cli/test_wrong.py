"""What a program says about a wrong answer, tested with a step that is wrong on purpose."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.e2e.cli.test_bad_input import files_in
from tests.lib.programs import DEVICE, RIGHT, USAGE, WRONG, read_records

pytestmark = pytest.mark.cpu_only("the judge is host code, the same on a GPU machine")

HEADS = 3
OPTIONS = ["-H", str(HEADS), "-n", "40", "-d", "32", "-m", "causal", "-c", "all"]


def run(program: Path, fault: str, *options: object) -> subprocess.CompletedProcess:
    return subprocess.run(
        [program, *OPTIONS, *map(str, options)],
        env={"FAULT": fault},
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )


def test_without_a_fault_it_is_right(faulty: Path) -> None:
    done = run(faulty, "none")
    assert (done.returncode, done.stderr) == (RIGHT, "") and "RIGHT" in done.stdout


def test_a_kernel_without_tiles_is_right(faulty: Path) -> None:
    done = run(faulty, "no tiles")
    assert (done.returncode, done.stderr) == (RIGHT, "") and "RIGHT" in done.stdout


# The mistake, the counts of the JSON record that are not 0, and what the text must contain.
FAULTS = [
    (
        "lost key",
        {"rows_wrong": HEADS, "lse_wrong": HEADS},
        [
            r"WRONG: 3 of 120 checked rows of O, 3 of LSE",
            r"first: O\[b=0, h=0, q=5, d=\d+\] = -?\d.*, "
            r"expected -?\d",
            r"wrong O in 3 rows: row 5 of",
            r"largest error of a row",
        ],
    ),
    (
        "unwritten row",
        {"rows_wrong": HEADS, "lse_wrong": HEADS},
        [
            r"99 values never written",
            r"first: O\[b=0, h=0, q=5, d=0\] = never written, expected -?\d",
            r"unwritten O in 3 rows: row 5 of",
        ],
    ),
    ("past the end", {}, [r"guard bytes? after O overwritten, the nearest 0 bytes away"]),
    (
        "NaN row",
        {"rows_wrong": HEADS},
        [r"96 NaN where a number belongs", r"first: O\[b=0, h=0, q=5, d=0\] = -?nan, expected"],
    ),
    (
        "unset sum",
        {"rows_wrong": HEADS, "lse_wrong": HEADS},
        [
            r"99 of them from values that were never set",
            r"first: O\[b=0, h=0, q=5, d=0\] = nan, written, "
            r"from a value that was never set, expected -?\d",
            r"first: LSE\[b=0, h=0, q=5\] = nan, written, from a value that was never set, expected",
        ],
    ),
    ("dirty workspace", {}, [r"not 0 after the pass: 2 bytes of the workspace, the first is byte 4"]),
    (
        "wrong LSE",
        {"lse_wrong": HEADS},
        [r"0 of 120 checked rows of O, 3 of LSE", r"first: LSE\[b=0, h=0, q=5\] = ", r"wrong LSE in 3 rows: row 5 of"],
    ),
]


@pytest.mark.parametrize("fault, counts, texts", FAULTS, ids=[fault for fault, _, _ in FAULTS])
def test_wrong_answer(faulty: Path, tmp_path: Path, fault: str, counts: dict, texts: list) -> None:
    path = tmp_path / "records.json"
    done = run(faulty, fault, "-j", path)
    assert done.returncode == WRONG
    assert re.search(r"^check +WRONG", done.stdout, re.MULTILINE)
    for text in texts:
        assert re.search(text, done.stderr), f"{text!r} is not in\n{done.stderr}"
    (record,) = read_records(path)
    assert record["right"] is False
    assert {name: record[name] for name in ("rows_wrong", "lse_wrong") if record[name]} == counts


def test_wrong_rows_outside_the_sample_are_found_where_they_show(faulty: Path) -> None:
    """The check looks for NaN and unwritten values in every row, whatever --check says."""
    for fault in ("NaN row", "unwritten row", "past the end"):
        assert run(faulty, fault, "-c", "rows:1").returncode == WRONG, fault


def test_failed_launch(faulty: Path, tmp_path: Path) -> None:
    done = run(faulty, "failed launch", "-o", tmp_path / "out", "-j", tmp_path / "records.json")
    assert done.returncode == DEVICE
    assert re.fullmatch(r"step99: launch: .+ \(cudaErrorLaunchFailure\)\n", done.stderr)
    assert files_in(tmp_path) == []


def test_worst_case_decides_the_exit_code(faulty: Path, tmp_path: Path) -> None:
    """Right, wrong and refused cases in one process."""
    cases = tmp_path / "cases.txt"
    cases.write_text("-n 4\n-n 40\n-n 5\n")  # only the second has a row 5
    done = run(faulty, "NaN row", "--cases", cases)
    assert done.returncode == WRONG
    assert [line.split(": ")[1] for line in done.stdout.splitlines()] == ["right", "WRONG", "right"]
    cases.write_text("-n 40\n-t bf16\n-n 4\n")
    done = run(faulty, "NaN row", "--cases", cases)
    assert done.returncode == USAGE
    verdicts = [line.split(": ")[1] for line in done.stdout.splitlines()]
    assert verdicts == ["WRONG", "refused", "right"]
