"""The pictures of the register layouts: from the stored table, and as the PTX manual has it."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.lib.programs import REPOSITORY

matplotlib = pytest.importorskip("matplotlib")
import layouts

TABLE = REPOSITORY / "tests" / "data" / "layouts_h200.txt"


def draw(table: Path, directory: Path, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, REPOSITORY / "plots" / "layouts.py", table, directory],
                          env={**os.environ, **env}, capture_output=True, text=True, timeout=120,
                          check=False)


@pytest.fixture(scope="module")
def table() -> layouts.Table:
    return layouts.read_table(TABLE)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pictures") / "new"
    done = draw(TABLE, directory)
    assert (done.returncode, done.stderr) == (0, "")
    return directory


# The manual: with g = lane / 4 and t = 2 (lane % 4), where the low half of register i lies.

def test_cells_of_a(table: layouts.Table) -> None:
    cells = layouts.a_cells(table)
    assert len(cells) == 256
    for lane in range(32):
        for i in range(4):
            row, column = lane // 4 + i % 2 * 8, lane % 4 * 2 + i // 2 * 8
            assert cells[row, column] == (lane, f"r{i}.lo")
            assert cells[row, column + 1] == (lane, f"r{i}.hi")


def test_cells_of_b(table: layouts.Table) -> None:
    cells = layouts.b_cells(table)
    assert len(cells) == 128
    for lane in range(32):
        for i in range(2):
            row, column = lane % 4 * 2 + i * 8, lane // 4
            assert cells[row, column] == (lane, f"r{i}.lo")
            assert cells[row + 1, column] == (lane, f"r{i}.hi")


def test_cells_of_c_and_d(table: layouts.Table) -> None:
    cells = layouts.accumulator_cells(table)
    assert len(cells) == 128
    for lane in range(32):
        for i in range(4):
            assert cells[lane // 4 + i // 2 * 8, lane % 4 * 2 + i % 2] == (lane, f"r{i}")


def test_cells_of_ldmatrix(table: layouts.Table) -> None:
    """Transposed: rows and columns exchanged. Lane 8 i + r gives row r of matrix i."""
    plain, turned = (layouts.matrix_cells(table, f"ldmatrix.x4{form}") for form in ("", ".trans"))
    assert len(plain) == len(turned) == 4
    for i in range(4):
        assert plain[i][3, 5] == (14, f"r{i}.hi") and turned[i][3, 5] == (21, f"r{i}.hi")
        assert {(c, r): holder for (r, c), holder in turned[i].items()} == plain[i]
        assert layouts.row_lanes(i) == list(range(8 * i, 8 * i + 8))


@pytest.mark.parametrize("operand", ["a", "b", "d"])
def test_a_table_that_contradicts_itself_is_refused(table: layouts.Table, operand: str) -> None:
    """Two lanes of an operand exchanged: D is no longer A B + C."""
    name = (f"{operand}.fp16", "random")
    changed = {**table, name: table[name][[1, 0, *range(2, 32)]]}
    with pytest.raises(ValueError, match=r"lane \d+, register \d of D"):
        layouts.accumulator_cells(changed)


def test_labels_are_in_the_svg(pictures: Path) -> None:
    """As text, that can be searched for."""
    mma = (pictures / "layouts_mma.svg").read_text()
    ldmatrix = (pictures / "layouts_ldmatrix.svg").read_text()
    assert mma.count(">T31</") == 8 + 4 + 4 and mma.count(">r3.hi</") == 32
    assert ldmatrix.count(">r0.lo</") == 2 * 32
    for lane in range(32):
        assert ldmatrix.count(f">T{lane} \N{RIGHTWARDS ARROW}</") == 2


@pytest.mark.parametrize("name", ["layouts_mma", "layouts_ldmatrix"])
def test_pictures_are_not_blank(pictures: Path, name: str) -> None:
    """Cells in a colour for each lane, and nothing behind them: dark pages stay dark."""
    picture = matplotlib.image.imread(pictures / f"{name}.png")
    height, width, channels = picture.shape
    assert width > 1500 and height > 800 and channels == 4
    opaque = picture[picture[..., 3] == 1][:, :3]
    assert 0.5 < len(opaque) / (width * height) < 0.95
    colours, counts = np.unique(np.round(opaque * 255).astype(int), axis=0, return_counts=True)
    of_cells = {tuple(np.round(np.multiply(layouts.colour_of(lane), 255)).astype(int))
                for lane in range(32)}
    common = {tuple(colour) for colour, count in zip(colours, counts, strict=True) if count > 5000}
    assert len(of_cells) == 32 and of_cells <= common
    assert picture[0, 0, 3] == 0


def test_same_table_same_bytes(pictures: Path, tmp_path: Path) -> None:
    assert draw(TABLE, tmp_path).returncode == 0
    for path in pictures.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.parametrize("content, said", [
    (None, "No such file or directory"), (b"\x7fELF\xff", "must be what tests/gpu/layouts.cu "),
    (b"", "has no ldmatrix.x4 counting, "), (b"ldmatrix.x4 counting 0 0\n", "must be what "),
    (b"ldmatrix.x4 counting 99 0 f\n", "must be what "),
    (TABLE.read_bytes().replace(b"d.fp16 random 0 0 ", b"d.fp16 random 0 0 4"), "must be what ")])
def test_file_that_is_no_table_is_one_line(tmp_path: Path, content: bytes | None,
                                           said: str) -> None:
    table = tmp_path / "table"
    if content is not None:
        table.write_bytes(content)
    done = draw(table, tmp_path / "out")
    assert (done.returncode, done.stdout) == (2, "") and not (tmp_path / "out").exists()
    assert done.stderr.startswith(f"layouts: {table}: {said}") and done.stderr.count("\n") == 1


@pytest.mark.parametrize("module", ["matplotlib", "numpy"])
def test_missing_module_is_said_in_one_line(tmp_path: Path, module: str) -> None:
    stand_in = tmp_path / "modules" / module
    stand_in.mkdir(parents=True)
    (stand_in / "__init__.py").write_text(f"raise ModuleNotFoundError(name={module!r})\n")
    done = draw(TABLE, tmp_path / "out", PYTHONPATH=str(stand_in.parent))
    assert done.returncode != 0 and done.stdout == ""
    assert done.stderr == f"layouts: Python needs {module}. Install it: make deps\n"
