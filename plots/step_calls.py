"""Steps as contestants: called through their libraries, with tensors of PyTorch."""

import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from compare_tasks import Task
from step_library import MASK_FILES, BlockMask, Shape, StepLibrary, block_mask

MASK_BLOCK = 128
# Of device memory, for a step that takes what it can get: it makes more passes in less, and a peer
# that keeps all scores wants the rest.
WORKSPACE_BYTES = 8 << 30
SEED = "1"  # as rows have it


class Inputs:
    """Q, K and V of a task: random, the same each time."""

    def __init__(self, torch, task: Task, device: str = "cuda") -> None:
        self.torch, self.task, self.device = torch, task, device
        shape = task.shape()
        self.dtype = torch.bfloat16 if shape.bf16 else torch.float16
        generator = torch.Generator(device).manual_seed(int(SEED))
        size = (shape.batch, shape.heads, shape.seqlen, shape.head_dim)
        self.q, self.k, self.v = (
            torch.randn(size, generator=generator, device=device, dtype=torch.float32)
            .to(self.dtype) for _ in range(3))

    def rows(self, name: str, batch: int, head: int, queries: np.ndarray | None) -> np.ndarray:
        """Of "q", "k" or "v", as doubles on the host; all rows if `queries` is None."""
        return rows_of(getattr(self, name), batch, head, queries)


def rows_of(tensor, batch: int, head: int, queries: np.ndarray | None) -> np.ndarray:
    """Rows of a tensor [B, H, N] or [B, H, N, D], as doubles on the host."""
    rows = tensor[batch, head].double().cpu().numpy()
    return rows if queries is None else rows[queries]


@dataclass
class Contestant:
    """`call` enqueues a pass and returns O; `lse` is there after it, if the contestant tells it."""

    name: str
    call: Callable[[], object]
    lse: object = None
    short: str | None = None  # of peers: what fields are named after

    def kind(self) -> str:
        return "step" if self.short is None else "peer"


# --- Block masks ----------------------------------------------------------------------------------

def program_beside(library: Path) -> Path:
    """The program from the same objects as libstepNN.so."""
    return library.with_name(library.stem.removeprefix("lib"))


@lru_cache
def saved_mask(program: Path, mask: str, n: int) -> tuple[np.ndarray, ...]:
    """The five tensors as the program builds them for n queries and keys, for all heads."""
    with tempfile.TemporaryDirectory() as directory:
        command = [program, "-b", "1", "-H", "1", "-n", str(n), "-d", "64", "--mask", mask,
                   "--mask-block", f"{MASK_BLOCK}x{MASK_BLOCK}", "--save-mask", directory,
                   "--check", "none", "--repeat", "0"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip() or f"{program}: exit code {done.returncode}")
        return tuple(np.load(f"{directory}/{name}.npy") for name in MASK_FILES)


class PreparedMask:
    """A mask on the device and what a step made of it; keeps both alive."""

    def __init__(self, inputs: Inputs, step: StepLibrary, shape: Shape,
                 arrays: tuple[np.ndarray, ...]) -> None:
        torch, device = inputs.torch, inputs.device
        self.tensors = [torch.from_numpy(array).to(device) for array in arrays]
        self.mask: BlockMask = block_mask([array.shape for array in arrays],
                                          [tensor.data_ptr() for tensor in self.tensors])
        size = step.prepared_bytes(shape, self.mask)
        self.prepared = torch.empty(size, device=device, dtype=torch.uint8)
        step.prepare(shape, self.mask, self.prepared.data_ptr(), stream_of(inputs))
        synchronize(inputs)


def stream_of(inputs: Inputs) -> int:
    """The stream that PyTorch enqueues its work on; 0 without a GPU."""
    cuda = inputs.torch.cuda
    return cuda.current_stream().cuda_stream if inputs.device == "cuda" else 0


def synchronize(inputs: Inputs) -> None:
    if inputs.device == "cuda":
        inputs.torch.cuda.synchronize()


# --- Steps ----------------------------------------------------------------------------------------

def takes(step: StepLibrary, task: Task) -> bool:
    """Steps without block masks have the plain ones only."""
    return task.plain() or step.takes_block_masks


def step_contestant(inputs: Inputs, step: StepLibrary, library: Path) -> Contestant:
    """Outputs start as NaN, so that what a step leaves out shows."""
    torch, shape = inputs.torch, inputs.task.shape()
    o = torch.full_like(inputs.q, float("nan"))
    lse = torch.full(o.shape[:3], float("nan"), device=inputs.device, dtype=torch.float32)
    pointers = [tensor.data_ptr() for tensor in (inputs.q, inputs.k, inputs.v, o, lse)]
    stream, more, kept = stream_of(inputs), {}, None
    if step.takes_block_masks:
        arrays = saved_mask(program_beside(library), inputs.task.mask, shape.seqlen)
        kept = PreparedMask(inputs, step, shape, arrays)
        more = {"mask": kept.mask, "prepared": kept.prepared.data_ptr()}
    size = step.workspace_bytes(shape, WORKSPACE_BYTES)
    if size > 0:
        kept = torch.empty(size, device=inputs.device, dtype=torch.uint8)
        more = {"workspace": kept.data_ptr(), "workspace_bytes": size}

    def call(memory: object = kept):  # which must live as long as the call
        step.forward(shape, *pointers, stream, **more)
        return o
    return Contestant(step.name, call, lse)
