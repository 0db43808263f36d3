"""Decode steps called with NumPy arrays: K and V with lengths, in pages or not."""

from dataclasses import replace

import numpy as np
import pytest

from common.python import attention_steps
from common.python.attention_steps import StepError
from tests.lib.decode import DecodeProblem, drawn_table, pages_of
from tests.lib.reference import mistakes, to_e4m3
from tests.lib.steps import source_of, step_names

P = DecodeProblem(batch=3, heads=4, kv_heads=2, head_dim=64, lengths=(70, 1, 33))


@pytest.fixture(scope="module", params=["first", "with pages", "own"])
def step(request: pytest.FixtureRequest) -> attention_steps.Step:
    """The first decode step, the first that takes pages, and its source as a file of one's own."""
    steps = [attention_steps.step(name.removeprefix("step")) for name in step_names("decode")]
    if request.param == "first":
        return steps[0]
    paged = next(step for step in steps if step.facts["page_sizes"])
    return paged if request.param == "with pages" else attention_steps.build(source_of(paged.name).path)


def halves(p: DecodeProblem) -> list[np.ndarray]:
    return [x.astype(np.float16) for x in p.drawn()]


@pytest.mark.parametrize("mask", ["causal", "full"])
def test_lengths(step: attention_steps.Step, mask: str) -> None:
    p = replace(P, mask=mask)
    inputs = halves(p)
    o, lse = step(*inputs, lengths=p.lengths, mask=mask)
    assert mistakes(p.answer(*p.rounded(*inputs)), o.astype(np.float64), lse.astype(np.float64)) == []


def test_pages(step: attention_steps.Step) -> None:
    if not step.facts["page_sizes"]:
        pytest.skip("it takes no pages")
    p = replace(P, page_size=16)
    q, k, v = halves(p)
    expected = step(q, k, v, lengths=p.lengths)
    table, pages = drawn_table(p, np.random.default_rng(1))
    k, v = (pages_of(p, x, table, pages, np.nan) for x in (k, v))
    found = step(q, k, v, lengths=p.lengths, page_table=table)
    assert all((a == b).all() for a, b in zip(found, expected, strict=True))
    report = step.lab(q, k, v, lengths=p.lengths, page_table=table)
    assert report.right and report.findings == []


def test_a_cache_in_e4m3() -> None:
    steps = map(attention_steps.step, reversed(step_names("decode")))
    called, p = next(step for step in steps if "e4m3" in step.facts["kv_dtypes"]), replace(P, lengths=(70, 70, 70))
    q, k, v = p.drawn()
    (k_bits, k_scales), (v_bits, v_scales) = (to_e4m3(x, p.kv_heads) for x in (k, v))
    expected = called(q, k, v, lengths=p.lengths, kv_dtype="e4m3")
    found = called(q, k_bits, v_bits, lengths=p.lengths, k_scales=k_scales, v_scales=v_scales)
    assert all((a == b).all() for a, b in zip(found, expected, strict=True))
    with pytest.raises(StepError, match="v_scales: must be given only with v of type uint8"):
        called(q, k_bits, v, lengths=p.lengths, k_scales=k_scales, v_scales=v_scales)
    with pytest.raises(StepError, match="k_scales: cannot open"):
        called(q, k_bits, v_bits, lengths=p.lengths)


def test_refusals(step: attention_steps.Step) -> None:
    inputs = halves(P)
    with pytest.raises(StepError, match=r"lengths: element \[2\] is 99, must be from 0 to 70"):
        step(*inputs, lengths=(70, 1, 99))
    with pytest.raises(StepError, match="needs lengths"):
        step(*inputs)
    for wrong, why in ((33.5, "type '<f8': expected <i4"), (2**32 + 33, "must be from 0 to 70"), (np.nan, "'<f8'")):
        with pytest.raises(StepError, match="lengths: element .*" + why):
            step(*inputs, lengths=np.array([70, 1, wrong]))
    with pytest.raises(StepError, match="takes no lengths"):
        attention_steps.step(step_names()[0].removeprefix("step"))(*inputs, lengths=P.lengths)


def test_a_cache_of_bits() -> None:
    """e4m3 with scales, given as bits: 0x38 is 1, 0xC0 is -2, and all keys are alike."""
    step = next(
        step for name in step_names("decode") if "e4m3" in (step := attention_steps.step(name[4:])).facts["kv_dtypes"]
    )
    q = np.ones((2, 4, 1, 64), np.float16)
    k, v = (np.full((2, 2, 40, 64), bits, np.uint8) for bits in (0x38, 0xC0))
    scales = np.array([[1, 2], [3, 0.5]], np.float32)
    o, lse = step(q, k, v, lengths=[40, 7], k_scales=np.ones((2, 2)), v_scales=scales)
    assert (o[..., 0, 0] == -2 * scales.repeat(2, 1)).all()
    assert np.allclose(lse[:, 0, 0], np.log([40, 7]) + 8, atol=1e-3)
