"""The parts of plots/compare.py: tasks and their masks, what is right, rows and their file."""

import errno
import fcntl
import json
import math
from pathlib import Path

import numpy as np
import pytest

from tests.lib import masks
from tests.lib.reference import attention, round_to
from tests.lib.problem import Problem
from tests.lib.programs import STEP_DIR, Program, read_rows

import compare_rows
import compare_tasks
import step_calls
from compare_tasks import Task
from contest import Times
from exact import Exact, Verdict, sampled_rows
from gpu_name import short_name
from peers import PEERS
from run_file import RunError, choose, only_writer, os_error, partial_of
from step_calls import Contestant

LIBRARY = STEP_DIR / "libstep05.so"
SMALL = Task(2048, 64, "causal")


# --- Tasks ----------------------------------------------------------------------------------------

def test_tasks_have_as_many_queries_and_as_wide_a_model() -> None:
    tasks = compare_tasks.all_tasks()
    assert len(set(tasks)) == len(tasks) == 12 + 2 + 12 + 6
    for shape in (task.shape() for task in tasks):
        assert shape.batch * shape.seqlen == 16384 and shape.heads * shape.head_dim == 2048
        assert shape.kv_heads == shape.heads and shape.seqlen_kv == shape.seqlen
    for head_dim in (64, 128):
        for n in (4096, 16384):
            assert {task.mask for task in tasks if task.dtype == "fp16"
                    and (task.head_dim, task.seqlen) == (head_dim, n)} == {
                        "full", "causal", "window:1024", "document:8", f"prefix:{n // 4}"}
    assert set(compare_tasks.quick_tasks()) < set(tasks)


@pytest.mark.parametrize("only, names", [
    (["N=4096,D=64,causal"], ["N=4096 D=64 fp16 causal"]),
    (["bf16"], ["N=4096 D=128 bf16 full", "N=4096 D=128 bf16 causal"]),
    (["D=256,full", "bf16,causal"], ["N=4096 D=256 fp16 full", "N=16384 D=256 fp16 full",
                                     "N=4096 D=128 bf16 causal", "N=1024 D=256 fp16 full"]),
    (["D=25"], []),
])
def test_selection(only: list[str], names: list[str]) -> None:
    tasks = compare_tasks.all_tasks()
    assert [str(task) for task in compare_tasks.selected(tasks, only)] == names
    assert compare_tasks.selected(tasks, []) == tasks


@pytest.mark.parametrize("mask", ["full", "causal", *compare_tasks.sparse_masks(2048)])
def test_all_know_the_same_mask(mask: str, tmp_path: Path) -> None:
    """Step 05 as its program saves it, FlexAttention and the exact answer as the rule says."""
    n = 2048
    task, p = Task(n, 64, mask), Problem(seqlen=n, mask=mask)
    q, k = np.ogrid[:n, :n]
    dense = task.rule()(0, 0, q, k)
    saved = step_calls.saved_mask(step_calls.program_beside(LIBRARY), mask, n)
    assert (masks.to_dense(masks.BlockMask(*saved), n, n)[0, 0] == dense).all()
    assert (np.broadcast_to(masks.preset(p), dense.shape) == dense).all()
    assert saved[4].shape[1:] == (step_calls.MASK_BLOCK, step_calls.MASK_BLOCK)
    assert task.entries() == dense.sum()
    Program("step05").run_right(*p.options(), "-c", "none", "-j", tmp_path / "row.json")
    shape = task.shape()
    assert task.flops() == (read_rows(tmp_path / "row.json")[0]["flops"]
                            * shape.batch * shape.heads)


def test_program_that_fails_is_told() -> None:
    with pytest.raises(RuntimeError, match=r"step05: --mask nonsense: must be full, causal, "):
        step_calls.saved_mask(step_calls.program_beside(LIBRARY), "nonsense", 8)


@pytest.mark.parametrize("device, name", [("NVIDIA H200", "h200"), ("Tesla T4", "t4"),
                                          ("NVIDIA GeForce RTX 4090", "rtx_4090")])
