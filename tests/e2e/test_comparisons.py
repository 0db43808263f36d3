"""compare_fa2.py and compare_flex.py: what of them needs no GPU."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest

import masks_numpy as masks
from problem import Problem
from programs import REPOSITORY, STEP_DIR, Program, read_rows

sys.path[:0] = [str(REPOSITORY / "tests" / "gpu"), str(REPOSITORY / "plots")]
import compare_fa2  # noqa: E402
import compare_flex  # noqa: E402
import ladder  # noqa: E402
import side_by_side  # noqa: E402
from side_by_side import Contest  # noqa: E402
from step_library import Shape  # noqa: E402

LIBRARY = STEP_DIR / "libstep05.so"


def test_shapes_have_as_many_queries_and_as_wide_a_model() -> None:
    shapes = compare_fa2.shapes()
    assert len(set(shapes)) == 8
    for shape in shapes:
        assert shape.batch * shape.seqlen == 16384 and shape.heads * shape.head_dim == 2048
        assert shape.kv_heads == shape.heads and shape.seqlen_kv == shape.seqlen


def test_flops_are_those_of_the_programs(tmp_path: Path) -> None:
    p = Problem(batch=2, heads=3, seqlen=90, mask="causal")
    Program("step02").run_right(*p.options(), "-c", "none", "-j", tmp_path / "row.json")
    shape = Shape(2, 3, 3, 90, 90, p.head_dim, False, True)
    assert compare_fa2.flops(shape) == read_rows(tmp_path / "row.json")[0]["flops"]


# --- Masks ----------------------------------------------------------------------------------------

def test_both_masks_are_the_same(tmp_path: Path) -> None:
    """Ours as the program saves it, FlexAttention's as its mask_mod says, at a smaller length."""
    n = 2048
    q, k = np.ogrid[:n, :n]
    for mask, mask_mod in compare_flex.mask_mods(n).items():
        saved = compare_flex.saved_mask(compare_flex.program_beside(LIBRARY), mask, n)
        dense = masks.to_dense(masks.BlockMask(*saved.arrays), n, n)[0, 0]
        assert dense.sum() == saved.entries
        expected = masks.preset(Problem(seqlen=n, mask=mask)) if mask_mod is None else mask_mod(
            0, 0, q, k)
        assert (dense == expected).all(), mask
        assert saved.arrays[4].shape[1:] == (compare_flex.BLOCK, compare_flex.BLOCK)


def test_documents_and_prefixes_come_out_even() -> None:
    for n in compare_flex.SEQLENS:
        assert n % compare_flex.DOCUMENTS == n % compare_flex.PREFIX_SHARE == 0
        assert list(compare_flex.mask_mods(n))[2:] == ["window:1024", "document:8",
                                                       f"prefix:{n // 4}"]


def test_program_that_fails_is_told() -> None:
    with pytest.raises(RuntimeError, match=r"step05: --mask nonsense: must be full, causal, "):
        compare_flex.saved_mask(compare_flex.program_beside(LIBRARY), "nonsense", 8)


# --- Rows -----------------------------------------------------------------------------------------

def test_rows() -> None:
    """Times 1 to 11: median 6, first and last decile 2 and 10. The other takes half as long."""
    shape = compare_fa2.shapes()[1]
    times = [float(i) for i in range(11, 0, -1)]
    both = {"step03": times, compare_fa2.PEER: [time / 2 for time in times]}
    step, peer = compare_fa2.rows_of(shape, both, {"step03": 1e-4},
                                     {"commit": "abc", "date": "2030-01-01T00:00:00Z"})
    assert json.loads(json.dumps(step)) == step
    assert (step["median_ms"], step["p10_ms"], step["p90_ms"], step["samples"]) == (6, 2, 10, 11)
    assert step["speed_over_fa2"] == step["speed_over_fa2_p10"] == step["speed_over_fa2_p90"] == 0.5
    assert step["mask"] == "causal" and step["commit"] == "abc"
    assert step["difference_from_fa2"] == 1e-4
    assert step["tflops"] == pytest.approx(step["flops"] / 6e-3 / 1e12)
    assert "step" not in peer and peer["peer"] == "FlashAttention-2" and peer["speed_over_fa2"] == 1
    # The README's table wants checked answers.
    assert ladder.latest_of_each_step([step, peer]) == []


