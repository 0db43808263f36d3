"""Steps called with NumPy arrays."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from common.python import attention_steps
from common.python.attention_steps import StepError
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
    turned = [np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2) for x in inputs]
    assert all((a == b).all() for a, b in zip(called(NAIVE, *inputs), called(NAIVE, *turned), strict=True))


@pytest.mark.parametrize("name", [MASK_STEPS[0], SPAN_STEPS[0]])
@pytest.mark.parametrize("mask", ["window:20", "document:3", "empty"])
def test_a_mask_may_be_an_array(name: str, mask: str) -> None:
    p = Problem(batch=2, heads=4, kv_heads=2, seqlen=70, seqlen_kv=101, mask=mask)
    inputs = rounded_inputs(p)
    halves = [x.astype(np.float16) for x in inputs]
    by_name, by_array = (called(name, *halves, mask=given) for given in (mask, masks.preset(p)))
    assert all((a == b).all() for a, b in zip(by_name, by_array, strict=True))
    assert mistakes(attention(p, *inputs, masks.preset(p)), *(x.astype(np.float64) for x in by_name)) == []


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


def test_refusals_are_one_line() -> None:
    q, k, v = (x.astype(np.float16) for x in rounded_inputs(P))
    tiled = next(name for name, facts in FACTS.items() if facts["head_dims"] != "any" and facts["masks"][2:] == [])
    large = np.full(q.shape, 1e6, np.float32)
    for arrays, more, why in (
        ((q, k, v[:, :, :3]), {}, f"{tiled}: v.npy: dimension 2 is 3, but 101 in k.npy"),
        ((q[:, :3], k, v), {}, f"{tiled}: k.npy: 2 heads, must divide the 3 of q.npy"),
        ((q, k.astype(np.float32), v), {}, "k: its type is float32, must be float16, as that of q"),
        ((q[..., :40], k[..., :40], v[..., :40]), {}, f"--head-dim 40: {tiled} takes D = 32, 64,"),
        ((q[0, 0], k, v), {}, "q: has the shape (70, 64), must be [H, N, D] or [B, H, N, D]"),
        ((q, k, v), {"mask": "window:3"}, f"--mask window:3: {tiled} takes full or causal"),
        ((q, k, v), {"mask": np.ones((70, 101))}, "mask: its type is float64, must be bool"),
        ((q, k, v), {"dtype": "fp8"}, "dtype='fp8': must be 'fp16' or 'bf16'"),
        ((q, k, v), {"scale": -1.0}, f"{tiled}: --scale -1.0: must be positive"),
        ((q, k, v, q), {}, f"{tiled} takes no d_o"),
        ((large, large, large), {}, "q: has numbers beyond the range of fp16"),
    ):
        with pytest.raises(StepError, match=re.escape(why)) as refused:
            called(tiled, *arrays, **more)
        assert "\n" not in str(refused.value)
    with pytest.raises(StepError, match="there is none of this name, must be one of"):
        attention_steps.step("99")
    with pytest.raises(StepError, match=r"mask.npy: is a mask of \[Nq, Nkv\] = \[3, 101\]"):
        called(MASK_STEPS[0], q, k, v, mask=np.ones((3, 101), bool))
    with pytest.raises(StepError, match=f"{BACKWARD[0].name} needs d_o"):
        called(BACKWARD[0].name, q, k, v)
