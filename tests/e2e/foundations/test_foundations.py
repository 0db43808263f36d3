"""The programs of chapter 0: right for every size, in every order of threads, without a finding of the lab."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.lib.programs import BACKEND, REPOSITORY, RIGHT, STEP_DIR, USAGE, WRONG, read_records
from tests.lib.source_tree import SourceTree

SOURCES = sorted((REPOSITORY / "steps/foundations").glob("f*_*.cu"))
NAMES = [source.name.split("_")[0] for source in SOURCES]
LATER = NAMES[1:]  # the first one has no options but -n
MATRICES = [source.name.split("_")[0] for source in SOURCES if "N x N" in source.read_text()]
SIZES = [1, 2, 33, 129]
ELEMENTS = [4097, 70001]
MOST_LINES = 220
LONGER = {"f12": 240}  # it declares the tensors of a whole layer


ONCE = ["--repeat", 1] if BACKEND == "cuda" else []  # the CPU backend states no times


def run(name: str, *options: object, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [STEP_DIR / name, *map(str, options)],
        env={**os.environ, **environment},
        check=False,
        text=True,
        capture_output=True,
    )


@pytest.mark.parametrize("n", SIZES + ELEMENTS)
@pytest.mark.parametrize("name", NAMES)
def test_every_stage_is_right(name: str, n: int) -> None:
    if name in MATRICES and n in ELEMENTS:
        pytest.skip("a side that takes long")
    done = run(name, "-n", n, *(ONCE if name in LATER else []))
    assert done.returncode == RIGHT, done.stdout + done.stderr


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", LATER)
def test_large_and_random_sizes(name: str) -> None:
    sizes = [997, 1000] if name in MATRICES else [999_983, 1_000_000]
    for n in [*sizes, *(pow(7, i, 1000 if name in MATRICES else 99_991) for i in range(2, 12))]:
        assert run(name, "-n", n, *ONCE).returncode == RIGHT, n


@pytest.mark.cpu_only("a GPU chooses its own order")
@pytest.mark.parametrize("order", ["reverse", "random:5"])
@pytest.mark.parametrize("name", LATER)
def test_any_order_of_threads(name: str, order: str) -> None:
    n = 70 if name in MATRICES else 5001
    done = run(name, "-n", n, SIMT_ORDER=order, SIMT_THREADS="1" if order == "reverse" else "2")
    assert done.returncode == RIGHT, done.stdout


@pytest.mark.cpu_only("the lab is part of the CPU backend")
@pytest.mark.parametrize("name", LATER)
def test_the_lab_finds_nothing(name: str) -> None:
    done = run(name, "-n", 70 if name in MATRICES else 5001, "--report")
    assert done.returncode == RIGHT and "findings   0\n" in done.stdout and "unknown line" not in done.stdout


@pytest.mark.cpu_only("the lab is part of the CPU backend")
def test_a_sum_of_floats_by_several_blocks_has_a_note(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    done = run("f04", "-n", 5000, f"--report=blocks,json:{path}")
    (note,) = [record for record in read_records(path) if record["record"] == "note"]
    assert "the sum depends on the order" in note["what"] and note["kernel"] == "atomic_kernel"
    assert done.returncode == RIGHT and f"note       {note['what']}\n           at {note['place']}" in done.stdout


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", ["0", "-1", "x", "99999999999"])
def test_bad_sizes(name: str, n: str) -> None:
    done = run(name, "-n", n)
    assert done.returncode == USAGE and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1


def test_other_bad_options() -> None:
    for options in ["--stage=none"], ["-x"], ["7"], ["--report=none"], ["--json", "/nowhere/x"]:
        done = run("f02", *options)
        assert done.returncode == USAGE and len(done.stderr.splitlines()) == 1, done.stderr


def test_json_has_a_line_for_each_stage(tmp_path: Path) -> None:
    done = run("f02", "-n", 100, "--json", "-")
    stages = [line.split()[0] for line in done.stderr.splitlines()[1:]]
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [record["stage"] for record in records] == stages and len(stages) > 1
    assert all(record["right"] and record["n"] == 100 for record in records)
    assert run("f02", "--stage", stages[1], "--json", tmp_path / "one").returncode == RIGHT
    assert json.loads((tmp_path / "one").read_text())["stage"] == stages[1]


@pytest.mark.cpu_only("it compiles for the CPU backend")
def test_a_wrong_stage_is_found(tmp_path: Path) -> None:
    """In a copy of f02 that leaves one particle where it was."""
    tree = SourceTree(tmp_path, built="cpu")
    tree.replace("steps/foundations/f02_coalescing.cu", "if (i < n) move_in_arrays", "if (i < n - 1) move_in_arrays")
    assert tree.make("f02").returncode == 0
    done = subprocess.run([tree.root / "f02", "-n", "100"], check=False, text=True, stdout=subprocess.PIPE)
    assert done.returncode == WRONG
    assert [line.split()[1] for line in done.stdout.splitlines()[1:]] == ["right", "WRONG", "right", "right", "right"]


def test_programs_are_short() -> None:
    assert len(SOURCES[0].read_text().splitlines()) <= 60
    for source in SOURCES[1:]:
        assert len(source.read_text().splitlines()) <= LONGER.get(source.name.split("_")[0], MOST_LINES), source.name
