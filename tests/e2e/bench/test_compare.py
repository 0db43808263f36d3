"""plots/compare.py: what becomes of failures, the command. What of it needs no GPU."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock

import pytest

from tests.lib.programs import REPOSITORY, read_rows
from tests.lib.source_tree import SourceTree
from tests.e2e.bench.test_contest import FakeStopwatch

import compare
import compare_gpu
import compare_one
import peers
from compare_tasks import Task, all_tasks, quick_tasks
from contest import Times
from exact import Verdict
from run_file import only_writer
from step_calls import Contestant

RIGHT = Verdict(True, 250, 1e-4, 5e-5, 1e-3, 0.25, None)
WRONG = Verdict(False, 250, 1e-2, 5e-5, 1e-3, 10.0, None)
ENVIRONMENT = {"commit": "abc", "device": "NVIDIA H200", "driver": "1", "torch": "2"}


# --- One task -------------------------------------------------------------------------------------

def fake_peer(short: str, name: str, build: object, modules: tuple[str, ...] = ("sys",),
              all_masks: bool = False) -> peers.Peer:
    return peers.Peer(short, name, build, modules, all_masks)


@pytest.fixture
def comparison(monkeypatch: pytest.MonkeyPatch) -> compare_one.Comparison:
    """Of a step and four peers: one works, one is wrong, one fails, one is not installed."""
    def fail(inputs: object) -> None:
        raise RuntimeError("out of\n  memory: " + 300 * "x")
    monkeypatch.setattr(compare_one, "PEERS", (
        fake_peer("fa2", "FlashAttention-2", lambda inputs: lambda: "fa2", all_masks=True),
        fake_peer("cudnn", "cuDNN", lambda inputs: lambda: "cudnn"),
        fake_peer("math", "unfused SDPA", fail),
        fake_peer("fa3", "FlashAttention-3", None, ("no_such_module", "nor_this"))))
    monkeypatch.setattr(compare_one, "StepLibrary", lambda path: SimpleNamespace(
        name=path.stem.removeprefix("lib"), takes_block_masks="5" in path.stem))
    monkeypatch.setattr(compare_one, "step_contestant", lambda inputs, step, path: Contestant(
        step.name, lambda: step.name))
    monkeypatch.setattr(compare_one, "Inputs",
                        lambda torch, task: SimpleNamespace(device="cpu", task=task))
    monkeypatch.setattr(compare_one, "Stopwatch", lambda torch: FakeStopwatch(
        {"step04": 100.0, "step05": 100.0, "FlashAttention-2": 200.0}))
    monkeypatch.setattr(compare_one.Entries, "judge", lambda self: {
        x.name: WRONG if x.name == "cuDNN" else RIGHT for x in self.contestants})
    monkeypatch.setattr(compare_one, "largest_difference", lambda o, expected: 1e-4)
    clocks = iter([(1000, 1), (1900, 3000)] * 9)
    return compare_one.Comparison(MagicMock(), SimpleNamespace(clocks_mhz=lambda: next(clocks)),
                                  ENVIRONMENT, [Path("libstep04.so"), Path("libstep05.so")],
                                  compare.SHORTS, False)


def test_rows_of_one_task(comparison: compare_one.Comparison) -> None:
    rows = comparison.rows(Task(4096, 64, "causal"), "2030-01-01T00:00:00Z")
    found = {row.get("step") or row["peer"]: row for row in rows}
    assert list(found) == ["step04", "step05", "FlashAttention-2", "cuDNN", "unfused SDPA"]
    step = found["step04"]
    assert (step["speed_over_fa2"], step["difference_from_fa2"], step["samples"]) == (2, 1e-4, 10)
    assert (step["sm_clock_before_mhz"], step["sm_clock_mhz"], step["memory_clock_mhz"]) == (
        1000, 1900, 3000)
    assert {row["flushes"] for row in rows} == {1}
    assert (found["cuDNN"]["right"], found["cuDNN"]["samples"]) == (False, 0)
    assert "speed_over_cudnn" not in step
    reason = found["unfused SDPA"]["skipped"]
    assert re.fullmatch(r"out of memory: x+\.\.\.", reason) and len(reason) == 200


def test_peer_that_fails_while_it_is_timed(comparison: compare_one.Comparison) -> None:
    """It has a reason in place of a time; a step ends the run."""
    times = comparison.stopwatch.milliseconds
    comparison.stopwatch = FakeStopwatch(times, "FlashAttention-2", 20)
    rows = comparison.rows(Task(4096, 64, "causal"), "2030-01-01T00:00:00Z")
    found = {row.get("step") or row["peer"]: row for row in rows}
    assert len(rows) == len(found) == 5
    peer = found["FlashAttention-2"]
    assert (peer["skipped"], peer["right"], peer["samples"]) == ("out of memory", None, 0)
    assert "speed_over_fa2" not in found["step04"] and found["step04"]["samples"] == 10
    comparison.stopwatch = FakeStopwatch(times, "step04", 20)
    with pytest.raises(RuntimeError, match="out of"):
        comparison.rows(Task(4096, 64, "causal"), "2030-01-01T00:00:00Z")


def test_masks_are_for_who_takes_them(comparison: compare_one.Comparison) -> None:
    rows = comparison.rows(Task(4096, 64, "window:1024"), "2030-01-01T00:00:00Z")
    assert [row.get("step") or row["peer"] for row in rows] == ["step05", "FlashAttention-2"]


def test_peer_that_is_not_installed_is_told(comparison: compare_one.Comparison) -> None:
    assert comparison.notes() == [
        "FlashAttention-3: not compared, cannot import no_such_module or nor_this"]


@pytest.mark.parametrize("returned", ["tensor", "tuple"])
def test_flash_attention_3(returned: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In either form of its interface; its tensors are [B, N, H, D]."""
    module, o = ModuleType("flash_attn_interface"), MagicMock()
    module.flash_attn_func = MagicMock(return_value=(o, "lse") if returned == "tuple" else o)
    monkeypatch.setitem(sys.modules, "flash_attn_interface", module)
    (peer,) = (peer for peer in peers.PEERS if peer.short == "fa3")
    assert peer.missing() is None
    inputs = MagicMock(task=Task(4096, 64, "causal"))
    assert peer.contestant(inputs).call() is o.transpose.return_value
    o.transpose.assert_called_with(1, 2)
    q = inputs.q.transpose.return_value.contiguous.return_value
    assert module.flash_attn_func.call_args.args[0] is q
    assert module.flash_attn_func.call_args.kwargs == {"causal": True}


