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

from common.python.attention_steps.library import BlockMask, Shape, span_mask
from plots.bench.device import Device
from tests.e2e.bench.step_calls import Call, library_of, shape_of
from tests.lib import masks
from tests.lib.generators import rounded_inputs
from tests.lib.kinds import FACTS, MASK_STEPS, MMA_STEPS, NAIVE
from tests.lib.problem import Problem
from tests.lib.programs import Program
from tests.lib.reference import bf16_bits
from tests.lib.source_tree import SourceTree
from tests.lib.steps import step_names

NVCC = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")

DECODE = step_names("decode")[0]
SMALL = Shape(1, 1, 1, 8, 8, 64, False, False)


def program_mask(program: Program, p: Problem, directory: Path) -> masks.BlockMask:
    """The block mask that a program builds for the problem."""
    program.run_right(*p.options(), "--check", "none", "--save-mask", directory)
    return masks.read(directory)


@pytest.mark.parametrize(
    "p",
    [
        Problem(batch=2, heads=4, kv_heads=2, seqlen=70, seqlen_kv=101, head_dim=64, mask="causal"),
        Problem(heads=2, seqlen=133, seqlen_kv=70, head_dim=128, dtype="bf16"),
    ],
    ids=["fp16 causal", "bf16 full"],
)
def test_library_gives_the_bits_of_the_program(kind_step: Program, p: Problem, tmp_path: Path) -> None:
    """O and LSE of the same inputs; steps with block masks get the mask that the program built."""
    library = library_of(kind_step.name)
    if library.takes_e4m3:
        pytest.skip("test_inputs_in_e4m3_are_those_of_the_programs")
    p = p.for_step(kind_step)
    inputs = [x.astype(np.float16) if p.dtype == "fp16" else bf16_bits(x) for x in rounded_inputs(p)]
    expected, _ = kind_step.solve(tmp_path / "out", *p.options_with_files(tmp_path / "in", *inputs))
    if library.takes_spans:
        ends = np.arange(p.seqlen) + 1 + p.seqlen_kv - p.seqlen if p.mask == "causal" else p.seqlen_kv
        spans = np.zeros((1, 1, p.seqlen, 2), np.int32)
        spans[..., 1] = np.maximum(ends, 0)
        kept = Device(library).upload(spans)
        mask = span_mask(spans.shape, kept.address)
    else:
        mask = program_mask(kind_step, p, tmp_path / "mask") if library.takes_block_masks else None
    assert Call(library, p, inputs, mask).result().same_bits(expected)


def test_workspace_of_any_size_gives_the_same_bits() -> None:
    """A workspace for one of four heads needs four passes."""
    p = Problem(batch=2, heads=2, seqlen=70)
    inputs = [x.astype(np.float16) for x in rounded_inputs(p)]
    library = library_of(NAIVE)
    one_head = library.workspace_bytes(shape_of(p), 0)
    assert library.workspace_bytes(shape_of(p), 1 << 40) == 4 * one_head > 0
    calls = [Call(library, p, inputs, free_bytes=heads * one_head) for heads in (1, 4)]
    assert calls[0].result().same_bits(calls[1].result())


def test_library_takes_block_masks(tmp_path: Path) -> None:
    """Blocks of all types, in random order, a different mask for each head."""
    p = Problem(batch=2, heads=2, seqlen=300, seqlen_kv=330, mask_block=(128, 64))
    dense = np.stack([masks.preset(replace(p, mask=mask)) for mask in ("prefix:100", "window:150")])
    m = masks.disordered(masks.from_dense(dense[None], p.mask_block), np.random.default_rng(1))
    m = masks.with_fewest_copies(m)
    p = replace(p, mask=str(m.write(tmp_path / "mask")))
    inputs = [x.astype(np.float16) for x in rounded_inputs(p)]
    expected, record = Program(MASK_STEPS[0]).solve(tmp_path / "out", *p.options_with_files(tmp_path / "in", *inputs))
    assert min(record[f"mask_blocks_{kind}"] for kind in ("full", "causal", "partial")) > 0
    call = Call(library_of(MASK_STEPS[0]), p, inputs, m)
    assert call.result().same_bits(expected)


