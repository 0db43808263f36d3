"""The register layouts in the stored table agree with the PTX manual."""

import pytest

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
    """When transposed, rows and columns are exchanged."""
    plain, turned = (layouts.matrix_cells(table, f"ldmatrix.x4{form}") for form in ("", ".trans"))
    assert len(plain) == len(turned) == 4
    for i in range(4):
        assert plain[i][3, 5] == (14, f"r{i}.hi") and turned[i][3, 5] == (21, f"r{i}.hi")
        assert {(c, r): holder for (r, c), holder in turned[i].items()} == plain[i]


@pytest.mark.parametrize("operand", ["a", "b", "d"])
def test_a_table_that_contradicts_itself_is_refused(table: layouts.Table, operand: str) -> None:
    """Two lanes of an operand exchanged: D is no longer A B + C."""
    name = (f"{operand}.fp16", "random")
    changed = {**table, name: table[name][[1, 0, *range(2, 32)]]}
    with pytest.raises(ValueError, match=r"lane \d+, register \d of D"):
        layouts.accumulator_cells(changed)
