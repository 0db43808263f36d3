"""Steps as shared libraries, called from Python; and what compare_fa2.py makes of measurements."""

import ctypes
import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest

from attention_numpy import bf16_bits
from generator_numpy import rounded_inputs
from problem import Problem
from programs import REPOSITORY, STEP_DIR, Program, Result, read_rows, step_names, write_inputs
from source_tree import SourceTree

sys.path[:0] = [str(REPOSITORY / "tests" / "gpu"), str(REPOSITORY / "plots")]
import compare_fa2  # noqa: E402
import ladder  # noqa: E402
from step_library import Shape, StepLibrary  # noqa: E402

NVCC = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")

# What a call has no argument for.
UNCALLABLE = {"step01": "workspace", "step05": "block mask"}


def shape_of(p: Problem) -> Shape:
    return Shape(p.batch, p.heads, p.kv_heads, p.seqlen, p.seqlen_kv, p.head_dim, p.dtype == "bf16",
                 p.mask == "causal")


class Device:
    """Device memory by the CPU backend's runtime, which such a library holds."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self.library.cudaMemcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t,
                                            ctypes.c_int]

    def upload(self, array: np.ndarray) -> int:
        pointer = ctypes.c_void_p()
        assert self.library.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(array.nbytes)) == 0
        assert self.library.cudaMemcpy(pointer, array.ctypes.data, array.nbytes, 1) == 0
        return pointer.value

    def download(self, pointer: int, array: np.ndarray) -> np.ndarray:
        assert self.library.cudaMemcpy(array.ctypes.data, pointer, array.nbytes, 2) == 0
        return array


def solve(library: StepLibrary, p: Problem, inputs: list[np.ndarray]) -> Result:
    """O and LSE as the program would write them."""
    device = Device(library.library)
    o = np.full(p.q_shape(), 0xffff, np.uint16)
    lse = np.full(p.q_shape()[:3], np.nan, np.float32)
    pointers = [device.upload(array) for array in (*inputs, o, lse)]
    library.forward(shape_of(p), *pointers)
    o = device.download(pointers[3], o)
    o = o.view(np.float16) if p.dtype == "fp16" else (o.astype(np.uint32) << 16).view(np.float32)
    return Result(o, device.download(pointers[4], lse))


@pytest.mark.cpu_only("NumPy has no memory on a GPU; compare_fa2.py calls the libraries there")
@pytest.mark.parametrize("name", [name for name in step_names() if name not in UNCALLABLE])
@pytest.mark.parametrize("p", [
    Problem(batch=2, heads=4, kv_heads=2, seqlen=70, seqlen_kv=101, head_dim=64, mask="causal"),
    Problem(heads=2, seqlen=133, seqlen_kv=70, head_dim=128, dtype="bf16"),
], ids=["fp16 causal", "bf16 full"])
def test_library_gives_the_bits_of_the_program(name: str, p: Problem, tmp_path: Path) -> None:
    inputs = [x.astype(np.float16) if p.dtype == "fp16" else bf16_bits(x)
              for x in rounded_inputs(p)]
    expected, _ = Program(name).solve(
        tmp_path / "out", *p.options_with_files(write_inputs(tmp_path / "in", *inputs)))
    found = solve(StepLibrary(STEP_DIR / f"lib{name}.so"), p, inputs)
    assert found.same_bits(expected)


@pytest.mark.cpu_only("it is about the speed of the CPU backend")
@pytest.mark.skipif("SIMT_SLOW" in os.environ, reason="SIMT_SLOW: no verdict on speed")
@pytest.mark.parametrize("name", ["step03", "step04"])
def test_small_problem_is_quick(name: str) -> None:
    """B=1 H=2 N=256 D=64 in 15 ms on two cores. The best of many, for the sake of busy machines."""
    p = Problem(heads=2, seqlen=256, head_dim=64)
    library = StepLibrary(STEP_DIR / f"lib{name}.so")
    device = Device(library.library)
    o = np.zeros(p.q_shape(), np.float16)
    arrays = [*(x.astype(np.float16) for x in rounded_inputs(p)), o,
              np.zeros(p.q_shape()[:3], np.float32)]
    pointers = [device.upload(array) for array in arrays]
    best = math.inf
    for _ in range(100):
        start = time.perf_counter()
        library.forward(shape_of(p), *pointers)
        best = min(best, time.perf_counter() - start)
        if best < 0.015:
            return
    raise AssertionError(f"{name}: {1e3 * best:.1f} ms")


def test_two_libraries_do_not_mix() -> None:
    """Both have a `step`; each must find its own, whose name the refusal tells."""
    refused = Shape(1, 1, 1, 8, 8, 40, False, False)
    libraries = [StepLibrary(STEP_DIR / f"lib{name}.so") for name in ("step03", "step04")]
    for library in libraries:
        with pytest.raises(ValueError, match=f"--head-dim 40: {library.name} takes 32, 64"):
            library.forward(refused, 0, 0, 0, 0, 0)


@pytest.mark.parametrize("name, need", UNCALLABLE.items())
def test_library_says_what_it_cannot_do(name: str, need: str) -> None:
    library = StepLibrary(STEP_DIR / f"lib{name}.so")
    with pytest.raises(ValueError, match=f"{name} needs a {need}"):
        library.forward(Shape(1, 1, 1, 8, 8, 64, False, False), 0, 0, 0, 0, 0)


@pytest.mark.skipif(NVCC is None, reason="no nvcc")
def test_library_builds_with_nvcc_and_exports_one_function(tmp_path: Path) -> None:
    """CUDA's own functions must not leak: the process may have another runtime."""
    tree = SourceTree(tmp_path)
    path = "build/cuda-sm_90/libstep03.so"
    done = tree.make("BACKEND=cuda", "ARCH=sm_90", path)
    assert done.returncode == 0, done.stderr
    symbols = subprocess.run(["nm", "-D", tree.root / path], capture_output=True, text=True,
                             check=True)
    assert re.findall(r" [A-TV-Z] (\w+)$", symbols.stdout, re.MULTILINE) == ["step_forward"]
    assert not re.search(r" U cu", symbols.stdout)