def test_ratios_are_taken_round_by_round() -> None:
    """A clock that drifts changes both alike; ratios 1 to 11."""
    ours = [float(2**i) for i in range(11)]
    theirs = [time * (i + 1) for i, time in enumerate(ours)]
    fields = side_by_side.ratio_fields("x", ours, theirs)
    assert fields == {"speed_over_x": 6.0, "speed_over_x_p10": 2.0, "speed_over_x_p90": 10.0}


def test_rows_of_masks() -> None:
    shape = side_by_side.shape_of(4096, 64)
    alone = compare_flex.rows_of(shape, "full", 4096**2, {"step05": [1.0, 1.0]}, {}, {})
    assert len(alone) == 1 and "speed_over_flex" not in alone[0]
    assert alone[0]["flops"] == 4 * 64 * 4 * 32 * 4096**2
    step, peer = compare_flex.rows_of(shape, "window:1024", 1,
                                      {"step05": [1.0, 1.0], compare_flex.PEER: [2.0, 2.0]},
                                      {"step05": 1e-4}, {})
    assert (step["mask"], step["speed_over_flex"], step["difference_from_flex"]) == (
        "window:1024", 2, 1e-4)
    assert (peer["peer"], peer["difference_from_flex"]) == ("FlexAttention", None)
    assert " 2.00 x flex (2.00 .. 2.00), differs by 1.0e-04" in side_by_side.line_of(step, "flex")
    assert " x flex" not in side_by_side.line_of(peer, "flex")
    assert " x flex" not in side_by_side.line_of(alone[0], "flex")


# --- Measuring ------------------------------------------------------------------------------------

def test_contestants_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each once a round; the first three rounds do not count."""
    calls = []
    monkeypatch.setattr(Contest, "time_ms", lambda self, call: calls.append(call) or len(calls))
    contest = object.__new__(Contest)
    contest.calls = {"step03": "a", "step04": "b", compare_fa2.PEER: "c"}
    times = contest.measure(2)
    assert "".join(calls) == "abc" * 5
    assert times == {"step03": [10, 13], "step04": [11, 14], compare_fa2.PEER: [12, 15]}


def contest_with_waits(waits: list[bool]) -> tuple[Contest, list[str]]:
    """A contest whose GPU has or has not been waiting, sample by sample; and what was done."""
    done: list[str] = []
    event = SimpleNamespace(record=lambda: done.append("event"), query=lambda: waits.pop(0),
                            synchronize=lambda: None, elapsed_time=lambda end: 5.0)
    contest = object.__new__(Contest)
    contest.torch = SimpleNamespace(cuda=SimpleNamespace(Event=lambda enable_timing: event))
    contest.flush = SimpleNamespace(zero_=lambda: done.append("flush"))
    contest.flushes = 1
    return contest, done


def test_sample_in_which_the_gpu_waits_is_repeated() -> None:
    contest, done = contest_with_waits([True, True, False, False])
    assert contest.time_ms(lambda: done.append("call")) == 5.0
    sample = ["event", "call", "event"]
    assert done == ["flush", *sample, *2 * ["flush"], *sample, *4 * ["flush"], *sample]
    contest.time_ms(lambda: None)
    assert contest.flushes == 4


def test_call_that_no_flush_covers_is_refused() -> None:
    contest, _ = contest_with_waits(100 * [True])
    with pytest.raises(RuntimeError, match="takes longer than 64 flushes of L2"):
        contest.time_ms(lambda: None)


# --- The programs ---------------------------------------------------------------------------------

class StubContest:
    """Instead of a Contest: two milliseconds each."""

    difference = 0.0

    def __init__(self, torch: object, shape: Shape, flush: object) -> None:
        self.torch, self.shape, self.calls = torch, shape, {}

    def add_step(self, step: SimpleNamespace, **mask: object) -> None:
        self.calls[step.name] = None

    def differences(self, peer: str) -> dict[str, float]:
        return {name: self.difference for name in self.calls if name != peer}

    def measure(self, rounds: int) -> dict[str, list[float]]:
        return {name: rounds * [2.0] for name in self.calls}


@pytest.fixture
def stubs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Stand-ins for PyTorch and for what is measured by it; the rows' file is returned."""
    torch = MagicMock()
    for module in ("torch", "torch.nn.attention", "torch.nn.attention.flex_attention"):
        monkeypatch.setitem(sys.modules, module, torch)
    monkeypatch.setattr(side_by_side, "environment_of", lambda torch: {"commit": "abc"})
    monkeypatch.setattr(side_by_side, "Contest", StubContest)
    for program in (compare_fa2, compare_flex):
        monkeypatch.setattr(program, "StepLibrary",
                            lambda path: SimpleNamespace(name=path.stem.removeprefix("lib")))
    monkeypatch.setattr(compare_flex, "Contest", StubContest)
    monkeypatch.setattr(compare_flex, "PreparedMask", MagicMock())
    monkeypatch.setattr(compare_flex, "saved_mask",
                        lambda program, mask, n: compare_flex.SavedMask((), n))
    monkeypatch.setattr(sys, "argv", ["", "--rounds", "4", str(tmp_path / "rows"), str(LIBRARY)])
    return tmp_path / "rows"


