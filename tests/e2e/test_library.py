"""Steps as shared libraries, called from Python."""

import ctypes
import math
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import masks_numpy as masks
from attention_numpy import bf16_bits
from generator_numpy import rounded_inputs
from problem import Problem
from programs import REPOSITORY, STEP_DIR, Program, Result, step_names, write_inputs
from source_tree import SourceTree

sys.path.insert(0, str(REPOSITORY / "tests" / "gpu"))
from step_library import BlockMask, Shape, StepLibrary, block_mask  # noqa: E402

NVCC = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")

# What a call has no argument for.
UNCALLABLE = {"step01": "workspace", "step05": "block mask"}

SMALL = Shape(1, 1, 1, 8, 8, 64, False, False)


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


def solve(library: StepLibrary, p: Problem, inputs: list[np.ndarray],
          m: masks.BlockMask | None = None) -> Result:
    """O and LSE as the program would write them."""
    device = Device(library.library)
    mask = {} if m is None else upload_mask(device, library, p, m)
    o = np.full(p.q_shape(), 0xffff, np.uint16)
    lse = np.full(p.q_shape()[:3], np.nan, np.float32)
    pointers = [device.upload(array) for array in (*inputs, o, lse)]
    library.forward(shape_of(p), *pointers, **mask)
    o = device.download(pointers[3], o)
    o = o.view(np.float16) if p.dtype == "fp16" else (o.astype(np.uint32) << 16).view(np.float32)
    return Result(o, device.download(pointers[4], lse))


def upload_mask(device: Device, library: StepLibrary, p: Problem, m: masks.BlockMask) -> dict:
    """The arguments of forward() for a mask that is prepared."""
    mask = block_mask([tensor.shape for tensor in m.tensors()],
                      [device.upload(tensor) for tensor in m.tensors()])
    prepared = device.upload(np.zeros(library.prepared_bytes(shape_of(p), mask), np.uint8))
    library.prepare(shape_of(p), mask, prepared)
    return {"mask": mask, "prepared": prepared}


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


@pytest.mark.cpu_only("NumPy has no memory on a GPU; compare_flex.py calls the library there")
@pytest.mark.parametrize("each_head", [False, True], ids=["one mask", "a mask for each head"])
def test_library_takes_block_masks(each_head: bool, tmp_path: Path) -> None:
    """All kinds of blocks, of two sizes, in no order; heads that share some of the tensors."""
    p = Problem(batch=2, heads=2, seqlen=300, seqlen_kv=330, mask_block=(128, 64))
    dense = np.stack([masks.preset(replace(p, mask=mask))
                      for mask in ("prefix:100", "window:150")[:1 + each_head]])[None]
    m = masks.disordered(masks.from_dense(dense, p.mask_block), np.random.default_rng(1))
    m = masks.with_fewest_copies(m)
    p = replace(p, mask=str(m.write(tmp_path / "mask")))
    inputs = [x.astype(np.float16) for x in rounded_inputs(p)]
    expected, row = Program("step05").solve(
        tmp_path / "out", *p.options_with_files(write_inputs(tmp_path / "in", *inputs)))
    assert min(row[f"mask_blocks_{kind}"] for kind in ("full", "causal", "partial")) > 0
    assert solve(StepLibrary(STEP_DIR / "libstep05.so"), p, inputs, m).same_bits(expected)


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
        library.forward(SMALL, 0, 0, 0, 0, 0)


def test_library_refuses_masks() -> None:
    """A mask for a step without, blocks that do not fit the tiles: before anything is looked at."""
    with pytest.raises(ValueError, match="step04 takes no block mask"):
        StepLibrary(STEP_DIR / "libstep04.so").forward(SMALL, 0, 0, 0, 0, 0, mask=BlockMask())
    step05 = StepLibrary(STEP_DIR / "libstep05.so")
    odd = BlockMask(q_block_size=64, kv_block_size=32)
    for call in (lambda: step05.prepared_bytes(SMALL, odd), lambda: step05.prepare(SMALL, odd, 256),
                 lambda: step05.forward(SMALL, 0, 0, 0, 0, 0, mask=odd)):
        with pytest.raises(ValueError, match="mask blocks of 64x32: step05 takes multiples of 64"):
            call()


@pytest.mark.skipif(NVCC is None, reason="no nvcc")
def test_library_builds_with_nvcc_and_exports_two_functions(tmp_path: Path) -> None:
    """CUDA's own functions must not leak: the process may have another runtime."""
    tree = SourceTree(tmp_path)
    path = "build/cuda-sm_90/libstep03.so"
    done = tree.make("BACKEND=cuda", "ARCH=sm_90", path)
    assert done.returncode == 0, done.stderr
    symbols = subprocess.run(["nm", "-D", tree.root / path], capture_output=True, text=True,
                             check=True)
    assert re.findall(r" [A-TV-Z] (\w+)$", symbols.stdout, re.MULTILINE) == [
        "step_forward", "step_prepare"]
    assert not re.search(r" U cu", symbols.stdout)
