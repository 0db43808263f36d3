"""plots/rows.py: which rows count, which run is taken, and what is said of broken files."""

import json
from pathlib import Path

import pytest

from tests.e2e.figures.measured_rows import compare_rows, sweep_rows, write_results, write_rows
from tests.lib.programs import REPOSITORY, read_rows, step_names

import compare_tasks
import rows as measured
import sweep_grid


def test_committed_rows_can_be_read() -> None:
    results = measured.load(REPOSITORY / "plots" / "results" / "h200")
    steps = results.sweep.steps()
    assert {f"step{number:02}" for number in range(1, 6)} <= set(steps) <= set(step_names())
    for mask in measured.MASKS:
        rows = results.sweep.select(**measured.HEADLINE, mask=mask, right=True)
        assert sorted(row.step for row in rows) == steps
    assert {row.name() for row in results.compare.rows if row.peer} >= {"FA2"}


def test_committed_runs_are_whole() -> None:
    """All of the sweep and of the comparison, in one commit."""
    results = measured.load(REPOSITORY / "plots" / "results" / "h200")
    swept = {sweep_grid.identity_of(row) for row in read_rows(results.sweep.path)}
    grid = {case.identity() for group in sweep_grid.full_grid(results.sweep.steps())
            for case in group.cases}
    assert swept == grid
    tasks = {(row.seqlen, row.head_dim, row.mask, row.dtype) for row in results.compare.rows}
    assert tasks == {(task.seqlen, task.head_dim, task.mask, task.dtype)
                     for task in compare_tasks.all_tasks()}
    assert len({row.commit for run in (results.sweep, results.compare) for row in run.rows}) == 1


def test_every_row_of_a_run_is_read(tmp_path: Path) -> None:
    results = measured.load(write_results(tmp_path) / "h200")
    for run, given in ((results.sweep, sweep_rows()), (results.compare, compare_rows())):
        assert len(run.rows) == len(given)
        for row, expected in zip(run.rows, given, strict=True):
            assert all(getattr(row, name) == expected[name] for name in
                       ("seqlen", "head_dim", "dtype", "mask", "tflops", "flops"))


def one_run(tmp_path: Path, rows: list[dict]) -> measured.Run:
    return measured.read_run(write_rows(tmp_path / "sweep_abc.jsonl", rows), "sweep")


def at_speed(row: dict, tflops: float) -> dict:
    return row | {"tflops": tflops, "median_ms": row["flops"] / tflops * 1e-9}


def test_rows_that_do_not_count(tmp_path: Path) -> None:
    """Wrong answers, untimed runs, and a shared K/V buffer."""
    row = next(row for row in sweep_rows() if row["step"] == "step05")
    others = [row | change for change in ({"right": False}, {"samples": None}, {"samples": 0},
                                          {"shared_kv": True})]
    assert one_run(tmp_path, [at_speed(row, 1.5), *others]).rows[0].tflops == 1.5
    assert len(one_run(tmp_path, [row, *others]).rows) == 1


def test_of_equal_measurements_the_last_counts(tmp_path: Path) -> None:
    row = sweep_rows()[0]
    run = one_run(tmp_path, [at_speed(row, 1.0), at_speed(row, 2.0) | {"seed": "2"}])
    assert [row.tflops for row in run.rows] == [2.0]


@pytest.mark.parametrize("field, value", [("seqlen", 77), ("mask", "window:9"), ("dtype", "bf16"),
                                          ("kv_heads", 1), ("layout", "bnhd"), ("batch", 9)])
def test_other_problems_are_other_measurements(tmp_path: Path, field: str, value: object) -> None:
    row = sweep_rows()[0]
    assert len(one_run(tmp_path, [row, row | {field: value}]).rows) == 2


