"""The pictures of the register layouts, drawn from the stored table, agree with the PTX manual."""

import sys
from pathlib import Path

import pytest
from matplotlib import image

from plots.tools import layouts
from tests.lib.programs import REPOSITORY

TABLE = REPOSITORY / "tests" / "data" / "layouts_h200.txt"


@pytest.fixture(scope="module")
def table() -> layouts.Table:
    return layouts.read_table(TABLE)


# From the manual: with g = lane / 4 and t = 2 (lane % 4), the place of the low half of register i.

def test_cells_of_operands(table: layouts.Table) -> None:
    a, b, d = (cells(table) for cells in (layouts.a_cells, layouts.b_cells,
                                          layouts.accumulator_cells))
    assert (len(a), len(b), len(d)) == (256, 128, 128)
    for lane in range(32):
        row, column = lane // 4, lane % 4 * 2
        for i in range(4):
            at = row + i % 2 * 8, column + i // 2 * 8
            assert a[at] == (lane, f"r{i}.lo") and a[at[0], at[1] + 1] == (lane, f"r{i}.hi")
            assert d[row + i // 2 * 8, column + i % 2] == (lane, f"r{i}")
        for i in range(2):
            assert b[column + i * 8, row] == (lane, f"r{i}.lo")
            assert b[column + i * 8 + 1, row] == (lane, f"r{i}.hi")


def test_cells_of_ldmatrix(table: layouts.Table) -> None:
    """When transposed, rows and columns are exchanged. Lane 8 i + r gives row r of matrix i."""
    plain, turned = (layouts.matrix_cells(table, f"ldmatrix.x4{form}") for form in ("", ".trans"))
    assert len(plain) == len(turned) == 4
    for i in range(4):
        assert plain[i][3, 5] == (14, f"r{i}.hi") and turned[i][3, 5] == (21, f"r{i}.hi")
        assert {(c, r): holder for (r, c), holder in turned[i].items()} == plain[i]
        assert list(layouts.row_lanes(i)) == list(range(8 * i, 8 * i + 8))


@pytest.mark.parametrize("operand", ["a", "b", "d"])
def test_a_table_that_contradicts_itself_is_refused(table: layouts.Table, operand: str) -> None:
    """Two lanes of an operand exchanged: D is no longer A B + C."""
    name = (f"{operand}.fp16", "random")
    changed = {**table, name: table[name][[1, 0, *range(2, 32)]]}
    with pytest.raises(ValueError, match=r"lane \d+, register \d of D"):
        layouts.accumulator_cells(changed)


def test_pictures_have_every_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["", str(TABLE), str(tmp_path)])
    assert layouts.main() == 0
    mma = (tmp_path / "layouts_mma.svg").read_text()
    ldmatrix = (tmp_path / "layouts_ldmatrix.svg").read_text()
    assert mma.count(">T31</") == 8 + 4 + 4 and mma.count(">r3.hi</") == 32
    assert ldmatrix.count(">r0.lo</") == 2 * 32
    for lane in range(32):
        assert ldmatrix.count(f">T{lane} \N{RIGHTWARDS ARROW}</") == 2
    for name in ("layouts_mma", "layouts_ldmatrix"):
        picture = image.imread(tmp_path / f"{name}.png")
        assert 0.5 < (picture[..., 3] == 1).mean() < 0.95 and picture[0, 0, 3] == 0