# --- The command ----------------------------------------------------------------------------------

def test_short_names_are_those_of_the_peers() -> None:
    assert compare.SHORTS == tuple(peer.short for peer in peers.PEERS)


class StubComparison:
    """Instead of a Comparison: one row a task, and an interruption if asked for."""

    right, interrupt_at = True, None

    def __init__(self, *_: object) -> None:
        self.count = 0

    def notes(self) -> list[str]:
        return ["FlashAttention-3: not compared"]

    def rows(self, task: Task, date: str) -> list[dict]:
        self.count += 1
        if self.count == self.interrupt_at:
            raise self.interruption
        times = {"step05": Times({0: 1.0, 1: 1.0})}
        return [compare_one.row_of(Contestant("step05", None), task, {**ENVIRONMENT, "date": date},
                                   RIGHT if self.right else WRONG, times, {}, {})]


def write_program(path: Path, commit: str) -> None:
    path.write_text(f"#!/bin/sh\necho {path.name} {commit}\n")
    path.chmod(0o755)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The words of a call that measures nothing."""
    monkeypatch.setattr(compare, "torch_on_a_gpu", lambda program: MagicMock())
    monkeypatch.setattr(compare, "Gpu", lambda torch: SimpleNamespace(
        environment=lambda: ENVIRONMENT, properties=SimpleNamespace(name="NVIDIA H200")))
    monkeypatch.setattr(compare_one, "Comparison", StubComparison)
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "libstep05.so").touch()
    write_program(tmp_path / "build" / "step05", "abc")
    words = ["compare", str(tmp_path / "build"), str(tmp_path / "results")]
    monkeypatch.setattr(sys, "argv", words)
    return words


def test_all_tasks_are_measured(command: list[str], tmp_path: Path,
                                capsys: pytest.CaptureFixture) -> None:
    assert compare.main() == 0
    rows = read_rows(tmp_path / "results" / "h200" / "compare_abc.jsonl")
    assert len(rows) == len(all_tasks())
    said = capsys.readouterr().out
    assert said.startswith("FlashAttention-3: not compared\n[ 1/32] N=4096 D=64 fp16 full\n")
    assert re.search(r"\n\[32/32\] about \d+ s left N=1024 D=256 fp16 causal\n", said)
    assert compare.main() == 0
    assert (tmp_path / "results" / "h200" / "compare_abc_2.jsonl").is_file()


def test_wrong_answer_is_exit_code_1(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StubComparison, "right", False)
    assert compare.main() == 1


@pytest.mark.parametrize("interruption, code, said", [
    (KeyboardInterrupt(), 130, "interrupted; the same command goes on"),
    (RuntimeError("CUDA said:\n\n  no"), 3, "compare: CUDA said: no\n")])
def test_interruption_costs_one_task(command: list[str], tmp_path: Path,
                                     interruption: BaseException, code: int, said: str,
                                     monkeypatch: pytest.MonkeyPatch,
                                     capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(StubComparison, "interrupt_at", 3)
    monkeypatch.setattr(StubComparison, "interruption", interruption, raising=False)
    assert compare.main() == code
    assert said in capsys.readouterr().err
    path = tmp_path / "results" / "h200" / "compare_abc.jsonl"
    assert len(read_rows(path.with_name(path.name + ".partial"))) == 2 and not path.exists()
    monkeypatch.setattr(StubComparison, "interrupt_at", None)
    assert compare.main() == 0
    rows = read_rows(path)
    assert [(row["head_dim"], row["seqlen"], row["mask"]) for row in rows] == [
        (task.head_dim, task.seqlen, task.mask) for task in all_tasks()]


@pytest.mark.parametrize("words, at, said", [
    (["--only", "D=256"], 2, "interrupted; the same command begins anew\n"),
    ([], 1, "interrupted; the same command goes on with what is there\n")])
def test_what_comes_after_an_interruption_is_said(command: list[str], words: list[str], at: int,
                                                  said: str, monkeypatch: pytest.MonkeyPatch,
                                                  capsys: pytest.CaptureFixture) -> None:
    sys.argv += words
    monkeypatch.setattr(StubComparison, "interrupt_at", at)
    monkeypatch.setattr(StubComparison, "interruption", KeyboardInterrupt(), raising=False)
    assert compare.main() == 130
    assert capsys.readouterr().err == f"\ncompare: {said}"


@pytest.mark.parametrize("words, count", [
    (["--quick"], len(quick_tasks())), (["--only", "bf16"], 2),
    (["--steps", "step05", "--only", "D=256"], 6)])
def test_selection_is_no_result(command: list[str], words: list[str], count: int,
                                tmp_path: Path) -> None:
    sys.argv += words
    assert compare.main() == compare.main() == 0
    assert len(read_rows(tmp_path / "build" / "compare.jsonl")) == count
    assert not (tmp_path / "results").exists()


def test_libraries_of_another_commit_are_refused(command: list[str], tmp_path: Path,
                                                 capsys: pytest.CaptureFixture) -> None:
    """Those that take part; the program beside a library is made of the same objects."""
    build = tmp_path / "build"
    (build / "libstep04.so").touch()
    write_program(build / "step04", "old")
    assert compare.main() == 2
    assert capsys.readouterr().err == (
        f"compare: {build}: programs of another commit (step04 of old; step05 of abc), but this is "
        "abc; make all libraries BACKEND=cuda\n")
    sys.argv += ["--steps", "step05", "--only", "bf16"]
    assert compare.main() == 0
    (build / "step05").unlink()
    assert compare.main() == 2
    assert capsys.readouterr().err == (
        f"compare: {build}/step05: No such file or directory; make all BACKEND=cuda\n")


def test_rows_of_another_run_are_left_alone(command: list[str], tmp_path: Path,
                                            capsys: pytest.CaptureFixture) -> None:
    partial = tmp_path / "rows.partial"
    task = all_tasks()[0]
    partial.write_text(json.dumps({**ENVIRONMENT, "driver": "0", "seqlen": task.seqlen,
                                   "head_dim": task.head_dim, "mask": task.mask,
                                   "dtype": task.dtype}) + "\n")
    sys.argv += ["--rows", str(tmp_path / "rows")]
    assert compare.main() == 2
    assert "rows.partial:1: driver 0, but this run has 1" in capsys.readouterr().err


def test_two_comparisons_do_not_write_one_file(command: list[str], tmp_path: Path,
                                               capsys: pytest.CaptureFixture) -> None:
    path = tmp_path / "results" / "h200" / "compare_abc.jsonl"
    with only_writer(path):
        assert compare.main() == 2
    assert capsys.readouterr().err == f"compare: {path}: is being written by another run\n"
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("content", [b"[1]", b'{"commit": "abc"}', b"nonsense", b"\xff\xfe"])
def test_file_that_is_none_of_rows_is_refused(command: list[str], tmp_path: Path, content: bytes,
                                              capsys: pytest.CaptureFixture) -> None:
    partial = tmp_path / "rows.partial"
    partial.write_bytes(content + b"\n")
    sys.argv += ["--rows", str(tmp_path / "rows")]
    assert compare.main() == 2
    assert capsys.readouterr().err == (f"compare: {partial}:1: is no row of a comparison; delete "
                                       "the file to measure anew\n")
    assert partial.read_bytes() == content + b"\n"


def test_rows_go_where_they_are_told(command: list[str], tmp_path: Path,
                                     capsys: pytest.CaptureFixture) -> None:
    sys.argv += ["--only", "bf16", "--rows", str(tmp_path / "rows")]
    assert compare.main() == 0 and len(read_rows(tmp_path / "rows")) == 2
    assert compare.main() == 2
    assert capsys.readouterr().err == (f"compare: {tmp_path / 'rows'}: is complete; name another "
                                       "file or delete this one\n")


@pytest.mark.parametrize("words, said", [
    (["--only", "D=65"], "--only D=65: no task has these words; there are: N=4096 D=64 fp16 "),
    (["--steps", "step5"], r"--steps step5: must be of step05\n")])
def test_unknown_selection(command: list[str], words: list[str], said: str,
                           capsys: pytest.CaptureFixture) -> None:
    sys.argv += words
    assert compare.main() == 2
    assert re.match(f"compare: {said}", capsys.readouterr().err)


def run(directory: Path, *words: str, torch: str) -> subprocess.CompletedProcess:
    """The script with this module in place of PyTorch."""
    (directory / "torch.py").write_text(torch)
    return subprocess.run([sys.executable, REPOSITORY / "plots/compare.py", *words], cwd=directory,
                          env={**os.environ, "PYTHONPATH": str(directory)}, capture_output=True,
                          text=True, timeout=60, check=False)


@pytest.mark.parametrize("words, torch, code, said", [
    (["build"], "", 2, r"usage: (.|\n)* required: results\n"),
    (["build", "results", "--peers", "fa9"], "", 2, r"(.|\n)*--peers fa9: must be of fa2, cudnn, "),
    (["build", "results"], "raise ModuleNotFoundError", 77,
     r"compare: \S+ needs PyTorch\. Install it: pip install torch\n$"),
    (["build", "results", "--can-run"], "class cuda:\n    is_available = lambda: False\n", 77,
     r"compare: no GPU that PyTorch can use\n$"),
    (["build", "results", "--can-run"], "class cuda:\n    is_available = lambda: True\n", 0, "$"),
])
def test_what_is_missing_is_said(tmp_path: Path, words: list[str], torch: str, code: int,
                                 said: str) -> None:
    done = run(tmp_path, *words, torch=torch)
    assert done.returncode == code and re.match(said, done.stderr), done.stderr
    assert not (tmp_path / "results").exists()


def test_make_compare_says_it_before_it_builds(tmp_path: Path) -> None:
    tree = SourceTree(tmp_path)
    python = tree.bin / "python"
    python.write_text('#!/bin/sh\necho "$*" >&2\nexit 77\n')
    python.chmod(0o755)
    done = tree.make("compare", "QUICK=1", "BACKEND=cpu", f"PYTHON={python}")
    assert re.fullmatch(r"plots/compare\.py --quick build/cpu plots/results --can-run\n"
                        r"make: [^\n]* Error 77\n", done.stderr)
    python.write_text("#!/bin/sh\n")
    done = tree.make("compare", "BACKEND=cpu", f"PYTHON={python}")
    assert re.match(r"compare: times need BACKEND=cuda, and so nvcc; this is BACKEND=cpu\n",
                    done.stderr)
    assert not (tree.root / "build" / "cpu").exists()


def test_rows_name_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """As nvidia-smi does, and as the rows of steps do."""
    monkeypatch.setattr(compare_gpu, "versions", lambda torch: {})
    monkeypatch.setattr(compare_gpu.Gpu, "ask", lambda self, *fields: ["1"])
    properties = SimpleNamespace(name="NVIDIA H200", multi_processor_count=132, major=9, minor=0,
                                 uuid="01234567-89ab-cdef-0123-456789abcdef")
    torch = MagicMock()
    torch.cuda.get_device_properties.return_value = properties
    found = compare_gpu.Gpu(torch).environment()
    assert found["gpu_uuid"] == "GPU-01234567-89ab-cdef-0123-456789abcdef"


def test_versions_of_what_is_installed() -> None:
    torch = SimpleNamespace(__version__="2.11.0",
                            backends=SimpleNamespace(cudnn=SimpleNamespace(version=lambda: 91900)))
    found = compare_gpu.versions(torch)
    assert (found["torch"], found["cudnn"]) == ("2.11.0", "9.19.0")
    assert compare_gpu.package_version("no-such-package", "numpy") == sys.modules[
        "numpy"].__version__
