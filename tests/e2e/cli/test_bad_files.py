"""Bad .npy files: one line with the file and what is wrong; exit code 2; nothing is written."""

from pathlib import Path

import numpy as np
import pytest

from tests.lib.programs import Program
from tests.e2e.cli.test_bad_input import refused

SHAPE = (1, 2, 5, 32)
GOOD = np.ones(SHAPE, dtype="<f2")
GOOD_HEADER = "{'descr': '<f2', 'fortran_order': False, 'shape': (1, 2, 5, 32), }"


def npy(header: str, data: bytes) -> bytes:
    """The bytes of an .npy file with any header."""
    text = header.encode("latin1").ljust(117) + b"\n"
    return b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text + data


def of(shape: str = "(1, 2, 5, 32)", descr: str = "'<f2'", order: str = "False", data: bytes = GOOD.tobytes()) -> bytes:
    return npy(f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}", data)


GOOD_BYTES = npy(GOOD_HEADER, GOOD.tobytes())

FP16_TYPES = "expected <f2, <f4 or <f8, or <u2 with --dtype bf16\n"

# A few of the cases in tests/unit/io: what q.npy holds, and what the message must say.
BAD_FILES = {
    "text": (b"1 2 3 4\n", ["not a .npy file"]),
    "a byte short": (GOOD_BYTES[:-1], ["truncated", "639 bytes", "640"]),
    "Fortran": (of(order="True"), ["Fortran", "C order"]),
    "int32": (of(descr="'<i4'", data=bytes(1280)), ["'<i4'", FP16_TYPES]),
    "dimension 0": (of("(1, 2, 0, 32)", data=b""), ["dimension 2 is 0", "from 1"]),
    "3 dimensions": (of("(2, 5, 32)"), ["3 dimensions", "4", "[B, H, N, D]"]),
}


def directory_with(path: Path, **files: bytes) -> Path:
    """q.npy, k.npy and v.npy; valid ones unless given here."""
    path.mkdir()
    for name in "qkv":
        (path / f"{name}.npy").write_bytes(files.get(name, GOOD_BYTES))
    return path


def test_good_file_is_good(any_step: Program, tmp_path: Path) -> None:
    any_step.run_right("--input", directory_with(tmp_path / "in"))


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files(any_step: Program, tmp_path: Path, name: str) -> None:
    content, fragments = BAD_FILES[name]
    directory = directory_with(tmp_path / "in", q=content)
    line = refused(any_step, tmp_path, "--input", directory)
    assert str(directory / "q.npy") in line
    assert [part for part in fragments if part not in line] == [], line


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_missing_file(any_step: Program, tmp_path: Path, name: str) -> None:
    directory = directory_with(tmp_path / "in")
    (directory / f"{name}.npy").unlink()
    line = refused(any_step, tmp_path, "--input", directory)
    assert f"{directory / name}.npy: cannot open: No such file or directory" in line


def test_input_that_is_no_directory(any_step: Program, tmp_path: Path) -> None:
    path = tmp_path / "q.npy"
    path.write_bytes(GOOD_BYTES)
    assert str(path) in refused(any_step, tmp_path, "--input", path)
    missing = tmp_path / "missing"
    assert f"--input {missing}" in refused(any_step, tmp_path, "--input", missing)


@pytest.mark.parametrize(
    "q, k, v, fragments",
    [
        ((1, 2, 5, 32), (2, 2, 5, 32), (2, 2, 5, 32), ["k.npy", "dimension 0 is 2", "1 in q.npy"]),
        ((1, 2, 5, 32), (1, 2, 5, 64), (1, 2, 5, 64), ["k.npy", "dimension 3 is 64", "32 in q.npy"]),
        ((1, 2, 5, 32), (1, 2, 5, 32), (1, 1, 5, 32), ["v.npy", "dimension 1 is 1", "2 in k.npy"]),
        ((1, 2, 5, 32), (1, 2, 6, 32), (1, 2, 5, 32), ["v.npy", "dimension 2 is 5", "6 in k.npy"]),
        ((1, 2, 5, 32), (1, 2, 6, 32), (1, 2, 6, 64), ["v.npy", "dimension 3 is 64", "32 in k.npy"]),
        ((1, 2, 5, 32), (1, 2, 6, 32), (2, 2, 6, 32), ["v.npy", "dimension 0 is 2", "1 in k.npy"]),
        ((1, 4, 5, 32), (1, 3, 5, 32), (1, 3, 5, 32), ["k.npy", "3 heads", "divide", "4 of q.npy"]),
        ((1, 1, 5, 32), (1, 2, 5, 32), (1, 2, 5, 32), ["k.npy", "2 heads", "divide", "1 of q.npy"]),
        ((1, 1, 2, 300), (1, 1, 2, 300), (1, 1, 2, 300), [": --head-dim 300: must be from 1 to 256"]),
    ],
)
def test_shapes_that_cannot_be_used(
    any_step: Program, tmp_path: Path, q: tuple, k: tuple, v: tuple, fragments: list
) -> None:
    directory = tmp_path / "in"
    directory.mkdir()
    for name, shape in (("q", q), ("k", k), ("v", v)):
        np.save(directory / f"{name}.npy", np.zeros(shape, dtype="<f2"))
    line = refused(any_step, tmp_path, "--input", directory)
    assert str(directory) in line
    assert [part for part in fragments if part not in line] == [], line


@pytest.mark.parametrize("dtype, value", [("<f4", 1e6), ("<f8", -1e300)])
def test_numbers_beyond_fp16(any_step: Program, tmp_path: Path, dtype: str, value: float) -> None:
    """They are reported when they are read; an infinity in the file is not."""
    directory = directory_with(tmp_path / "in")
    k = np.zeros((1, 2, 5, 32), dtype)
    k[0, 1, 3, 4] = np.inf
    np.save(directory / "k.npy", k)
    any_step.run_right("--input", directory)
    k[0, 1, 4, 31] = value
    np.save(directory / "k.npy", k)
    line = refused(any_step, tmp_path, "--input", directory)
    assert f"{directory / 'k.npy'}: element [0, 1, 4, 31] is {value:g}, beyond" in line
    assert line.endswith("scale the tensor, or use --dtype bf16\n")
    if dtype == "<f4":
        any_step.run_right("--input", directory, "--dtype", "bf16")