def test_short_name(device: str, name: str) -> None:
    assert short_name(device) == name


# --- What is right --------------------------------------------------------------------------------

class Solved:
    """A small task, solved exactly and with the roundings of 16 bits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, dtype: str, mask: str) -> None:
        monkeypatch.setattr(compare_tasks, "QUERIES", 512)
        monkeypatch.setattr(compare_tasks, "WIDTH", 192)
        self.task = Task(256, 64, mask, dtype)
        shape = self.task.shape()
        assert (shape.batch, shape.heads) == (2, 3)
        generator = np.random.default_rng(2)
        self.tensors = {name: round_to(dtype, generator.standard_normal((2, 3, 256, 64)))
                        for name in "qkv"}
        p = Problem(batch=2, heads=3, seqlen=256, dtype=dtype, mask=mask)
        self.answer = attention(p, *self.tensors.values())
        self.exact = Exact(self.task, self.rows)

    def rows(self, name: str, batch: int, head: int, queries: np.ndarray | None) -> np.ndarray:
        x = self.tensors[name][batch, head]
        return x if queries is None else x[queries]

    def judge(self, o: np.ndarray, lse: np.ndarray | None = None) -> Verdict:
        lse_of = None if lse is None else lambda b, h, queries: lse[b, h, queries]
        return self.exact.judge(lambda b, h, queries: o[b, h, queries], lse_of,
                                bool(np.isfinite(o).all()))


@pytest.fixture(params=[("fp16", "full"), ("bf16", "causal")], ids="-".join)
def solved(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Solved:
    return Solved(monkeypatch, *request.param)


def test_rounded_answer_is_right(solved: Solved) -> None:
    o, lse = round_to(solved.task.dtype, solved.answer.o), solved.answer.lse
    verdict = solved.judge(o, lse)
    assert verdict.right and verdict.max_lse_error < 1e-9 and 0 < verdict.max_error_share < 0.6
    assert verdict.rows_checked == sum(len(q) for _, _, q in sampled_rows(solved.task)) > 100
    assert solved.judge(o) == Verdict(**{**vars(verdict), "max_lse_error": None})
    # Of all rows the largest error is no smaller.
    assert verdict.allowed_error <= 2 * solved.answer.rounding_error


def test_faults_are_found(solved: Solved) -> None:
    """In the last row of the last head, which is among those that are looked at."""
    o, lse = round_to(solved.task.dtype, solved.answer.o), solved.answer.lse
    unit = {"fp16": 2.0**-11, "bf16": 2.0**-8}[solved.task.dtype]
    row = o[-1, -1, -1]
    for changed in (row * (1 + 8 * unit), 0 * row, np.nan * row, -row, o[-1, -1, -2]):
        wrong = o.copy()
        wrong[-1, -1, -1] = changed
        assert not solved.judge(wrong, lse).right
    for offset in (1e-3, math.nan):
        wrong_lse = lse.copy()
        wrong_lse[-1, -1, -1] += offset
        assert not solved.judge(o, wrong_lse).right


def test_nan_anywhere_is_wrong(solved: Solved) -> None:
    o = round_to(solved.task.dtype, solved.answer.o)
    looked_at = {(b, h, query) for b, h, queries in sampled_rows(solved.task) for query in queries}
    elsewhere = next(row for row in np.ndindex(2, 3, 256) if row not in looked_at)
    o[elsewhere] = np.nan
    verdict = solved.judge(o)
    assert verdict.max_error_share < 1 and not verdict.right


def test_stale_key_is_found(solved: Solved) -> None:
    """The last tile of keys taken from before: no row that attends it is right."""
    k, v = (solved.tensors[name].copy() for name in "kv")
    k[:, :, -64:], v[:, :, -64:] = k[:, :, -128:-64], v[:, :, -128:-64]
    p = Problem(batch=2, heads=3, seqlen=256, dtype=solved.task.dtype, mask=solved.task.mask)
    wrong = attention(p, solved.tensors["q"], k, v)
    assert not solved.judge(round_to(solved.task.dtype, wrong.o)).right


# --- Rows -----------------------------------------------------------------------------------------

VERDICT = Verdict(True, 250, 1e-4, 5e-5, 1e-3, 0.25, 0.01)
ENVIRONMENT = {"commit": "abc", "device": "a GPU", "gpu_uuid": "2", "driver": "1", "torch": "2",
               "cudnn": "2", "triton": "2", "cuda_runtime": "2",
               "date": "2030-01-01T00:00:00Z"}
STEP = Contestant("step03", lambda: None)
PEER = Contestant("FlashAttention-2", lambda: None, short="fa2")


def times_of(values: list[float]) -> Times:
    return Times(enumerate(values))


def rows_of(task: Task, step: list[float], peer: list[float]) -> list[dict]:
    times = {"step03": times_of(step), "FlashAttention-2": times_of(peer)}
    return [compare_rows.row_of(contestant, task, ENVIRONMENT, VERDICT, times,
                                {"fa2": "FlashAttention-2"}, {"fa2": 1e-4})
            for contestant in (STEP, PEER)]


def test_row() -> None:
    """Times 1 to 11: median 6, first and last decile 2 and 10. The other takes half as long."""
    times = [float(i) for i in range(11, 0, -1)]
    step, peer = rows_of(SMALL, times, [time / 2 for time in times])
    assert json.loads(json.dumps(step)) == step
    assert (step["median_ms"], step["p10_ms"], step["p90_ms"], step["samples"]) == (6, 2, 10, 11)
    assert step["speed_over_fa2"] == step["speed_over_fa2_p10"] == step["speed_over_fa2_p90"] == 0.5
    assert (step["mask"], step["commit"], step["dtype"]) == ("causal", "abc", "fp16")
    assert (step["difference_from_fa2"], step["rounds_with_fa2"]) == (1e-4, 11)
    assert step["tflops"] == pytest.approx(step["flops"] / 6e-3 / 1e12)
    assert (step["right"], step["rows_checked"], step["rows"]) == (True, 250, 32 * 8 * 2048)
    assert "step" not in peer and "speed_over_fa2" not in peer and "mask_block_q" not in peer
    assert (peer["peer"], peer["short"]) == ("FlashAttention-2", "fa2")


def test_ratios_are_taken_round_by_round() -> None:
    """A clock that drifts changes both alike; ratios 1 to 11, and rounds of one alone are none."""
    ours = times_of([float(2**i) for i in range(11)])
    theirs = Times({turn: time * (turn + 1) for turn, time in ours.items()})
    fields = compare_rows.ratio_fields("x", Times({**ours, 99: 1.0}), Times({**theirs, 98: 1.0}))
    assert fields == {"speed_over_x": 6.0, "speed_over_x_p10": 2.0, "speed_over_x_p90": 10.0,
                      "rounds_with_x": 11}


def test_row_of_who_was_not_measured() -> None:
    """A wrong answer has no time and no ratios; a peer that could not has a reason."""
    wrong = Verdict(False, 250, math.nan, math.nan, 1e-3, math.nan, None)
    times = {"FlashAttention-2": times_of([1, 2])}
    row = compare_rows.row_of(STEP, SMALL, ENVIRONMENT, wrong, times, {"fa2": "FlashAttention-2"},
                              {"fa2": math.nan})
    assert (row["right"], row["samples"], row["median_ms"], row["max_error"]) == (False, 0, None,
                                                                                 None)
    assert not any(name.startswith("speed") for name in row)
    json.loads(json.dumps(row, allow_nan=False))
    line = compare_rows.line_of(row, ["fa2"])
    assert line.startswith("  step03           WRONG, so not measured")
    skipped = compare_rows.skipped_row(PEERS[2], SMALL, ENVIRONMENT, "out of memory")
    assert (skipped["peer"], skipped["short"], skipped["samples"]) == ("unfused SDPA", "math", 0)
    assert (skipped["right"], skipped["tflops"]) == (None, None)
    assert compare_rows.line_of(skipped, []) == "  unfused SDPA     skipped: out of memory"


def test_table() -> None:
    step, peer = rows_of(Task(4096, 64, "window:1024"), [1.0, 1.0], [2.0, 3.0])
    assert step["mask_block_q"] == step["mask_block_kv"] == 128
    assert compare_rows.line_of(step, ["fa2", "flex"]) == (
        "  step03              1.000 ms  120.3 TFLOP/s  error 0.25 of allowed  "
        "2.50 (2.10 .. 2.90) x fa2")
    assert compare_rows.line_of(peer, ["fa2", "flex"]).endswith("error 0.25 of allowed")


# --- The file -------------------------------------------------------------------------------------

TASKS = compare_tasks.all_tasks()[:3]


def test_file_is_complete_or_partial(tmp_path: Path) -> None:
    path = tmp_path / "h200" / "compare_abc.jsonl"
    path.parent.mkdir()
    file = compare_rows.RowFile(path, ENVIRONMENT)
    for task in TASKS[:2]:
        file.add(rows_of(task, [1.0, 1.0], [2.0, 2.0]))
    assert [x.name for x in path.parent.iterdir()] == ["compare_abc.jsonl.partial"]
    again = compare_rows.RowFile(path, ENVIRONMENT)
    assert again.done() == set(TASKS[:2])
    again.add(rows_of(TASKS[2], [1.0, 1.0], [2.0, 2.0]))
    again.finish()
    assert [x.name for x in path.parent.iterdir()] == ["compare_abc.jsonl"]
    assert {compare_rows.task_of(row) for row in read_rows(path)} == set(TASKS)
    assert choose(path.parent, "compare_abc").name == "compare_abc_2.jsonl"
    assert choose(path.parent, "compare_def").name == "compare_def.jsonl"


def test_complete_file_is_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "compare.jsonl"
    file = compare_rows.RowFile(path, ENVIRONMENT)
    file.add(rows_of(SMALL, [1.0, 1.0], [2.0, 2.0]))
    path.write_text("of another run\n")
    with pytest.raises(RunError, match=r"compare\.jsonl: is complete; "):
        file.finish()
    assert path.read_text() == "of another run\n" and len(read_rows(partial_of(path))) == 2
    partial_of(path).unlink()
    with pytest.raises(RunError, match=r"compare\.jsonl\.partial: is gone, "):
        file.finish()


def test_file_has_one_writer_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "h200" / "compare.jsonl"
    with only_writer(path):
        with pytest.raises(RunError, match=r"compare\.jsonl: is being written by another run$"):
            with only_writer(path):
                pytest.fail("two at once")
        with only_writer(path.with_name("other.jsonl")):
            pass
    with only_writer(path):
        pass
    assert list(path.parent.iterdir()) == []


def test_file_system_without_locks_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")
    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(RunError, match=r"rows\.lock: cannot be locked: No locks available$"):
        with only_writer(tmp_path / "rows"):
            pytest.fail("not locked")


def test_rows_of_other_runs_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "compare.jsonl"
    compare_rows.RowFile(path, ENVIRONMENT).add(rows_of(SMALL, [1.0, 1.0], [2.0, 2.0]))
    for field in ("gpu_uuid", "torch", "cudnn", "triton", "cuda_runtime"):
        said = rf"compare\.jsonl\.partial:1: {field} 2, but this run has 3; name another"
        with pytest.raises(RunError, match=said):
            compare_rows.RowFile(path, {**ENVIRONMENT, field: "3"})
    assert compare_rows.RowFile(path, ENVIRONMENT).done() == {SMALL}
    assert compare_rows.RowFile(path, {**ENVIRONMENT, "commit": "abc-dirty"}).done() == set()


@pytest.mark.parametrize("error, said", [
    (FileNotFoundError(errno.ENOENT, "No such file or directory", "a"),
     "a: No such file or directory"),
    (BrokenPipeError(errno.EPIPE, "Broken pipe"), "Broken pipe"),
    (OSError("a.so: undefined symbol: b"), "a.so: undefined symbol: b")])
def test_errors_of_the_system_are_told_whole(error: OSError, said: str) -> None:
    assert os_error(error) == said
