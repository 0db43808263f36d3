"""Step 05 with mask tensors of any strides, which no file can have: each tensor of slots has its
own order of dimensions, gaps between its elements, and stride 0 where it broadcasts."""

import numpy as np
import pytest

from common.python.attention_steps.library import BlockMask
from plots.bench.device import Device, Memory, StepLibrary
from tests.e2e.bench.step_calls import Call, library_of
from tests.lib import masks
from tests.lib.generators import rounded_inputs
from tests.lib.kinds import MASK_STEPS
from tests.lib.problem import Problem
from tests.lib.programs import PAIRWISE_SEED, Result
from tests.lib.reference import attention, mistakes

PROBLEM = Problem(batch=2, heads=4, kv_heads=2, seqlen=200, seqlen_kv=270, mask_block=(64, 64))


def spread(tensor: np.ndarray, rng: np.random.Generator, between: int) -> tuple[np.ndarray, tuple[int, ...]]:
    """Memory with gaps between the elements, and their strides; `between` fills the gaps.

    No stride is 1; it is 0 where one batch entry, or one head, stands for all.
    """
    strides, stride = [0] * tensor.ndim, int(rng.integers(2, 5))
    for axis in rng.permutation(tensor.ndim):
        if tensor.shape[axis] > 1 or axis > 1:
            strides[axis] = stride
            stride = stride * tensor.shape[axis] + int(rng.integers(0, 4))
    memory = np.full(stride, between, np.int32)
    elements = np.lib.stride_tricks.as_strided(memory, tensor.shape, [4 * s for s in strides])
    elements[...] = tensor
    return memory, tuple(strides)


def upload(
    device: Device, m: masks.BlockMask, rng: np.random.Generator, between: int
) -> tuple[BlockMask, list[Memory]]:
    """The mask with such tensors, and their memory; the tensor of tiles is always compact."""
    memories, strides = zip(*(spread(tensor, rng, between) for tensor in m.tensors()[:4]), strict=True)
    batches, heads = np.broadcast_shapes(*(tensor.shape[:2] for tensor in m.tensors()[:4]))
    kept = [device.upload(array) for array in (*memories, m.tiles)]
    return BlockMask(
        *m.block_size(),
        *m.indices.shape[2:],
        len(m.tiles),
        batches,
        heads,
        *(memory.address for memory in kept),
        *strides,
    ), kept


def result_of(library: StepLibrary, m: BlockMask) -> Result:
    """The result of the problem with a mask on the device."""
    return Call(library, PROBLEM, [x.astype(np.float16) for x in rounded_inputs(PROBLEM)], m).result()


def masks_to_try(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Dense masks: for each batch entry and head, for all, for either; and lists that are shared
    while the tiles are not."""
    lengths = (PROBLEM.seqlen, PROBLEM.seqlen_kv)
    found = {
        str(shape): masks.random_blocks(rng, (*shape, *lengths), PROBLEM.mask_block)
        for shape in ((2, 4), (2, 1), (1, 4), (1, 1))
    }
    return {**found, "own tiles": rng.random((2, 4, *lengths)) < 0.3}


@pytest.mark.parametrize("seed", range(2))
def test_any_strides(seed: int) -> None:
    """Poison fills the gaps between elements, and elements that must not be read."""
    rng = np.random.default_rng([PAIRWISE_SEED, seed])
    library = library_of(MASK_STEPS[0])
    for name, dense in masks_to_try(rng).items():
        m = masks.from_dense(dense, PROBLEM.mask_block)
        if name != "own tiles":
            m = masks.disordered(m, rng)
        on_device, _kept = upload(Device(library), masks.with_fewest_copies(m), rng, masks.POISON)
        result = result_of(library, on_device)
        expected = attention(PROBLEM, *rounded_inputs(PROBLEM), dense)
        assert mistakes(expected, result.o, result.lse) == [], name
