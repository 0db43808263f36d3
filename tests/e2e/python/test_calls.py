"""Steps called with NumPy arrays."""

import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from common.python import attention_steps
from common.python.attention_steps import StepError
from common.python.attention_steps.library import MASK_FILES
from tests.lib import gradients, masks
from tests.lib.generators import rounded_inputs
from tests.lib.kinds import FACTS, MASK_STEPS, NAIVE, SPAN_STEPS
from tests.lib.problem import Problem
from tests.lib.programs import Program
from tests.lib.reference import attention, bf16_bits, mistakes
from tests.lib.steps import step_names

BACKWARD = [Program(name) for name in step_names("backward")]
SPAN_GRADIENTS = [step.name for step in BACKWARD if "spans" in step.facts["masks"]]
P = Problem(batch=2, heads=4, kv_heads=2, seqlen=70, seqlen_kv=101, head_dim=64)


def called(name: str, *arrays: np.ndarray, **more: object) -> tuple[np.ndarray, ...]:
    return attention_steps.step(name.removeprefix("step"))(*arrays, **more)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_a_call_gives_the_bits_of_the_program(kind_step: Program, dtype: str, tmp_path: Path) -> None:
    p = Problem(batch=2, heads=4, kv_heads=2, seqlen=70, seqlen_kv=101, head_dim=64, mask="causal", dtype=dtype)
    p = p.for_step(kind_step)
    inputs = [x.astype(np.float16) if dtype == "fp16" else bf16_bits(x) for x in rounded_inputs(p)]
    expected, _ = kind_step.solve(tmp_path / "out", *p.options_with_files(tmp_path / "in", *inputs))
    o, lse = called(kind_step.name, *inputs, mask="causal")
    if dtype == "bf16":
        expected.o = bf16_bits(expected.o)
    assert (o.tobytes(), lse.tobytes()) == (expected.o.tobytes(), expected.lse.tobytes())
    assert (o.shape, o.dtype) == (inputs[0].shape, inputs[0].dtype)


def test_numbers_have_the_form_of_the_first_array() -> None:
    inputs = [x[0].astype(np.float32) for x in rounded_inputs(replace(P, dtype="bf16"))]
    halves = [x.astype(np.float16) for x in inputs]
    o, lse = called(NAIVE, *inputs)
    exact, exact_lse = called(NAIVE, *halves)
    assert (o.dtype, o.shape, lse.shape) == (np.float32, P.q_shape()[1:], P.q_shape()[1:3])
    assert (o == exact).all() and (lse == exact_lse).all()
    bits, _ = called(NAIVE, *map(bf16_bits, inputs))
    wide, _ = called(NAIVE, *inputs, dtype="bf16")
    assert bits.dtype == np.uint16 and (bf16_bits(wide) == bits).all()


def test_views_of_any_strides_are_read_right() -> None:
    inputs = [x.astype(np.float16) for x in rounded_inputs(P)]
    expected = called(NAIVE, *inputs)
    for view in (
        lambda x: np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2),
        lambda x: np.repeat(x, 2, axis=3)[..., ::2],
        lambda x: x[..., ::-1].copy()[..., ::-1],
        np.asfortranarray,
        lambda x: x.astype(">f2"),
        lambda x: np.frombuffer(x.tobytes(), np.float16).reshape(x.shape),  # read-only
    ):
        assert all((a == b).all() for a, b in zip(called(NAIVE, *map(view, inputs)), expected, strict=True))


@pytest.mark.parametrize("name", [MASK_STEPS[0], SPAN_STEPS[0]])
@pytest.mark.parametrize("mask", ["window:20", "document:3", "empty"])
def test_a_mask_may_be_an_array(name: str, mask: str) -> None:
    p = Problem(batch=2, heads=4, kv_heads=2, seqlen=70, seqlen_kv=101, mask=mask)
    inputs = rounded_inputs(p)
    halves = [x.astype(np.float16) for x in inputs]
    by_name, by_array = (called(name, *halves, mask=given) for given in (mask, masks.preset(p)))
    assert all((a == b).all() for a, b in zip(by_name, by_array, strict=True))
    assert mistakes(attention(p, *inputs, masks.preset(p)), *(x.astype(np.float64) for x in by_name)) == []