def test_density_is_the_share_of_entries_left(tmp_path: Path) -> None:
    for row in one_run(tmp_path, sweep_rows()).rows:
        expected = {"full": 1.0, "causal": (row.seqlen + 1) / row.seqlen / 2, "random:0.5": 0.5}
        if row.mask in expected:
            assert row.density() == pytest.approx(expected[row.mask], rel=1e-6)


# --- Which run ------------------------------------------------------------------------------------

def dated(rows: list[dict], day: int) -> list[dict]:
    return [row | {"date": f"2030-01-{day:02}T00:00:00Z"} for row in rows]


@pytest.mark.parametrize("days, chosen", [((1, 2), "b"), ((2, 1), "a")])
def test_the_newest_run_counts(tmp_path: Path, days: tuple[int, int], chosen: str) -> None:
    """By the rows' dates; names and the order of files say nothing."""
    for name, day in zip("ab", days, strict=True):
        write_rows(tmp_path / f"sweep_{name}.jsonl", dated(sweep_rows(), day))
    assert measured.load(tmp_path).sweep.path.stem == f"sweep_{chosen}"


@pytest.mark.parametrize("part", [
    lambda rows: [row for row in rows if row["step"] != "step05"],
    lambda rows: [row for row in rows if (row["seqlen"], row["head_dim"]) == (4096, 128)],
    lambda rows: [row | {"samples": None} for row in rows],
    lambda rows: []])
def test_an_incomplete_run_does_not_count(tmp_path: Path, part) -> None:
    """A step is missing, or most shapes, or the times, or all."""
    write_rows(tmp_path / "sweep_old.jsonl", dated(sweep_rows(), 1))
    write_rows(tmp_path / "sweep_new.jsonl", dated(part(sweep_rows()), 2))
    assert measured.load(tmp_path).sweep.path.stem == "sweep_old"


def test_a_new_step_makes_older_runs_incomplete(tmp_path: Path) -> None:
    rows = dated(sweep_rows(), 1)
    newer = [row | {"step": "step06"} for row in rows if row["step"] == "step05"]
    write_rows(tmp_path / "sweep_a.jsonl", rows + newer)
    write_rows(tmp_path / "sweep_b.jsonl", dated(sweep_rows(), 2))
    assert measured.load(tmp_path).sweep.path.stem == "sweep_a"


def test_without_anything_there_is_none(tmp_path: Path) -> None:
    assert measured.load(tmp_path) == measured.Results(None, None)


def test_gpu_is_chosen(tmp_path: Path) -> None:
    write_results(tmp_path, "h200")
    (tmp_path / "real_input").mkdir()
    assert measured.gpu_directory(tmp_path, None) == tmp_path / "h200"
    write_results(tmp_path, "a100")
    assert measured.gpu_directory(tmp_path, "a100") == tmp_path / "a100"
    with pytest.raises(measured.RowsError, match=r"results of a100, h200 in .*GPU="):
        measured.gpu_directory(tmp_path, None)
    with pytest.raises(measured.RowsError, match=r"GPU=v100: no results .*: a100, h200"):
        measured.gpu_directory(tmp_path, "v100")


# --- Broken files ---------------------------------------------------------------------------------

def changed(**fields: object) -> str:
    return json.dumps(sweep_rows()[0] | fields)


def without(name: str) -> str:
    return json.dumps({field: value for field, value in sweep_rows()[0].items() if field != name})