# --- The comparison: what needs no GPU -----------------------------------------------------------

def test_shapes_have_as_many_queries_and_as_wide_a_model() -> None:
    shapes = compare_fa2.shapes()
    assert len(set(shapes)) == 8
    for shape in shapes:
        assert shape.batch * shape.seqlen == 16384 and shape.heads * shape.head_dim == 2048
        assert shape.kv_heads == shape.heads and shape.seqlen_kv == shape.seqlen


def test_flops_are_those_of_the_programs(tmp_path: Path) -> None:
    p = Problem(batch=2, heads=3, seqlen=90, mask="causal")
    Program("step02").run_right(*p.options(), "-c", "none", "-j", tmp_path / "row.json")
    assert compare_fa2.flops(shape_of(p)) == read_rows(tmp_path / "row.json")[0]["flops"]


def test_rows() -> None:
    """Times 1 to 11: median 6, first and last decile 2 and 10. Twice as slow as the other's 3."""
    shape = compare_fa2.shapes()[1]
    times = [float(i) for i in range(11, 0, -1)]
    environment = {"commit": "abc", "date": "2030-01-01T00:00:00Z"}
    step = compare_fa2.row_of("step03", shape, times, 3.0, 1e-4, environment)
    assert json.loads(json.dumps(step)) == step
    assert (step["median_ms"], step["p10_ms"], step["p90_ms"], step["samples"]) == (6, 2, 10, 11)
    assert step["speed_over_fa2"] == 0.5 and step["mask"] == "causal" and step["commit"] == "abc"
    assert step["tflops"] == pytest.approx(step["flops"] / 6e-3 / 1e12)
    peer = compare_fa2.row_of(compare_fa2.PEER, shape, times, 6.0, None, environment)
    assert "step" not in peer and peer["peer"] == "FlashAttention-2" and peer["speed_over_fa2"] == 1
    # The README's table wants checked answers.
    assert ladder.latest_of_each_step([step, peer]) == []


def test_contestants_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each once a round; the first three rounds do not count."""
    calls = []
    monkeypatch.setattr(compare_fa2.Contest, "time_ms",
                        lambda self, call: calls.append(call) or len(calls))
    contest = object.__new__(compare_fa2.Contest)
    contest.calls = {"step03": "a", "step04": "b", compare_fa2.PEER: "c"}
    times = contest.measure(2)
    assert "".join(calls) == "abc" * 5
    assert times == {"step03": [10, 13], "step04": [11, 14], compare_fa2.PEER: [12, 15]}


@pytest.mark.parametrize("difference, code", [(1e-4, 0), (0.1, 1), (math.nan, 1)])
def test_comparison_writes_rows_and_judges(difference: float, code: int, tmp_path: Path,
                                           monkeypatch: pytest.MonkeyPatch,
                                           capsys: pytest.CaptureFixture) -> None:
    """With stand-ins for PyTorch and for what is measured by it."""
    library = tmp_path / "libstep03.so"
    library.touch()
    path = tmp_path / "rows.jsonl"
    monkeypatch.setattr(sys, "argv", ["compare_fa2.py", "--rounds", "4", str(path), str(library)])
    monkeypatch.setitem(sys.modules, "torch", MagicMock())
    monkeypatch.setattr(compare_fa2, "StepLibrary",
                        lambda path: SimpleNamespace(name=path.stem[3:]))
    monkeypatch.setattr(compare_fa2, "environment_of", lambda torch: {"commit": "abc"})
    monkeypatch.setattr(compare_fa2.Contest, "time_ms", lambda self, call: 2.0)
    monkeypatch.setattr(compare_fa2.Contest, "differences", lambda self: {"step03": difference})
    assert compare_fa2.main() == code
    rows = read_rows(path)
    assert len(rows) == 2 * 8 and [row.get("step") for row in rows] == ["step03", None] * 8
    assert {row["median_ms"] for row in rows} == {2.0} and {row["samples"] for row in rows} == {4}
    said = capsys.readouterr()
    assert said.out.count(" step03 ") == 8
    assert said.err.count("step03 differs from FlashAttention-2") == 8 * code


@pytest.mark.parametrize("words, code, said", [
    (["rows"], 2, "usage: "),
    (["--rounds", "1", "rows", "lib"], 2, "--rounds 1: must be at least 2"),
    (["rows", "nowhere.so"], 2, r"nowhere\.so: no such file; make libraries BACKEND=cuda\n"),
    (["rows", __file__], 77, r"compare_fa2: Python needs PyTorch\. Install it: .*\n"),
])
def test_comparison_says_what_is_missing(tmp_path: Path, words: list[str], code: int,
                                         said: str) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError\n")
    command = [sys.executable, REPOSITORY / "tests/gpu/compare_fa2.py", *words]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)},
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code and re.search(said, done.stderr)
    assert not (tmp_path / "rows").exists()
