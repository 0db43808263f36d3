"""The options, files and records of a backward step, of which most code is shared with forward steps."""

import numpy as np
import pytest

from tests.lib.gradients import NAMES, draw, solve, write
from tests.lib.problem import Problem
from tests.lib.programs import DEVICE, USAGE, WRONG, Program, read_records

P = Problem(heads=4, kv_heads=2, seqlen=10, seqlen_kv=12)


def refused(one: Program, *options: object) -> str:
    """The one line that the program writes."""
    done = one.run(*options)
    assert done.returncode == USAGE and done.stderr.count("\n") == 1
    return done.stderr


def test_the_record_has_errors_of_each_gradient(step: Program, tmp_path) -> None:
    _, record = solve(step, tmp_path, "-b", 2, "-H", 4, "-G", 2, "-n", 20, "-k", 30, "-m", "causal")
    rows = {"dq": 2 * 4 * 20, "dk": 2 * 2 * 30, "dv": 2 * 2 * 30}
    for name in NAMES:
        assert record[f"{name}_rows_checked"] == rows[name] and record[f"{name}_rows_wrong"] == 0
        assert 0 < record[f"{name}_mean_error"] <= record[f"{name}_max_error"]
        assert record[f"{name}_max_error_share"] <= 1
    worst = max(NAMES, key=lambda name: record[f"{name}_max_error_share"])
    for field in ("max_error", "mean_error", "allowed_error", "max_error_share"):
        assert record[field] == record[f"{worst}_{field}"]
    assert record["rows"] == record["rows_checked"] == sum(rows.values())
    assert record["flops"] == pytest.approx(10 * record["head_dim"] * 2 * 4 * sum(range(11, 31)))


def test_a_forward_step_has_no_errors_of_gradients(any_step: Program, tmp_path) -> None:
    any_step.run_right("-n", 8, "--json", tmp_path / "record.json")
    (record,) = read_records(tmp_path / "record.json")
    assert not [name for name in record if name.split("_")[0] in NAMES]


def test_sampled_rows_of_each_gradient(one: Program, tmp_path) -> None:
    one.run_right("-n", 70, "--check", "rows:7", "--json", tmp_path / "record.json")
    (record,) = read_records(tmp_path / "record.json")
    assert [record[f"{name}_rows_checked"] for name in NAMES] == [7, 7, 7]


@pytest.mark.cpu_only("a GPU build refuses --time-limit")
def test_time_limit(one: Program, tmp_path) -> None:
    done = one.run("-n", 1000, "--time-limit", 0.05, "-o", tmp_path / "out")
    assert done.returncode == DEVICE and "time limit" in done.stderr and list(tmp_path.iterdir()) == []


def test_files_of_other_types_are_refused(one: Program, tmp_path) -> None:
    directory = write(tmp_path / "in", draw(P, 1))
    o, lse = np.zeros(P.q_shape()), np.zeros(P.q_shape()[:3], "<f4")
    for name, right, array in (
        ("o", "<f2", o.astype("<i4")),
        ("lse", "<f4", lse.astype("<f8")),
        ("do", "<f2", o.astype("<i8")),
    ):
        for file, content in {"o": o.astype("<f2"), "lse": lse, "do": o, name: array}.items():
            np.save(directory / f"{file}.npy", content)
        line = refused(one, "--input", directory)
        assert f"{name}.npy: " in line and right in line


def test_numbers_that_the_type_cannot_hold_are_refused(one: Program, tmp_path) -> None:
    *tensors, d_o = draw(P, 1)
    d_o[0, 1, 2, 3] = 1e6
    line = refused(one, "--input", write(tmp_path / "in", [*tensors, d_o]))
    assert "do.npy: element [0, 1, 2, 3] is 1e+06, beyond the largest fp16" in line
    one.run_right("--input", tmp_path / "in", "--dtype", "bf16")


def test_nan_in_d_o_spreads_to_its_row_of_dq_and_to_all_keys(step: Program, tmp_path) -> None:
    *tensors, d_o = draw(P, 1)
    d_o[0, 1, 2, 3] = np.nan
    done = step.run(
        "--input",
        write(tmp_path / "in", [*tensors, d_o]),
        "--check",
        "all",
        "--json",
        tmp_path / "json",
        "--output",
        tmp_path / "out",
        "--repeat",
        0,
    )
    (record,) = read_records(tmp_path / "json")
    assert done.returncode != WRONG or record["right"] is None
    assert record["nan_inputs"] == 1 and record["rows_wrong"] == 0
    dq, dk, dv = (np.load(tmp_path / "out" / f"{name}.npy") for name in NAMES)
    assert np.isnan(dq[0, 1, 2]).all() and not np.isnan(dq[0, 1, 3:]).any()
    assert np.isnan(dk[0, 0]).all() and not np.isnan(dk[0, 1]).any()
    assert np.isnan(dv[0, 0, :, 3]).all()


def test_outputs_are_written_to_an_existing_directory(one: Program, tmp_path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "dq.npy").write_text("old")
    one.run_right("-b", 1, "-H", 2, "-n", 20, "-d", 64, "-o", tmp_path / "out")
    assert np.load(tmp_path / "out" / "dq.npy").shape == (1, 2, 20, 64)
