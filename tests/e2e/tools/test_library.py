"""Steps as shared libraries, called from Python."""

import math
import os
import re
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.lib import masks
from tests.lib.reference import bf16_bits
from tests.lib.generators import rounded_inputs
from tests.e2e.tools.library_calls import Call, Device, library_of, program_mask, shape_of
from tests.lib.problem import Problem
from tests.lib.programs import Program, write_inputs
from tests.lib.source_tree import SourceTree
from step_library import BlockMask, Shape

NVCC = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")

SMALL = Shape(1, 1, 1, 8, 8, 64, False, False)


@pytest.mark.parametrize("p", [
    Problem(batch=2, heads=4, kv_heads=2, seqlen=70, seqlen_kv=101, head_dim=64, mask="causal"),
    Problem(heads=2, seqlen=133, seqlen_kv=70, head_dim=128, dtype="bf16"),
], ids=["fp16 causal", "bf16 full"])
def test_library_gives_the_bits_of_the_program(step: Program, p: Problem, tmp_path: Path) -> None:
    """O and LSE of the same inputs; a step that takes block masks has that of its program."""
    inputs = [x.astype(np.float16) if p.dtype == "fp16" else bf16_bits(x)
              for x in rounded_inputs(p)]
    expected, _ = step.solve(
        tmp_path / "out", *p.options_with_files(write_inputs(tmp_path / "in", *inputs)))
    library = library_of(step.name)
    mask = program_mask(step, p, tmp_path / "mask") if library.takes_block_masks else None
    with Device(library) as device:
        assert Call(device, library, p, inputs, mask).result().same_bits(expected)


def test_workspace_of_any_size_gives_the_same_bits() -> None:
    """Room for one head of four: as many passes."""
    p = Problem(batch=2, heads=2, seqlen=70)
    inputs = [x.astype(np.float16) for x in rounded_inputs(p)]
    library = library_of("step01")
    one_head = library.workspace_bytes(shape_of(p), 0)
    assert library.workspace_bytes(shape_of(p), 1 << 40) == 4 * one_head > 0
    with Device(library) as device:
        calls = [Call(device, library, p, inputs, free_bytes=heads * one_head) for heads in (1, 4)]
        assert calls[0].result().same_bits(calls[1].result())


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
    library = library_of("step05")
    with Device(library) as device:
        assert Call(device, library, p, inputs, m).result().same_bits(expected)


@pytest.mark.cpu_only("it is about the speed of the CPU backend")
@pytest.mark.skipif("SIMT_SLOW" in os.environ, reason="SIMT_SLOW: no verdict on speed")
@pytest.mark.parametrize("name", ["step03", "step04"])
def test_small_problem_is_quick(name: str) -> None:
    """B=1 H=2 N=256 D=64 in 15 ms on two cores. The best of many, for the sake of busy machines."""
    p = Problem(heads=2, seqlen=256, head_dim=64)
    library = library_of(name)
    best = math.inf
    with Device(library) as device:
        call = Call(device, library, p, [x.astype(np.float16) for x in rounded_inputs(p)])
        for _ in range(100):
            start = time.perf_counter()
            call.enqueue()
            best = min(best, time.perf_counter() - start)
            if best < 0.015:
                return
    raise AssertionError(f"{name}: {1e3 * best:.1f} ms")


def test_two_libraries_do_not_mix() -> None:
    """Both have a `step`; each must find its own, whose name the refusal tells."""
    refused = Shape(1, 1, 1, 8, 8, 40, False, False)
    libraries = [library_of(name) for name in ("step03", "step04")]
    for library in libraries:
        with pytest.raises(ValueError, match=f"--head-dim 40: {library.name} takes 32, 64"):
            library.forward(refused, 0, 0, 0, 0, 0)


@pytest.mark.parametrize("name, need", [("step01", "a workspace of 256 bytes or more, not 255"),
                                        ("step05", "a block mask")])
def test_library_says_what_is_missing(name: str, need: str) -> None:
    with pytest.raises(ValueError, match=f"{name} needs {need}"):
        library_of(name).forward(SMALL, 0, 0, 0, 0, 0, workspace_bytes=255)


def test_library_refuses_masks() -> None:
    """A mask for a step without, blocks that do not fit the tiles: before anything is looked at."""
    with pytest.raises(ValueError, match="step04 takes no block mask"):
        library_of("step04").forward(SMALL, 0, 0, 0, 0, 0, mask=BlockMask())
    step05 = library_of("step05")
    odd = BlockMask(q_block_size=64, kv_block_size=32)
    for call in (lambda: step05.prepared_bytes(SMALL, odd), lambda: step05.prepare(SMALL, odd, 256),
                 lambda: step05.forward(SMALL, 0, 0, 0, 0, 0, mask=odd)):
        with pytest.raises(ValueError, match="mask blocks of 64x32: step05 takes multiples of 64"):
            call()


@pytest.mark.skipif(NVCC is None, reason="no nvcc")
def test_library_builds_with_nvcc_and_exports_its_functions(tmp_path: Path) -> None:
    """CUDA's own functions must not leak: the process may have another runtime."""
    tree = SourceTree(tmp_path)
    path = "build/cuda-sm_90/libstep03.so"
    done = tree.make("BACKEND=cuda", "ARCH=sm_90", path)
    assert done.returncode == 0, done.stderr
    symbols = subprocess.run(["nm", "-D", tree.root / path], capture_output=True, text=True,
                             check=True)
    assert re.findall(r" [A-TV-Z] (\w+)$", symbols.stdout, re.MULTILINE) == [
        "step_forward", "step_prepare", "step_takes_block_masks", "step_workspace"]
    assert not re.search(r" U cu", symbols.stdout)
