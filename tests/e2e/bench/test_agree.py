"""agree.py: whether two sweeps say the same."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lib.programs import REPOSITORY, RIGHT, USAGE
from tests.e2e.bench.stand_in import StandIns


def row(seqlen: int, milliseconds: float, **more: object) -> dict:
    return {"step": "step05", "batch": 4, "heads": 16, "kv_heads": 16, "seqlen": seqlen,
            "seqlen_kv": seqlen, "head_dim": 128, "dtype": "fp16", "mask": "full", "shared_kv": False,
            "samples": 10, "median_ms": milliseconds, "right": True} | more


def write(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def agree(*paths: Path) -> subprocess.CompletedProcess:
    words = [sys.executable, REPOSITORY / "plots/agree.py", *paths]
    return subprocess.run([str(word) for word in words], capture_output=True, text=True,
                          timeout=60, check=False)


def ratios(tmp_path: Path, *factors: float) -> subprocess.CompletedProcess:
    times = [1.0 + i for i in range(len(factors))]
    first = write(tmp_path / "a", [row(i + 1, time) for i, time in enumerate(times)])
    second = write(tmp_path / "b", [row(i + 1, time * factor) for i, (time, factor)
                                    in enumerate(zip(times, factors, strict=True))])
    return agree(first, second)


@pytest.mark.parametrize("middle, code", [(1.0, 0), (1.029, 0), (0.971, 0), (1.031, 1), (0.969, 1)])
def test_median_decides(tmp_path: Path, middle: float, code: int) -> None:
    """One shape far off changes nothing, in either direction."""
    done = ratios(tmp_path, middle, middle, 2.0, middle, 0.5)
    assert (done.returncode, done.stderr) == (code, "")
    assert f"median {middle:.4f}, p10 " in done.stdout
    assert ("DISAGREE" in done.stdout) == bool(code) and "may be off by 3%" in done.stdout


def test_worst_shapes_are_named(tmp_path: Path) -> None:
    done = ratios(tmp_path, 1.0, 1.01, 0.8, 1.1, 1.02, 0.97, 1.005)
    worst = done.stdout.splitlines()[-5:]
    assert [line.split()[0] for line in worst] == ["0.8000", "1.1000", "0.9700", "1.0200", "1.0100"]
    assert worst[0].endswith("step05 -b 4 -H 16 -n 3 -d 128 -t fp16 -m full")


def test_only_what_both_have_timed_is_compared(tmp_path: Path) -> None:
    first = write(tmp_path / "a", [row(1, 1), row(2, 1), row(3, 1), row(2, 5, shared_kv=True)])
    wrong = {name: value for name, value in row(3, 9).items() if name != "samples"}
    second = write(tmp_path / "b", [row(1, 1), row(2, 1), wrong, row(4, 1), row(2, 5, shared_kv=True)])
    done = agree(first, second)
    assert done.returncode == RIGHT
    assert done.stdout.startswith("3 problems in both, 1 only in the first, 1 only in the second\n")
    assert "-n 2 -d 128 -t fp16 -m full --shared-kv\n" in done.stdout


def test_sweeps_of_stand_ins(tmp_path: Path) -> None:
    programs = StandIns(tmp_path)
    for _ in range(2):
        subprocess.run([sys.executable, REPOSITORY / "plots/sweep.py", "--quick", programs.build,
                        tmp_path / "results"], capture_output=True, timeout=60, check=True)
    files = sorted((tmp_path / "results" / "h200").iterdir())
    done = agree(*files)
    assert len(files) == 2 and done.returncode == RIGHT and "agree: " in done.stdout


@pytest.mark.parametrize("text, said", [
    (None, "No such file or directory"), ("nonsense\n", "must hold the JSON rows of a sweep"),
    (json.dumps(row(1, 0)) + "\n", "must hold the JSON rows of a sweep"),
    (json.dumps(row(1, float("nan"))) + "\n", "must hold the JSON rows of a sweep"),
    ("[1]\n", "must hold the JSON rows of a sweep"),
    ("[" * 100000, "must hold the JSON rows of a sweep"),
    ('{"samples": 1}\n', "must hold the JSON rows of a sweep"),
    ("", "share 0 timed problems of 0, must share half of them, and two at least"),
    (json.dumps(row(1, 1)) + "\n",
     "share 1 timed problems of 1, must share half of them, and two at least")])
def test_bad_files_are_one_line(tmp_path: Path, text: str | None, said: str) -> None:
    good, bad = write(tmp_path / "good", [row(1, 1), row(2, 1)]), tmp_path / "bad"
    if text is not None:
        bad.write_text(text)
    done = agree(good, bad)
    assert done.returncode == USAGE and done.stdout == ""
    assert done.stderr.startswith("agree: ") and done.stderr.count("\n") == 1
    assert str(bad) in done.stderr and done.stderr.endswith(f"{said}\n")


@pytest.mark.parametrize("shared, code", [(4, USAGE), (5, RIGHT)])
def test_files_must_share_half_of_their_problems(tmp_path: Path, shared: int, code: int) -> None:
    """Of the smaller one: a quick sweep may be held to a whole one."""
    first = write(tmp_path / "a", [row(i, 1) for i in range(1, 100)])
    second = write(tmp_path / "b", [row(100 - shared + i, 1) for i in range(10)])
    done = agree(first, second)
    assert done.returncode == code
    assert ("share 4 timed problems of 10, " in done.stderr) == (code == USAGE)


def test_usage_is_told() -> None:
    done = agree()
    assert done.returncode == USAGE and "Usage: agree.py A.jsonl B.jsonl" in done.stderr


def test_stored_sweeps_of_one_commit_agree() -> None:
    seconds = sorted((REPOSITORY / "plots" / "results").glob("*/sweep_*_2.jsonl"))
    assert seconds
    for second in seconds:
        first = second.with_name(second.name.replace("_2.jsonl", ".jsonl"))
        assert agree(first, second).returncode == RIGHT
