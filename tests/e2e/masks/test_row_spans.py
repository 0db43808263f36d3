"""Masks of one span of keys for each query, for the steps that take them, against NumPy."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from common.python.attention_steps.library import BlockMask, span_mask
from plots.bench.device import Device
from tests.e2e.bench.step_calls import Call, library_of
from tests.e2e.masks.test_masks import KV_LENGTHS, assert_right, preset_text, rows_of_low_scores
from tests.lib import masks
from tests.lib.generators import rounded_inputs
from tests.lib.kinds import SPAN_STEPS
from tests.lib.pairwise import pairwise
from tests.lib.problem import Problem
from tests.lib.programs import DEVICE, PAIRWISE_SEED, USAGE, Program

pytestmark = pytest.mark.parametrize("name", SPAN_STEPS)

PRESETS = [
    "full",
    "causal",
    "empty",
    "window:1",
    "window:65",
    "window:1000",
    "prefix:0",
    "prefix:%40",
    "prefix:%100",
    "document:1",
    "document:%7,50,51",
    "dilated:1",
    "interleaved:1",
    "random:1",
]
COMBINATIONS = pairwise(
    {
        "mask": PRESETS,
        "seqlen": [1, 63, 129, 270, 400],
        "kv": list(KV_LENGTHS),
        "head_dim": [64, 128],
        "dtype": ["fp16", "bf16"],
    },
    seed=PAIRWISE_SEED,
)


def test_presets_are_given_as_spans(name: str, tmp_path: Path) -> None:
    """Right answers; the record says the form. --save-mask writes blocks of 128 x 128."""
    problems = []
    for row in COMBINATIONS:
        kv_len = KV_LENGTHS[row["kv"]](row["seqlen"])
        problems.append(
            Problem(1, 2, 1, row["seqlen"], kv_len, row["head_dim"], row["dtype"], preset_text(row["mask"], kv_len))
        )
    lines = [[*p.options(), "--save-mask", tmp_path / f"mask{i}"] for i, p in enumerate(problems)]
    solved = Program(name).solve_all(tmp_path / "out", lines)
    for i, (p, (result, record)) in enumerate(zip(problems, solved, strict=True)):
        dense = masks.preset(p)
        assert_right(p, result, dense)
        assert (record["mask_form"], record["mask_bytes"]) == ("row spans", 8 * p.seqlen)
        assert "mask_blocks" not in record and "mask_block_q" not in record
        assert record["flops"] == 4 * p.head_dim * 2 * dense.sum()
        expected = masks.from_dense(dense[None, None], (128, 128))
        assert masks.read(tmp_path / f"mask{i}").same_as(expected), p.options()


@pytest.mark.parametrize("mask", ["blocks:1", "dilated:2", "random:0.5", "a directory"])
def test_other_masks_are_refused(name: str, tmp_path: Path, mask: str) -> None:
    p = Problem(heads=2, seqlen=200, mask=mask)
    if mask == "a directory":
        p = replace(p, mask="window:70")
        m = masks.from_dense(masks.preset(p)[None, None], (64, 64))
        p = replace(p, mask=str(m.write(tmp_path / "mask")))
    done = Program(name).run(*p.options())
    assert (done.returncode, done.stderr) == (
        USAGE,
        f"{name}: --mask: {name} takes at most one span of keys for each query, and no mask in blocks\n",
    )


def test_low_scores_after_tiles_that_a_row_does_not_attend(name: str, tmp_path: Path) -> None:
    """P of a row that has attended nothing yet: with scores of -87 or less, e^score is 0."""
    rows_of_low_scores(tmp_path)
    Program(name).run_right("-i", tmp_path, "-m", "document:3", "--check", "all")


def test_any_strides(name: str) -> None:
    """Spans of each batch entry and head, or for all; half of them end before they begin. Poison
    between heads and batch entries."""
    p = Problem(batch=2, heads=4, kv_heads=2, seqlen=200, seqlen_kv=270)
    library, rng = library_of(name), np.random.default_rng(PAIRWISE_SEED)
    inputs = [x.astype(np.float16) for x in rounded_inputs(p)]
    for shape in ((2, 4), (2, 1), (1, 4), (1, 1)):
        spans = rng.integers(0, 271, (*shape, 200, 2), np.int32)
        memory = np.full((shape[0], shape[1] + 1, 203, 2), masks.POISON, np.int32)
        memory[:, :-1, :200] = spans
        kept = Device(library).upload(memory)
        m: BlockMask = span_mask((*shape, *spans.shape[2:]), kept.address)
        m.span_strides[:] = [(shape[1] + 1) * 203 * (shape[0] > 1), 203 * (shape[1] > 1)]
        k = np.arange(270)
        dense = (spans[..., :1] <= k) & (k < spans[..., 1:])
        assert_right(p, Call(library, p, inputs, m).result(), dense)


@pytest.mark.cpu_only("a GPU would run it")
def test_a_million_queries(name: str) -> None:
    """The kernel starts: it is stopped at once."""
    p = Problem(seqlen=1_000_000, mask="window:4096", input="constant")
    done = Program(name).run(*p.options(), "--time-limit", "0.01")
    assert (done.returncode, "time limit" in done.stderr) == (DEVICE, True)
    assert "mask       one span of keys for each query\n" in done.stdout
