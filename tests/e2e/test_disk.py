"""Output that cannot be written: one line, exit code 3, and no half-written file."""

import resource
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from programs import DEVICE, Program, read_rows

OPTIONS = ("--repeat", 0, "-H", 2, "-n", 64, "-d", 64)
O_BYTES, LSE_BYTES = 128 + 2 * 2 * 64 * 64, 128 + 4 * 2 * 64


def failed(program: Program, *options: object, **more) -> str:
    done = program.run(*OPTIONS, *options, **more)
    assert done.returncode == DEVICE, done
    assert done.stderr.startswith(f"{program.name}: ") and done.stderr.count("\n") == 1
    return done.stderr


def file_size_limit(most_bytes: int) -> Callable[[], None]:
    """Stands in for a full disk: every write past the limit fails, no root needed."""
    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # else it would end the program
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
    return limit


# A CUDA driver writes files of its own, which the limit would hit too.
limits_file_sizes = pytest.mark.cpu_only("the limit would hit the driver; the host code is one")


def test_full_device_for_json(any_step: Program) -> None:
    assert "/dev/full: cannot write: No space left on device" in failed(any_step, "-j", "/dev/full")


def test_full_standard_output(any_step: Program) -> None:
    with open("/dev/full", "w") as full:
        assert "standard output" in failed(any_step, stdout=full)


def test_full_standard_output_for_json(any_step: Program) -> None:
    with open("/dev/full", "w") as full:
        failed(any_step, "-j", "-", stdout=full)


def test_full_standard_output_for_help(any_step: Program) -> None:
    for option in ("--help", "--version", "--info", "--draw-mask"):
        with open("/dev/full", "w") as full:
            done = any_step.run(option, stdout=full)
        assert done.returncode == DEVICE, option


@pytest.mark.parametrize("path", ["missing/rows.json", "."])
def test_json_that_cannot_be_opened(any_step: Program, tmp_path: Path, path: str) -> None:
    assert f"{tmp_path / path}: cannot write" in failed(any_step, "-j", tmp_path / path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("directory", ["/proc/out", "missing/parent/out"])
def test_output_into_a_directory_that_cannot_be_made(any_step: Program, tmp_path: Path,
                                                     directory: str) -> None:
    """Nobody, not even root, can create a directory in /proc."""
    line = failed(any_step, "-o", directory, "-j", tmp_path / "rows.json", cwd=tmp_path)
    assert f"--output {directory}: cannot create it" in line
    assert list(tmp_path.iterdir()) == []


def test_output_into_a_file(any_step: Program, tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("keep me")
    assert str(path) in failed(any_step, "-o", path)
    assert path.read_text() == "keep me"


def test_output_over_a_directory(any_step: Program, tmp_path: Path) -> None:
    (tmp_path / "o.npy").mkdir()
    assert f"{tmp_path / 'o.npy'}: cannot write" in failed(any_step, "-o", tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".tmp"]


@limits_file_sizes
@pytest.mark.parametrize("limit, broken", [(100, "lse.npy"), (LSE_BYTES + 10, "o.npy"),
                                           (O_BYTES - 1, "o.npy")])
def test_full_disk_leaves_no_half_written_file(any_step: Program, tmp_path: Path, limit: int,
                                               broken: str) -> None:
    out = tmp_path / "out"
    line = failed(any_step, "-o", out, preexec_fn=file_size_limit(limit))
    assert f"{out / broken}: cannot write: File too large" in line
    left = {path.name: path.stat().st_size for path in out.iterdir()}
    assert left == ({} if broken == "lse.npy" else {"lse.npy": LSE_BYTES})


@limits_file_sizes
def test_full_disk_keeps_the_files_that_were_there(any_step: Program, tmp_path: Path) -> None:
    out = tmp_path / "out"
    any_step.run_right(*OPTIONS, "-o", out)
    before = (out / "o.npy").read_bytes()
    assert len(before) == O_BYTES
    failed(any_step, "-o", out, "-s", 2, preexec_fn=file_size_limit(O_BYTES - 1))
    assert (out / "o.npy").read_bytes() == before
    assert sorted(path.name for path in out.iterdir()) == ["lse.npy", "o.npy"]


@limits_file_sizes
def test_just_enough_room(any_step: Program, tmp_path: Path) -> None:
    """The limit of the tests above is where they say it is."""
    any_step.run_right(*OPTIONS, "-o", tmp_path / "out", preexec_fn=file_size_limit(O_BYTES))
    assert np.load(tmp_path / "out" / "o.npy").shape == (1, 2, 64, 64)


@limits_file_sizes
def test_full_disk_takes_half_a_json_row_back(any_step: Program, tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    any_step.run_right(*OPTIONS, "-j", path)
    before = path.read_text()
    line = failed(any_step, "-j", path, preexec_fn=file_size_limit(len(before) + 50))
    assert f"{path}: cannot write: File too large" in line
    assert path.read_text() == before and len(read_rows(path)) == 1
