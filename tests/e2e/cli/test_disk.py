"""Output that cannot be written: one line and no half-written file. The exit code is 2 where the
error is known before the run, else 3."""

import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lib.kinds import MASK_STEPS
from tests.lib.programs import DEVICE, Program
from tests.e2e.cli.test_bad_input import files_in, refused

OPTIONS = ("--repeat", 0, "-H", 2, "-n", 64, "-d", 64)
O_BYTES = 128 + 2 * 2 * 64 * 64


def failed(program: Program, *options: object, **more) -> str:
    done = program.run(*OPTIONS, *options, **more)
    assert done.returncode == DEVICE, done
    assert done.stderr.startswith(f"{program.name}: ") and done.stderr.count("\n") == 1
    return done.stderr


def file_size_limit(most_bytes: int) -> Callable[[], None]:
    """Replaces a full disk: every write past the limit fails, and no root is needed.

    The limit also sends SIGXFSZ, which must not end the program."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))

    return limit


# A CUDA driver writes its own files, which the limit would affect too.
limits_file_sizes = pytest.mark.cpu_only("the limit would hit the driver; the host code is one")


def test_full_standard_output(any_step: Program) -> None:
    with open("/dev/full", "w") as full:
        assert "standard output" in failed(any_step, stdout=full)


def test_full_standard_output_for_help(any_step: Program) -> None:
    for option in ("--help", "--version", "--info", "--draw-mask"):
        with open("/dev/full", "w") as full:
            done = any_step.run(option, stdout=full)
        assert done.returncode == DEVICE, option


# --- Errors before the run ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "path, cause",
    [
        ("missing/records.json", "No such file or directory"),
        (".", "Is a directory"),
        ("file/records.json", "Not a directory"),
        ("x" * 300, "File name too long"),
        ("/proc/1/records.json/x", "No such file or directory"),
    ],
)
def test_json_that_cannot_be_opened(any_step: Program, tmp_path: Path, path: str, cause: str) -> None:
    (tmp_path / "file").touch()
    line = refused(any_step, tmp_path, "-j", tmp_path / path)
    assert line == (
        f"{any_step.name}: --json {tmp_path / path}: cannot write: {cause}; "
        "must be a file that can be written or created, or -\n"
    )


@pytest.mark.parametrize(
    "directory, cause",
    [
        ("/proc/out", "No such file or directory"),  # not even root can create it
        ("missing/parent/out", "No such file or directory"),
        ("file", "Not a directory"),
        ("file/out", "Not a directory"),
    ],
)
def test_output_into_a_directory_that_cannot_be_made(
    any_step: Program, tmp_path: Path, directory: str, cause: str
) -> None:
    (tmp_path / "file").write_text("keep me")
    line = refused(any_step, tmp_path, "-o", tmp_path / directory)
    assert line == (
        f"{any_step.name}: --output {tmp_path / directory}: {cause}; "
        "must be a directory that can be written or created\n"
    )
    saved = refused(Program(MASK_STEPS[0]), tmp_path, "--save-mask", tmp_path / directory)
    assert saved == line.replace(f"{any_step.name}: --output", f"{MASK_STEPS[0]}: --save-mask")
    assert (tmp_path / "file").read_text() == "keep me"


def test_record_into_a_pipe(any_step: Program, tmp_path: Path) -> None:
    """The pipe is opened once, so its reader sees no end of file before the record."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True) as reader:
        any_step.run_right(*OPTIONS, "-j", pipe)
        assert reader.communicate(timeout=60)[0].startswith('{"step": ')


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "kill"])
def test_an_interrupted_run_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "out"
    command = [
        Program(MASK_STEPS[0]).path,
        "-n",
        "4096",
        "-H",
        "256",
        "-o",
        out,
        "--save-mask",
        out / "mask",
        "-j",
        tmp_path / "record.json",
        "-m",
        "window:99",
    ]
    with subprocess.Popen(
        map(str, command),
        stdout=subprocess.DEVNULL,  # a shell's & ignores SIGINT
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        while not (out / "mask").exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
    assert process.returncode == -number and list(tmp_path.iterdir()) == []


# --- Errors during the run ---------------------------------------------------------------------


@limits_file_sizes
@pytest.mark.parametrize("limit", [100, O_BYTES - 1])
def test_full_disk_leaves_no_half_written_file(any_step: Program, tmp_path: Path, limit: int) -> None:
    out = tmp_path / "out"
    line = failed(any_step, "-o", out, preexec_fn=file_size_limit(limit))
    assert f"{out / 'o.npy'}: cannot write: File too large" in line
    assert files_in(tmp_path) == []


@limits_file_sizes
@pytest.mark.parametrize("more", [[], ["--draw-mask"]], ids=["run", "drawn"])
def test_full_disk_leaves_no_part_of_a_mask(tmp_path: Path, more: list) -> None:
    """Neither in a new directory nor next to the files of another mask."""
    step, mask, limit = Program(MASK_STEPS[0]), tmp_path / "mask", file_size_limit(8192)
    options = ["-m", "window:20", *more, "--save-mask", mask]
    line = failed(step, *options, preexec_fn=limit)
    assert f"{mask / 'partial_block_masks.npy'}: cannot write: File too large" in line
    assert files_in(tmp_path) == []
    step.run_right(*OPTIONS, "-m", "causal", "--save-mask", mask)
    before = {path.name: path.read_bytes() for path in mask.iterdir()}
    failed(step, *options, preexec_fn=limit)
    assert {path.name: path.read_bytes() for path in mask.iterdir()} == before