@pytest.mark.cpu_only("it is about the speed of the CPU backend")
@pytest.mark.skipif(
    "SIMT_SLOW" in os.environ or os.getloadavg()[0] > 2 * os.cpu_count(),
    reason="SIMT_SLOW, or a busy machine: no verdict on speed",
)
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", MMA_STEPS[-2:])
def test_small_problem_is_quick(name: str) -> None:
    """B=1 H=2 N=256 D=64 takes at most 30 ms of CPU time on any number of cores."""
    p = Problem(heads=2, seqlen=256, head_dim=64)
    best = math.inf
    call = Call(library_of(name), p, [x.astype(np.float16) for x in rounded_inputs(p)])
    for _ in range(100):
        start = time.process_time()
        call.enqueue()
        best = min(best, time.process_time() - start)
        if best < 0.03:
            return
    raise AssertionError(f"{name}: {1e3 * best:.1f} ms")


def test_half_of_a_flush_is_overwritten_and_half_only_read() -> None:
    memory = Device(library_of(NAIVE)).upload(np.full(8192, 0xFF, np.uint8))
    memory.flush_l2()
    assert (memory.download(np.empty(8192, np.uint8)) == np.repeat([0, 0xFF], 4096)).all()


def test_libraries_refuse_in_one_sentence() -> None:
    """Each library finds its own `step`: the refusal has its name."""
    refused = Shape(1, 1, 1, 8, 8, 40, False, False)
    several = [name for name in MMA_STEPS if 32 in FACTS[name]["head_dims"]][-2:]
    for library in map(library_of, several):
        with pytest.raises(ValueError, match=f"--head-dim 40: {library.name} takes D = 32, 64,"):
            library.forward(refused, 0, 0, 0, 0, 0)
    for name, more, why in (
        (NAIVE, {"workspace_bytes": 255}, "needs a workspace of 256 bytes or more, not 255"),
        (MASK_STEPS[0], {}, "needs a block mask"),
        (several[-1], {"mask": BlockMask()}, "takes no block mask"),
    ):
        with pytest.raises(ValueError, match=f"{name} {why}"):
            library_of(name).forward(SMALL, 0, 0, 0, 0, 0, **more)
    for scale in (0.0, -0.125, math.inf, math.nan):
        shape = Shape(1, 1, 1, 8, 8, 64, False, False, scale=scale)
        with pytest.raises(ValueError, match=f"{NAIVE}: scale {scale:g}: must be positive and finite"):
            library_of(NAIVE).forward(shape, 0, 0, 0, 0, 0)
        with pytest.raises(ValueError, match=f"{DECODE}: scale {scale:g}: must be positive and finite"):
            library_of(DECODE).decode_bytes(shape, 0)
    for sizes in ((0, 1, 1, 8, 8), (1, 1, 1, 0, 8), (1, 1, 1, 8, 0)):
        with pytest.raises(ValueError, match=f"{NAIVE}: q, k, v: a dimension is 0"):
            library_of(NAIVE).forward(Shape(*sizes, 64, False, False), 0, 0, 0, 0, 0)
    odd = BlockMask(q_block_size=64, kv_block_size=32)
    with pytest.raises(ValueError, match="mask blocks of 64x32 .*: must be multiples of 64"):
        library_of(MASK_STEPS[0]).prepare(SMALL, odd, 256)
    with pytest.raises(ValueError, match=f"{MASK_STEPS[0]} takes no row spans"):
        library_of(MASK_STEPS[0]).prepare(SMALL, span_mask((1, 1, 8, 2), 256), 256)


@pytest.mark.skipif(NVCC is None, reason="no nvcc")
def test_library_builds_with_nvcc_and_exports_its_functions(tmp_path: Path) -> None:
    """CUDA's own functions must not be exported: the process may use another runtime."""
    tree = SourceTree(tmp_path)
    path = "build/cuda-sm_90/libstep01.so"  # of the step that compiles fastest
    tree.made("BACKEND=cuda", "ARCH=sm_90", "FAST=1", path)
    symbols = subprocess.run(["nm", "-D", tree.root / path], capture_output=True, text=True, check=True)
    exported = re.findall(r" [A-TV-Z] (\w+)$", symbols.stdout, re.MULTILINE)
    assert "step_forward" in exported
    assert all(name.startswith(("step_", "device_", "timer_")) for name in exported)
    assert not re.search(r" U cu", symbols.stdout)
