"""Forward passes of steps as shared libraries, called from NumPy."""

import numpy as np

from common.python.attention_steps.library import BlockMask, Shape, block_mask
from plots.bench.device import Device, StepLibrary
from tests.lib import masks
from tests.lib.problem import Problem
from tests.lib.programs import STEP_DIR, Result


def library_of(name: str) -> StepLibrary:
    return StepLibrary(STEP_DIR / f"lib{name}.so")


def shape_of(p: Problem) -> Shape:
    return Shape(p.batch, p.heads, p.kv_heads, p.seqlen, p.seqlen_kv, p.head_dim, p.dtype == "bf16", p.mask == "causal")


class Call:
    """A forward pass with all tensors on the device; the mask is copied from NumPy arrays."""

    def __init__(
        self,
        library: StepLibrary,
        p: Problem,
        inputs: list[np.ndarray],
        m: masks.BlockMask | BlockMask | None = None,
        free_bytes: int = 1 << 40,
    ) -> None:
        self.library, self.p, self.shape, device = library, p, shape_of(p), Device(library)
        o = np.full(p.q_shape(), 0xFFFF, np.uint16)
        lse = np.full(p.q_shape()[:3], np.nan, np.float32)
        self.memory = [device.upload(array) for array in (*inputs, o, lse)]
        self.more, self.kept = {}, []
        if isinstance(m, masks.BlockMask):
            self.kept = [device.upload(tensor) for tensor in m.tensors()]
            m = block_mask([tensor.shape for tensor in m.tensors()], [memory.address for memory in self.kept])
        if m is not None:
            self.kept.append(device.allocate(library.prepare(self.shape, m)))
            self.more = {"mask": m, "prepared": self.kept[-1].address}
            library.prepare(self.shape, m, self.kept[-1].address)
        if size := library.workspace_bytes(self.shape, free_bytes):
            self.kept.append(device.allocate(size))
            self.kept[-1].fill()  # as Step::workspace_zero asks
            self.more |= {"workspace": self.kept[-1].address, "workspace_bytes": size}

    def enqueue(self) -> None:
        self.library.forward(self.shape, *(memory.address for memory in self.memory), **self.more)

    def result(self) -> Result:
        """O and LSE in the types that the program would write."""
        self.enqueue()
        bits = self.memory[3].download(np.empty(self.p.q_shape(), np.uint16))
        lse = self.memory[4].download(np.empty(self.p.q_shape()[:3], np.float32))
        if self.p.dtype == "fp16":
            return Result(bits.view(np.float16), lse)
        return Result((bits.astype(np.uint32) << 16).view(np.float32), lse)