@pytest.mark.parametrize("difference, code", [(1e-4, 0), (0.1, 1), (math.nan, 1)])
@pytest.mark.parametrize("program, alone, beside", [(compare_fa2, 0, 8), (compare_flex, 8, 12)],
                         ids=["compare_fa2", "compare_flex"])
def test_comparison_writes_rows_and_judges(program: object, alone: int, beside: int,
                                           difference: float, code: int, stubs: Path,
                                           monkeypatch: pytest.MonkeyPatch,
                                           capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(StubContest, "difference", difference)
    assert program.main() == code
    rows = read_rows(stubs)
    assert [sum(kind in row for row in rows) for kind in ("step", "peer")] == [alone + beside,
                                                                               beside]
    assert {row["median_ms"] for row in rows} == {2.0} and {row["samples"] for row in rows} == {4}
    said = capsys.readouterr()
    assert said.out.count(" step05 ") == alone + beside
    assert said.err.count(f"step05 differs from {program.PEER}") == beside * code


def test_failure_of_pytorch_is_one_line(stubs: Path, monkeypatch: pytest.MonkeyPatch,
                                        capsys: pytest.CaptureFixture) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("inductor said:\n\n  no such thing")
    monkeypatch.setattr(compare_flex, "add_flex_attention", fail)
    assert compare_flex.main() == 3
    assert capsys.readouterr().err == (
        "compare_flex: N=4096 D=64 window:1024: inductor said: no such thing\n")
    assert len(read_rows(stubs)) == 2  # full and causal came before


@pytest.mark.parametrize("program", ["compare_fa2", "compare_flex"])
@pytest.mark.parametrize("words, code, said", [
    (["rows"], 2, "usage: "),
    (["--rounds", "1", "rows", "lib"], 2, "--rounds 1: must be at least 2"),
    (["rows", "nowhere.so"], 2, r"nowhere\.so: no such file; make libraries BACKEND=cuda\n"),
    (["rows", str(LIBRARY)], 77, r"PROGRAM: Python needs PyTorch\. Install it: .*\n"),
])
def test_comparison_says_what_is_missing(tmp_path: Path, program: str, words: list[str], code: int,
                                         said: str) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError\n")
    command = [sys.executable, REPOSITORY / f"tests/gpu/{program}.py", *words]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)},
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code and re.search(said.replace("PROGRAM", program), done.stderr)
    assert not (tmp_path / "rows").exists()


def test_flex_comparison_wants_the_program_too(tmp_path: Path) -> None:
    library = tmp_path / "libstep05.so"
    library.touch()
    done = subprocess.run([sys.executable, REPOSITORY / "tests/gpu/compare_flex.py", "rows",
                           library], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr == (f"compare_flex: {tmp_path / 'step05'}: no such file; "
                           "make all BACKEND=cuda\n")


@pytest.mark.parametrize("stub, said", [
    ("", "Python, or this PyTorch, has no torch.nn.attention.flex_attention"),
    ("__path__ = []\nimport sys\nfor name in ('nn', 'nn.attention', 'nn.attention.flex_attention'):"
     "\n    sys.modules['torch.' + name] = sys\nclass cuda:\n    is_available = lambda: False\n",
     "no GPU"),
])
def test_flex_comparison_names_what_pytorch_lacks(tmp_path: Path, stub: str, said: str) -> None:
    (tmp_path / "torch.py").write_text(stub)
    done = subprocess.run(
        [sys.executable, REPOSITORY / "tests/gpu/compare_flex.py", "rows", LIBRARY],
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=60,
        check=False)
    assert (done.returncode, done.stderr) == (77, f"compare_flex: {said}\n")