def test_a_mask_may_be_lists_of_blocks() -> None:
    p = Problem(heads=2, seqlen=200, mask="window:70")
    halves = [x.astype(np.float16) for x in rounded_inputs(p)]
    lists = masks.from_dense(masks.preset(p)[None, None], (64, 64))
    tensors = dict(zip(MASK_FILES, lists.tensors(), strict=True))
    found, expected = (called(MASK_STEPS[0], *halves, mask=mask) for mask in (tensors, p.mask))
    assert np.abs(found[0].astype(float) - expected[0]).max() < 2e-3 and np.allclose(found[1], expected[1])
    with pytest.raises(StepError, match="kv_indices: "):
        called(MASK_STEPS[0], *halves, mask=tensors | {"kv_indices": np.zeros(3)})


def test_each_head_may_have_its_own_mask() -> None:
    p = Problem(heads=2, seqlen=130)
    attended = np.random.default_rng(3).random((1, 2, 130, 130)) < 0.3
    inputs = rounded_inputs(p)
    found = called(MASK_STEPS[0], *(x.astype(np.float16) for x in inputs), mask=attended)
    assert mistakes(attention(p, *inputs, attended), *(x.astype(np.float64) for x in found)) == []


@pytest.mark.parametrize("name", [BACKWARD[0].name, SPAN_GRADIENTS[0]])
@pytest.mark.parametrize("mask", ["causal", "window:20"])
def test_backward_steps_give_gradients(name: str, mask: str) -> None:
    p = Problem(batch=2, heads=4, kv_heads=2, seqlen=70, seqlen_kv=101, mask=mask)
    tensors = gradients.draw(p, seed=7)
    halves = [x.astype(np.float16) for x in tensors]
    if mask != "causal" and name not in SPAN_GRADIENTS:
        with pytest.raises(StepError, match=f"--mask {mask}: {name} takes full or causal"):
            called(name, *halves, mask=mask)
        return
    expected = gradients.gradients(p, *tensors)
    assert max(gradients.distances(called(name, *halves, mask=mask), expected)) < gradients.MOST["fp16"]
    _, o, lse = gradients.forward(p, tensors[0], *(np.repeat(x, 2, axis=1) for x in tensors[1:3]))
    found = called(name, *halves, o.astype(np.float16), lse.astype(np.float32), mask=mask)
    assert max(gradients.distances(found, expected)) < gradients.MOST["fp16"]
    wrong = called(name, *halves, np.zeros_like(halves[0]), lse.astype(np.float32), mask=mask)
    assert max(gradients.distances(wrong, expected)) > gradients.MOST["fp16"]
    with pytest.raises(StepError, match="lse"):
        called(name, *halves, o.astype(np.float16), mask=mask)
    for bits, exact in zip(called(name, *map(bf16_bits, tensors), mask=mask), expected, strict=True):
        assert bits.dtype == np.uint16 and bits.shape == exact.shape


def test_a_call_takes_little_beyond_its_program(tmp_path: Path) -> None:
    inputs = [x.astype(np.float16) for x in rounded_inputs(P)]
    words = *P.options_with_files(tmp_path, *inputs), "--check=none", "--repeat=0", "--output"

    def least(call: Callable[[int], object]) -> float:
        times = []
        for i in range(5):
            start = time.perf_counter()
            call(i)
            times.append(time.perf_counter() - start)
        return min(times)

    program = least(lambda i: Program(NAIVE).run_right(*words, tmp_path / f"out{i}"))
    assert least(lambda _: called(NAIVE, *inputs)) < program + 0.2


