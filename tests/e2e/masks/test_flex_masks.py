"""Masks of PyTorch's FlexAttention: their conversion, and the same attention results.

tests/data/flex_mask.json is a BlockMask as plain arrays: 300 queries and keys, two heads, the first
with documents of 110 keys, the second with a prefix of 100. It was written by hand; where PyTorch
is installed, a test compares it with the result of create_block_mask(). The last 44 queries do not
fill a block, so PyTorch lists none of their blocks as full.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.lib import flex_masks, masks
from tests.lib.kinds import MASK_STEPS
from tests.lib.reference import Answer, attention, mistakes
from tests.lib.flex_masks import FlexMask, as_torch_makes_it, convert
from tests.lib.generators import rounded_inputs
from tests.lib.problem import Problem
from tests.lib.programs import REPOSITORY, Program

MASK_STEP = Program(MASK_STEPS[0])
LISTS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")


def stored() -> FlexMask:
    fields = json.loads((REPOSITORY / "tests" / "data" / "flex_mask.json").read_text())
    arrays = [np.array(fields[name], np.int32) for name in LISTS]
    return FlexMask(tuple(fields["seq_lengths"]), tuple(fields["BLOCK_SIZE"]), *arrays)


def stored_mask_mod(batch: object, head: object, q: object, k: object) -> object:
    """The mask_mod of the stored mask, for NumPy arrays and for PyTorch tensors."""
    documents = (k <= q) & (q // 110 == k // 110)
    prefix = (k <= q) | (k < 100)
    return ((head == 0) & documents) | ((head == 1) & prefix)


def dense_of(mask_mod: object, shape: tuple[int, int, int, int]) -> np.ndarray:
    at = np.ogrid[tuple(slice(n) for n in shape)]
    return np.broadcast_to(mask_mod(*at), shape)


# --- Without PyTorch ------------------------------------------------------------------------------


def test_stored_mask_is_converted() -> None:
    m = convert(stored(), stored_mask_mod)
    assert m.counts.tolist() == [[[1, 2, 2], [1, 2, 3]]]
    assert m.indices.tolist() == [[[[0, -1, -1], [0, 1, -1], [1, 2, -1]], [[0, -1, -1], [0, 1, -1], [0, 1, 2]]]]
    p, c, f = masks.PARTIAL, masks.CAUSAL, masks.FULL
    assert m.types.tolist() == [[[[p, -1, -1], [p, p, -1], [p, c, -1]], [[p, -1, -1], [f, c, -1], [f, f, c]]]]
    dense = dense_of(stored_mask_mod, (1, 2, 300, 300))
    assert (masks.to_dense(m, 300, 300) == dense).all()
    assert m.same_as(masks.from_dense(dense, (128, 128)))


def test_stored_mask_is_as_torch_makes_it() -> None:
    made = as_torch_makes_it(dense_of(stored_mask_mod, (1, 2, 300, 300)), (128, 128))
    for name in LISTS:
        assert np.array_equal(getattr(stored(), name), getattr(made, name)), name


def test_stored_mask_runs(tmp_path: Path) -> None:
    m = convert(stored(), stored_mask_mod)
    p = Problem(2, 2, 1, 300, mask=str(m.write(tmp_path / "mask")))
    result, record = MASK_STEP.solve(tmp_path / "out", *p.options())
    dense = dense_of(stored_mask_mod, (1, 2, 300, 300))
    assert mistakes(attention(p, *rounded_inputs(p), dense), result.o, result.lse) == []
    assert [record[f"mask_blocks_{kind}"] for kind in ("full", "causal", "partial")] == [3, 3, 5]


def random_dense(rng: np.random.Generator) -> np.ndarray:
    """Blocks of 64 that are empty, full or mixed; the lengths are not multiples of 64."""
    shape = (*rng.integers(1, 3, 2), *rng.integers(1, 300, 2))
    kinds = rng.choice([0, 0.5, 1], (*shape[:2], 5, 5)).repeat(64, 2).repeat(64, 3)
    return rng.random(shape) < kinds[:, :, : shape[2], : shape[3]]


@pytest.mark.parametrize("block", [(64, 64), (128, 128), (64, 128), (256, 64)], ids=str)
@pytest.mark.parametrize("separate_full", [True, False])
def test_conversion_is_exact(block: tuple[int, int], separate_full: bool) -> None:
    """With and without the list of full blocks; poison where PyTorch leaves values undefined."""
    for seed in range(20):
        dense = random_dense(np.random.default_rng(seed))
        flex = as_torch_makes_it(dense, block, separate_full)
        pairs = [LISTS[:2], LISTS[2:]] if separate_full else [LISTS[:2]]
        for counts, indices in pairs:
            past = np.arange(flex.kv_indices.shape[3]) >= getattr(flex, counts)[..., None]
            getattr(flex, indices)[past] = masks.POISON
        assert convert(flex, dense).same_as(masks.from_dense(dense, block)), f"seed {seed}"


# --- With PyTorch ---------------------------------------------------------------------------------


def flex_attention_module() -> object:
    pytest.importorskip("torch", reason="Python has no PyTorch")
    return pytest.importorskip(
        "torch.nn.attention.flex_attention", reason="this PyTorch has no FlexAttention", exc_type=ImportError
    )


# Aligned to the first key, as is usual there; with Nq = Nkv this is also the last.
MASK_MODS = {
    "causal": lambda b, h, q, k: k <= q,
    "sliding window": lambda b, h, q, k: (k <= q) & (q - k < 100),
    "documents": lambda b, h, q, k: (k <= q) & (q // 150 == k // 150),
    "prefix": lambda b, h, q, k: (k <= q) | (k < 130),
    "of the head": lambda b, h, q, k: (k <= q) & (q - k < 50 + 100 * h),
    "nothing for some": lambda b, h, q, k: (k <= q) & (k > 200),
}


def test_stored_mask_is_that_of_torch() -> None:
    flex = flex_attention_module()
    made = flex.create_block_mask(stored_mask_mod, 1, 2, 300, 300, device="cpu")
    found = flex_masks.from_torch(made)
    assert (found.seq_lengths, found.BLOCK_SIZE) == ((300, 300), (128, 128))
    for name in LISTS:
        counts = getattr(stored(), name.replace("indices", "num_blocks"))
        array, expected = getattr(found, name), getattr(stored(), name)
        used = np.arange(3) < counts[..., None] if "indices" in name else np.True_
        assert np.array_equal(array * used, expected * used), name


@pytest.mark.parametrize("name", MASK_MODS)
@pytest.mark.parametrize("n", [512, 449])
def test_same_attention_as_flex_attention(tmp_path: Path, name: str, n: int) -> None:
    """FlexAttention in fp32, uncompiled; the difference is at most twice the rounding error."""
    flex = flex_attention_module()
    import torch  # installed, because FlexAttention is

    device = "cuda" if torch.cuda.is_available() else "cpu"
    mask_mod = MASK_MODS[name]
    block_mask = flex.create_block_mask(mask_mod, 1, 2, n, n, device=device)
    m = convert(flex_masks.from_torch(block_mask), mask_mod)
    p = Problem(1, 2, 2, n, mask=str(m.write(tmp_path / "mask")))
    result, _ = MASK_STEP.solve(tmp_path / "out", *p.options())

    inputs = rounded_inputs(p)
    tensors = [torch.tensor(x, dtype=torch.float32, device=device) for x in inputs]
    o, lse = flex.flex_attention(*tensors, block_mask=block_mask, return_lse=True)
    expected = attention(p, *inputs, dense_of(mask_mod, (1, 2, n, n)))
    theirs = Answer(o.double().cpu().numpy(), lse.double().cpu().numpy(), expected.rounding_error)
    assert mistakes(theirs, result.o, result.lse) == []
    assert mistakes(expected, result.o, result.lse) == []