BROKEN = [
    ('{"step": ', "no JSON"), ("", "no JSON"), ("[1, 2]", "must be an object"),
    (without("step"), 'either "step" or "peer"'),
    (changed(peer="cuDNN"), 'either "step" or "peer"'),
    (without("commit"), 'has no "commit"'), (changed(device=None), 'has no "device"'),
    (changed(seqlen="4096"), '"seqlen" is "4096", must be of type int'),
    (changed(seqlen=4096.5), '"seqlen" is 4096.5, must be of type int'),
    (changed(seqlen=True), '"seqlen" is true, must be of type int'),
    (changed(tflops="fast"), '"tflops" is "fast", must be of type float'),
    (changed(right=1), '"right" is 1, must be of type bool'),
    (changed(tflops=-1.0), '"tflops" is -1.0, must be above 0'),
    (changed(median_ms=0), '"median_ms" is 0, must be above 0'),
    (changed(flops=0), '"flops" is 0, must be above 0'),
    (changed(seqlen=0), '"seqlen" is 0, must be above 0'),
    (changed(batch=0), '"batch" is 0, must be above 0'),
    (changed(head_dim=-128), '"head_dim" is -128, must be above 0'),
    (changed(gb_per_s=0), '"gb_per_s" is 0, must be above 0'),
    (changed(ceiling_mma_tflops=-1.5), '"ceiling_mma_tflops" is -1.5, must be above 0'),
    (changed(max_error=-1e-3), '"max_error" is -0.001, must be 0 or more'),
    (changed(tflops=float("inf")), '"tflops" is Infinity, must be a finite number'),
    (changed(max_error=float("nan")), '"max_error" is NaN, must be a finite number'),
    (changed(flops=10**400), '"flops" is 10000'),
    (changed(tflops=1.5), '"tflops" is 1.5, but "flops" in "median_ms" are '),
    (changed(date="2026-1-1T1:1:1Z"), '"date" is "2026-1-1T1:1:1Z", must be like 2030'),
    (without("max_error"), 'has "samples" but no "max_error"'),
    (without("cuda_runtime"), 'has "samples" but no "cuda_runtime"'),
    (changed(date="zzz"), '"date" is "zzz", must be like 2030-01-02T03:04:05Z'),
    (changed(mask_blocks=9, mask_blocks_active=10), '"mask_blocks_active" must be at most'),
    ("[" * 100000, "no JSON"), ("9" * 5000, "no JSON"),
    (changed(median_ms=1e-300), ', but "flops" in "median_ms" are '),
    (changed(tflops=None), 'has "samples" but no "tflops"'),
    (without("p10_ms"), 'has "samples" but no "p10_ms"'),
    (without("ceiling"), 'has "samples" but no "ceiling"')]


@pytest.mark.parametrize("line, said", BROKEN)
def test_broken_line_is_named(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "sweep_abc.jsonl"
    path.write_text(f"{changed()}\n{line}\n{changed()}\n")
    with pytest.raises(measured.RowsError) as raised:
        measured.load(tmp_path)
    text = str(raised.value)
    assert text.startswith(f"{path}, line 2: ") and said in text and "\n" not in text


def test_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "sweep_abc.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(measured.RowsError, match="sweep_abc.jsonl: "):
        measured.load(tmp_path)


@pytest.mark.parametrize("field, value, of_others", [
    ("device", "NVIDIA A100", "NVIDIA H200"), ("gpu_uuid", "GPU-2", "GPU-1"),
    ("commit", "ba9876543210", "0123456789ab")])
@pytest.mark.parametrize("kind", ["sweep", "compare"])
def test_run_of_two_origins_is_refused(tmp_path: Path, kind: str, field: str, value: str,
                                       of_others: str) -> None:
    """Whether or not the row counts, it is none of this run."""
    path = tmp_path / f"{kind}_abc.jsonl"
    rows = {"sweep": sweep_rows, "compare": compare_rows}[kind]()
    write_rows(path, [*rows[:2], rows[2] | {field: value}, *rows[3:]])
    with pytest.raises(measured.RowsError) as raised:
        measured.load(tmp_path)
    assert str(raised.value) == (f'{path}, line 3: "{field}" is "{value}", but that of line 1 '
                                 f'is "{of_others}"; a run is of one commit and GPU')


def test_numbers_that_are_whole_are_numbers(tmp_path: Path) -> None:
    assert one_run(tmp_path, [at_speed(sweep_rows()[0], 7)]).rows[0].tflops == 7