def test_calls_may_come_from_several_threads() -> None:
    inputs = [x.astype(np.float16) for x in rounded_inputs(P)]
    names = ["full", "causal"] * 4
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda mask: called(NAIVE, *inputs, mask=mask)[0], names))
    assert all((o == found[i % 2]).all() for i, o in enumerate(found)) and (found[0] != found[1]).any()


def test_paths_are_those_of_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    p = Problem(heads=2, seqlen=70)
    halves = [x.astype(np.float16) for x in rounded_inputs(p)]
    np.save("my mask.npy", np.tri(70, dtype=bool))
    found, expected = (called(MASK_STEPS[0], *halves, mask=mask) for mask in ("my mask.npy", "causal"))
    assert all((a == b).all() for a, b in zip(found, expected, strict=True))


def test_refusals_are_one_line() -> None:
    q, k, v = (x.astype(np.float16) for x in rounded_inputs(P))
    tiled = next(name for name, facts in FACTS.items() if facts["head_dims"] != "any" and facts["masks"][2:] == [])
    large = np.full(q.shape, 1e6, np.float32)
    for arrays, more, why in (
        ((q, k, v[:, :, :3]), {}, "v: dimension 2 is 3, but 101 in k.npy"),
        ((q[:, :3], k, v), {}, "k: 2 heads, must divide the 3 of q"),
        ((q, k.astype(int), v), {}, "k: element type '<i8': expected <f2, <f4 or <f8"),
        ((q, k, v[:, :, :0]), {}, "v: dimension 2 is 0, must be from 1 to 2^30"),
        ((q[..., :40], k[..., :40], v[..., :40]), {}, "--head-dim 40: " + tiled + " takes D = 32, 64,"),
        ((q[0, 0], k, v), {}, "q: has 2 dimensions, must have 4: [B, H, N, D]"),
        ((None, k, v), {}, "q: element type '|O'"),
        ((q, k, v), {"mask": "window:3"}, f"--mask window:3: {tiled} takes full or causal"),
        ((q, k, v), {"dtype": "fp8"}, "--dtype fp8: must be fp16 or bf16"),
        ((q, k, v), {"scale": -1.0}, "--scale -1.0: must be positive, from"),
        ((q, k, v), {"lengths": [3, 3]}, f"{tiled} takes no lengths"),
        ((q, k, v), {"lse": q[..., 0]}, f"{tiled} takes no lse"),
        ((q, k, v), {"k_scales": np.ones((2, 2))}, f"{tiled} takes no k_scales"),
        ((q, k, v), {"kv_dtype": "e4m3"}, f"--kv-dtype: {tiled} is no decode step"),
        ((q, k, v, q), {}, f"{tiled} takes no d_o"),
        ((large, large, large), {}, "q: element [0, 0, 0, 0] is 1e+06, beyond the largest fp16"),
    ):
        with pytest.raises(StepError, match=re.escape(why)) as refused:
            called(tiled, *arrays, **more)
        assert "\n" not in str(refused.value)
    with pytest.raises(StepError, match="there is none of this name, must be one of"):
        attention_steps.step("99")
    for mask, why in (
        (np.ones((3, 101), bool), r"is a mask of \[Nq, Nkv\] = \[3, 101\]"),
        (np.ones((70, 101)), "'<f8'"),
        (True, "has 0 dimensions"),
        (((1.0,) * 101,) * 70, "'<f8'"),
    ):
        with pytest.raises(StepError, match="mask: .*" + why):
            called(MASK_STEPS[0], q, k, v, mask=mask)
    with pytest.raises(StepError, match=f"^{BACKWARD[0].name}: has o.npy but no lse.npy"):
        called(BACKWARD[0].name, q, k, v, q, q)
    with pytest.raises(StepError, match=f"{BACKWARD[0].name} needs d_o"):
        called(BACKWARD[0].name, q, k, v)
