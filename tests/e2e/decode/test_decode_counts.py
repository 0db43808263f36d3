"""What the lab counts of decode steps: no error of any kind, no bank conflict, no more sectors than
the table beside the step says."""

from pathlib import Path

import pytest

from tests.lib.limits import exceeded
from tests.lib.programs import BACKEND, Program, read_records

CASES = [
    "-d 64 -k 500 -H 4 -G 2",
    "-d 128 -k 700 -H 8 -G 1 --layout bnhd",
    "-d 256 -k 300 -H 2 -G 1",
    "-d 128 -b 2 -n 5 --lengths 3,400 -H 6 -G 2 -m window:70",
    "-d 64 -b 4 --lengths 0,1,64,257 -H 5 -G 1 -t bf16",
]


@pytest.mark.skipif(BACKEND != "cpu", reason="the lab is part of the CPU backend")
@pytest.mark.parametrize("options", CASES)
def test_nothing_is_wrong_and_nothing_exceeds_the_limits(step: Program, options: str, tmp_path: Path) -> None:
    if step.facts["kv_dtypes"] == ["e4m3"]:
        options += " --kv-dtype e4m3"
    if "-d 256" in options and 256 not in step.facts["head_dims"]:
        pytest.skip("does not take D = 256")
    step.run_right(*options.split(), "--report", "--json", tmp_path / "record")
    (record,) = read_records(tmp_path / "record")
    assert record["lab_findings"] == 0
    assert exceeded(record) == []
