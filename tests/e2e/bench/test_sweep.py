"""A sweep from beginning to end, with stand-ins for the programs; interrupted, and gone on with."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.lib.programs import (BACKEND, NO_GPU, REPOSITORY, RIGHT, STEP_DIR, USAGE, WRONG,
                                read_rows, run_on_terminal)
from tests.lib.source_tree import without_makes_own
from tests.e2e.bench.stand_in import StandIns

import sweep_progress
from gpu_name import short_name
from run_file import end_by_signals
from sweep_grid import full_grid, identity_of, quick_grid

STEPS = [f"step0{number}" for number in range(1, 6)]
QUICK = [f"{case.step} {case.options()}" for group in quick_grid(STEPS) for case in group.cases]
NAME = "quick_0123456789ab.jsonl"
INTERRUPTED = 130


@pytest.fixture
def programs(tmp_path: Path) -> StandIns:
    return StandIns(tmp_path)


def command(programs: StandIns, *options: object) -> list[str]:
    words = [sys.executable, REPOSITORY / "plots/sweep.py", *options, programs.build,
             programs.directory / "results"]
    return [str(word) for word in words]


def sweep(programs: StandIns, *options: object, code: int = RIGHT) -> subprocess.CompletedProcess:
    done = subprocess.run(command(programs, *options), capture_output=True, text=True, timeout=100,
                          check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def results(programs: StandIns) -> dict[str, list[dict]]:
    """The rows of every file that is there."""
    folder = programs.directory / "results" / "h200"
    return {path.name: read_rows(path) for path in sorted(folder.iterdir())}


# --- All of it ------------------------------------------------------------------------------------

def test_full_sweep(programs: StandIns) -> None:
    groups = full_grid(STEPS)
    expected = [f"{case.step} {case.options()}" for group in groups for case in group.cases]
    done = sweep(programs)
    # Each once, group by group, and the steps of a group in turns.
    assert programs.cases() == expected
    (rows,) = results(programs).values()
    assert list(results(programs)) == ["sweep_0123456789ab.jsonl"]
    assert [identity_of(row) for row in rows] == [
        case.identity() for group in groups for case in group.cases]
    assert re.fullmatch(rf"sweep: 5 steps on NVIDIA H200, commit 0123456789ab: 0 of {len(rows)}, "
                        rf"about \d+ min left\nsweep: {len(rows)} rows in .*\.jsonl, \d+ s\n",
                        done.stdout)


def test_each_run_has_a_file_of_its_own(programs: StandIns) -> None:
    for _ in range(3):
        sweep(programs, "--quick")
    assert list(results(programs)) == [NAME, *(NAME.replace(".", f"_{i}.") for i in (2, 3))]
    assert programs.cases() == 3 * QUICK


def test_file_can_be_named(programs: StandIns, tmp_path: Path) -> None:
    path = tmp_path / "some" / "where.jsonl"
    sweep(programs, "--quick", "--rows", path)
    assert len(read_rows(path)) == len(QUICK)
    done = sweep(programs, "--quick", "--rows", path, code=USAGE)
    assert done.stderr == f"sweep: {path}: is complete; name another file or delete this one\n"
    for directory in (tmp_path, "/"):
        done = sweep(programs, "--quick", "--rows", directory, code=USAGE)
        assert done.stderr == f"sweep: {directory}: is a directory; must be a file, to be written\n"


# --- Interrupted ----------------------------------------------------------------------------------

@pytest.mark.parametrize("dies_at", [1, 2, 12, len(QUICK)])
@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM", "SIGINT", "SIGHUP"])
def test_interrupted_sweep_loses_and_repeats_nothing(programs: StandIns, dies_at: int,
                                                     how: str) -> None:
    programs.set(dies_at=dies_at, signal=how)
    done = sweep(programs, "--quick",
                 code=-signal.SIGKILL if how == "SIGKILL" else INTERRUPTED)
    partial = programs.directory / "results" / "h200" / f"{NAME}.partial"
    assert how == "SIGKILL" or done.stderr.endswith(
        f"sweep: interrupted; the same command goes on with {partial}\n")
    lines = partial.read_text().split("\n")
    assert len(lines) == dies_at and 0 < len(lines[-1]) <= 40  # a row that was being written
    programs.set()
    done = sweep(programs, "--quick")
    assert f": {dies_at - 1} of {len(QUICK)}, about " in done.stdout
    assert list(results(programs)) == [NAME]
    assert len(results(programs)[NAME]) == len(QUICK)
    # The case that gave half a row was begun once more; no other was.
    assert programs.cases() == [*QUICK[:dies_at], *QUICK[dies_at - 1:]]


def test_nohup_is_respected() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)}
    try:
        for own, then in ((signal.SIG_IGN, signal.SIG_IGN),
                          (signal.SIG_DFL, signal.default_int_handler)):
            signal.signal(signal.SIGHUP, own)
            end_by_signals()
            assert signal.getsignal(signal.SIGHUP) is then
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_second_run_can_be_interrupted_too(programs: StandIns) -> None:
    sweep(programs, "--quick")
    programs.set(dies_at=len(QUICK) + 5)
    sweep(programs, "--quick", code=-signal.SIGKILL)
    programs.set()
    sweep(programs, "--quick")
    assert [len(rows) for rows in results(programs).values()] == [len(QUICK)] * 2


def test_two_sweeps_do_not_write_one_file(programs: StandIns) -> None:
    """The one that came later is told so; it disturbs nothing."""
    programs.set(dies_at=3, signal="SIGCONT")  # the program stays there until its sweep ends
    with subprocess.Popen(command(programs, "--quick"), stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL) as first:
        try:
            while len(programs.cases()) < 3:
                assert first.poll() is None
                time.sleep(0.01)
            done = sweep(programs, "--quick", code=USAGE)
        finally:
            first.send_signal(signal.SIGINT)
    assert re.fullmatch(rf"sweep: \S+/{NAME}: is being written by another run\n", done.stderr)
    assert first.returncode == INTERRUPTED and len(programs.cases()) == 3
    programs.set()
    sweep(programs, "--quick")
    assert list(results(programs)) == [NAME] and len(results(programs)[NAME]) == len(QUICK)


def test_rows_that_vanish_are_missed(programs: StandIns) -> None:
    """A file that lacks some of what was measured gets no name as if it were complete."""
    (programs.build / "step04").write_text(
        f"#!{sys.executable}\nimport os, sys\n'--version' in sys.argv and "
        "sys.exit(print('step04 0123456789ab'))\nif os.path.exists(sys.argv[-1]):\n"
        "  os.remove(sys.argv[-1])\n")
    done = sweep(programs, "--quick", code=3)
    assert re.search(rf"sweep: \S+/{NAME}\.partial: \d+ of the rows that were measured are gone; ",
                     done.stderr)
    assert list(results(programs)) == [f"{NAME}.partial"]


@pytest.mark.parametrize("change, said", [
    ({"commit": "ba9876543210"}, "commit 0123456789ab, but this run has ba9876543210"),
    ({"device": "NVIDIA H100"}, "device NVIDIA H200, but this run has NVIDIA H100"),
    ({"gpu_uuid": "GPU-2"}, "gpu_uuid GPU-1, but this run has GPU-2"),
])
def test_rows_of_another_run_are_refused(programs: StandIns, tmp_path: Path, change: dict,
                                         said: str) -> None:
    path = tmp_path / "rows"
    programs.set(dies_at=3)
    sweep(programs, "--quick", "--rows", path, code=-signal.SIGKILL)
    began = programs.cases()
    programs.set(**change)
    done = sweep(programs, "--quick", "--rows", path, code=USAGE)
    assert done.stderr == (f"sweep: {path}.partial:1: {said}; name another file or delete this "
                           "one\n")
    assert programs.cases() == began and not path.exists()


NO_ROWS = ["nonsense", "[1]", "{}", '{"step": "step01"}', "", "\udcff\udcfe"]


@pytest.mark.parametrize("line", NO_ROWS)
def test_file_that_is_none_of_rows_is_refused(programs: StandIns, tmp_path: Path,
                                              line: str) -> None:
    path = tmp_path / "rows.partial"
    path.write_bytes(f"{line}\n".encode(errors="surrogateescape"))
    done = sweep(programs, "--quick", "--rows", tmp_path / "rows", code=USAGE)
    assert done.stderr == (f"sweep: {path}:1: is no row of a step; delete the file to measure "
                           "anew\n")
    assert path.stat().st_size == len(line) + 1 and programs.cases() == []


@pytest.mark.parametrize("commit, how", [("0123456789ab-dirty", "SIGTERM"), ("unknown", "SIGKILL")])
def test_code_without_a_name_is_measured_anew(programs: StandIns, commit: str, how: str) -> None:
    """It may have changed since."""
    programs.set(commit=commit, dies_at=9, signal=how)
    done = sweep(programs, "--quick", code=-9 if how == "SIGKILL" else INTERRUPTED)
    assert how == "SIGKILL" or done.stderr.endswith("interrupted; the same command begins anew\n")
    programs.set(commit=commit)
    sweep(programs, "--quick")
    assert len(results(programs)[f"quick_{commit}.jsonl"]) == len(QUICK)
    assert programs.cases() == [*QUICK[:9], *QUICK]


# --- What goes wrong ------------------------------------------------------------------------------

def test_wrong_answer_is_told(programs: StandIns) -> None:
    programs.set(verdicts={QUICK[7]: "WRONG"})
    done = sweep(programs, "--quick", code=WRONG)
    assert len(results(programs)[NAME]) == len(QUICK) == len(programs.cases())
    assert done.stderr.count("WRONG") == 1
    assert f"sweep: WRONG or not timed: {QUICK[7]}\n" in done.stderr


def test_what_a_gpu_cannot_do_is_left_out(programs: StandIns) -> None:
    programs.set(verdicts={"step04 -b 4 -H 16": "refused"})
    done = sweep(programs, "--quick")
    assert len(results(programs)[NAME]) == len(QUICK) - 2
    assert [line for line in done.stderr.splitlines() if "refused" in line] == [
        f"sweep: refused: step04 -b 4 -H 16 -n 4096 -d 128 -t fp16 -m {mask}: no room for it"
        for mask in ("full", "causal")]


def test_what_failed_is_tried_again(programs: StandIns) -> None:
    programs.set(verdicts={"step02 -b 4 -H 32 -n 4096 -d 64 -t fp16 -m causal": "failed"})
    done = sweep(programs, "--quick", code=1)
    assert "sweep: failed: step02 -b 4 -H 32" in done.stderr
    assert done.stderr.endswith(f"{NAME}.partial\n") and "not complete" in done.stderr
    programs.set()
    sweep(programs, "--quick")
    assert len(results(programs)[NAME]) == len(QUICK) == len(programs.cases()) - 1


def test_program_that_dies_is_told(programs: StandIns) -> None:
    (programs.build / "step03").write_text(
        f"#!{sys.executable}\nimport os, sys\n'--version' in sys.argv and "
        "sys.exit(print('step03 0123456789ab'))\nos.abort()\n")
    done = sweep(programs, "--quick", code=1)
    assert "sweep: failed: step03 -b 4 -H 16 -n 4096 -d 128 -t fp16 -m full: it said nothing " \
           "(exit code -6)" in done.stderr
    assert len(results(programs)[f"{NAME}.partial"]) == len(QUICK) - 6


def test_no_gpu_is_one_line(programs: StandIns) -> None:
    programs.set(code=NO_GPU, says="no GPU: no CUDA device found; make step01 BACKEND=cpu ...")
    # A program answers to --version before it looks for a GPU.
    for program in programs.build.iterdir():
        program.write_text(program.read_text().replace(
            'if act["code"]:', 'if act["code"] and "--version" not in words:'))
    done = sweep(programs, "--quick", code=NO_GPU)
    assert re.fullmatch(r"sweep: no GPU here, and times need one \(step01: no GPU: .*\)\n",
                        done.stderr)
    assert not (programs.directory / "results").exists()


def test_ceilings_that_cannot_be_kept(programs: StandIns) -> None:
    """Each row would have others."""
    programs.set(ceilings="ceilings\nnot kept   XDG_CACHE_HOME ...")
    done = sweep(programs, "--quick", code=USAGE)
    assert re.fullmatch(r"sweep: the ceilings cannot be kept, .*XDG_CACHE_HOME must .*\n",
                        done.stderr)
    assert programs.cases() == []


@pytest.mark.cpu_only("it is about programs of the CPU backend")
def test_programs_of_the_cpu_backend_are_refused(tmp_path: Path) -> None:
    words = [sys.executable, REPOSITORY / "plots/sweep.py", STEP_DIR, tmp_path / "results"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert BACKEND == "cpu" and done.returncode == USAGE
    assert done.stderr == ("sweep: step01: --ceilings: needs a GPU; the CPU backend does not know "
                           "how fast one is\n")
    assert list(tmp_path.iterdir()) == []


def test_programs_must_be_there_and_of_one_commit(programs: StandIns, tmp_path: Path) -> None:
    programs.set(commits={"step04": "old"})
    done = sweep(programs, code=USAGE)
    assert done.stderr == (f"sweep: {programs.build}: programs of several commits (step01 step02 "
                           "step03 step05 of 0123456789ab; step04 of old); make all BACKEND=cuda\n")
    for program in programs.build.iterdir():
        program.unlink()
    done = sweep(programs, code=USAGE)
    assert done.stderr == f"sweep: {programs.build}: has no programs; make all BACKEND=cuda\n"


def test_program_without_a_commit_is_refused(programs: StandIns) -> None:
    (programs.build / "step02").write_text("#!/bin/sh\n")
    done = sweep(programs, code=3)
    assert done.stderr == (f"sweep: {programs.build}/step02 --version: must print its name and "
                           "commit, not: it said nothing\n")


@pytest.mark.parametrize("row", ["", "[1]", '{"device": 1}', None])
def test_program_without_a_row_of_ceilings_is_refused(programs: StandIns, row: str | None) -> None:
    write_row = "" if row is None else f"*--ceilings*) echo '{row}' > $3;; "
    (programs.build / "step01").write_text(
        f"#!/bin/sh\ncase $* in {write_row}--version) echo step01 0123456789ab;; esac\n")
    said = f"{programs.build}/step01 --ceilings --json FILE: wrote no row of ceilings\n"
    assert sweep(programs, code=3).stderr == f"sweep: {said}"
    done = ceilings(programs)
    assert (done.returncode, done.stderr) == (3, f"ceilings: {said}")
    assert not (programs.directory / "results").exists()


def ceilings(programs: StandIns) -> subprocess.CompletedProcess:
    words = [sys.executable, REPOSITORY / "plots/ceilings.py", programs.build / "step01",
             programs.directory / "results"]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


def test_ceilings_are_added_to_those_that_are_there(programs: StandIns) -> None:
    assert [ceilings(programs).returncode for _ in range(2)] == [0, 0]
    (rows,) = results(programs).values()
    assert [row["ceiling_mma_tflops"] for row in rows] == [646.0, 646.0]
    (programs.directory / "results/h200/ceilings.jsonl").unlink()
    (programs.directory / "results/h200/ceilings.jsonl").mkdir()
    done = ceilings(programs)
    assert done.returncode == 3
    assert re.fullmatch(r"ceilings: \S+/ceilings\.jsonl: Is a directory\n", done.stderr)


def test_results_that_cannot_be_written(programs: StandIns) -> None:
    (programs.directory / "results").write_text("a file")
    done = sweep(programs, code=3)
    assert re.fullmatch(r"sweep: .*results.*: .*\n", done.stderr)


@pytest.mark.parametrize("target", ["sweep", "ceilings"])
def test_make_wants_a_gpu(target: str) -> None:
    done = subprocess.run(["make", target, "BACKEND=cpu"], cwd=REPOSITORY, env=without_makes_own(),
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0 and done.stdout == ""
    assert done.stderr.startswith(
        f"make {target}: times need a GPU, and this is BACKEND=cpu; BACKEND=cuda, where there is "
        "one\nmake: *** ")


# --- How long it will take ------------------------------------------------------------------------

def test_log_has_a_line_for_each_group(programs: StandIns) -> None:
    done = sweep(programs, "--quick")
    lines = done.stderr.splitlines()
    assert len(lines) == len(quick_grid(STEPS)) and "\r" not in done.stderr
    for line, group in zip(lines, quick_grid(STEPS), strict=True):
        assert re.fullmatch(rf"{group.name}: \d+ of {len(QUICK)}, about \d+ (s|min) left", line)
    assert lines[-1].endswith(f"{len(QUICK)} of {len(QUICK)}, about 0 s left")


def test_bar_on_a_terminal(programs: StandIns) -> None:
    code, received = run_on_terminal(command(programs, "--quick"))
    assert code == RIGHT
    bars = re.findall(r"\r\[(#* *)\] (\d+) of (\d+), about \d+ s left, step0\d [^\r]*", received)
    assert [int(done) for _, done, _ in bars][-1] == len(QUICK) <= len(bars)
    for bar, done, total in bars:
        assert int(total) == len(QUICK) and len(bar) == 24
        assert bar.count("#") == 24 * int(done) // len(QUICK)
    assert received.endswith("\r" + 79 * " " + "\r")


def test_estimate_is_of_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow steps are not taken for quick ones; those not yet seen, for the mean."""
    clock = [0.0]
    monkeypatch.setattr(sweep_progress.time, "monotonic", lambda: clock[0])
    progress = sweep_progress.Progress(["a"] * 4 + ["b"] * 3 + ["c"], done=2)
    assert progress.seconds_left() == pytest.approx(8 * sweep_progress.FIRST_GUESS_S)
    for step, seconds in (("a", 1), ("a", 3), ("b", 8)):
        clock[0] += seconds
        progress.case_done(step, "")
    assert progress.seconds_left() == pytest.approx(2 * 2 + 2 * 8 + 1 * 4)
    assert progress.state() == "5 of 10, about 24 s left" and progress.elapsed() == "12 s"
    assert sweep_progress.in_words(400) == "7 min"


# --- Names ----------------------------------------------------------------------------------------

@pytest.mark.parametrize("device, name", [
    ("NVIDIA H200", "h200"), ("NVIDIA GeForce RTX 4090", "rtx_4090"), ("Tesla T4", "t4"),
    ("NVIDIA A100-SXM4-80GB", "a100_sxm4_80gb"), ("NVIDIA", "nvidia"), ("../..", "unknown")])
def test_short_name_of_a_gpu(device: str, name: str) -> None:
    assert short_name(device) == name


def test_rows_of_stand_ins_are_like_rows(programs: StandIns) -> None:
    """Fields that a sweep looks at are those of a real row."""
    sweep(programs, "--quick")
    row = results(programs)[NAME][-1]
    stored = [json.loads(line) for file in (REPOSITORY / "plots/results").glob("*/sweep_*.jsonl")
              for line in file.read_text().splitlines()]
    (like, *_) = [real for real in stored if real.get("step") == "step05" and real.get("driver")
                  and real.get("samples")]
    assert set(row) <= set(like)
