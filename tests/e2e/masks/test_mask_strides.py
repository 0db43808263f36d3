"""Step 05 with mask tensors of any strides, which no file can have: each tensor of slots has its
dimensions in an order of its own, gaps between its elements, and 0 where it broadcasts.
"""

import numpy as np
import pytest

from tests.lib import masks
from tests.lib.reference import attention, mistakes
from tests.lib.generators import rounded_inputs
from tests.e2e.tools.library_calls import Call, Device, library_of
from tests.lib.problem import Problem
from tests.lib.programs import PAIRWISE_SEED, Result
from step_library import BlockMask, StepLibrary

PROBLEM = Problem(batch=2, heads=4, kv_heads=2, seqlen=200, seqlen_kv=270, mask_block=(64, 64))
# Fields of BlockMask, and how many dimensions their tensors have: batch, head, row and slot.
STRIDES = {"num_strides": 3, "index_strides": 4, "type_strides": 4, "partial_strides": 4}


def spread(tensor: np.ndarray, rng: np.random.Generator,
           between: int) -> tuple[np.ndarray, tuple[int, ...]]:
    """Memory in which the elements lie apart, and their strides; `between` is what else it holds.

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


def upload(device: Device, m: masks.BlockMask, rng: np.random.Generator,
           between: int) -> BlockMask:
    """The mask with such tensors; that of the tiles is always compact."""
    memories, strides = zip(*(spread(tensor, rng, between) for tensor in m.tensors()[:4]),
                            strict=True)
    batches, heads = np.broadcast_shapes(*(tensor.shape[:2] for tensor in m.tensors()[:4]))
    return BlockMask(*m.block_size(), *m.indices.shape[2:], len(m.tiles), batches, heads,
                     *map(device.upload, memories), device.upload(m.tiles), *strides)


class Solver:
    """Calls the library with a mask on the device."""

    def __init__(self, device: Device, library: StepLibrary) -> None:
        self.device, self.library = device, library
        self.inputs = [x.astype(np.float16) for x in rounded_inputs(PROBLEM)]

    def result(self, m: BlockMask) -> Result:
        return Call(self.device, self.library, PROBLEM, self.inputs, m).result()


def masks_to_try(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Dense ones: for each batch entry and head, for all, for either; and lists that all share of
    tiles that are each one's own."""
    lengths = (PROBLEM.seqlen, PROBLEM.seqlen_kv)
    found = {str(shape): masks.random_blocks(rng, (*shape, *lengths), PROBLEM.mask_block)
             for shape in ((2, 4), (2, 1), (1, 4), (1, 1))}
    return {**found, "own tiles": rng.random((2, 4, *lengths)) < 0.3}


@pytest.mark.parametrize("seed", range(2))
def test_any_strides(seed: int) -> None:
    """Poison lies between the elements, and in them wherever nobody may look."""
    rng = np.random.default_rng([PAIRWISE_SEED, seed])
    library = library_of("step05")
    for name, dense in masks_to_try(rng).items():
        m = masks.from_dense(dense, PROBLEM.mask_block)
        if name != "own tiles":
            m = masks.disordered(m, rng)
        with Device(library) as device:
            on_device = upload(device, masks.with_fewest_copies(m), rng, masks.POISON)
            result = Solver(device, library).result(on_device)
        expected = attention(PROBLEM, *rounded_inputs(PROBLEM), dense)
        assert mistakes(expected, result.o, result.lse) == [], name


def test_every_stride_counts() -> None:
    """A kernel that leaves out a stride takes 1 in its place: all would be noticed above.

    Here 0 stands wherever nobody may look, with which a wrong stride leads nowhere out of bounds.
    """
    rng = np.random.default_rng(0)
    library = library_of("step05")
    m = masks.from_dense(masks_to_try(rng)["(2, 4)"], PROBLEM.mask_block)
    m = masks.BlockMask(*(tensor.clip(0) for tensor in m.tensors()[:4]), m.tiles)
    with Device(library) as device:
        solver, on_device = Solver(device, library), upload(device, m, rng, 0)
        right = solver.result(on_device)
        for field, dimensions in STRIDES.items():
            strides = getattr(on_device, field)
            for i in range(dimensions):
                stride, strides[i] = strides[i], 1
                assert not solver.result(on_device).same_bits(right), f"{field}[{i}]"
                strides[i] = stride
        assert solver.result(on_device).same_bits(right)
