"""What is measured: the steps, through their libraries, and baselines, which PyTorch calls."""

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

import numpy as np

from common.python.attention_steps.library import BlockMask, block_mask, span_mask
from plots.bench.cases import DENSE, MASK_BLOCK, Case
from plots.bench.device import Device, Memory, StepLibrary
from plots.bench.exact import HeadResult
from plots.bench.turns import reason_of
from tests.lib import masks
from tests.lib.reference import as_doubles, to_e4m3

# The workspace of steps that need one; with a smaller one they make more passes.
WORKSPACE_BYTES = 8 << 30
SEED = 1


def to_16_bits(x: np.ndarray, dtype: str) -> np.ndarray:
    """The 16 bits of each number, rounded to fp16 or bf16."""
    if dtype == "fp16":
        with np.errstate(over="ignore"):
            return x.astype(np.float16).view(np.uint16)
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


class Inputs:
    """Q, K and V of a case. Cases with the same number of elements share the random numbers."""

    count = 3
    _known: dict[tuple, tuple] = {}

    def __init__(self, device: Device, case: Case) -> None:
        self.case, key = case, (id(device), case.elements(), case.dtype, self.count)
        if case.dtype == "e4m3":  # their scales are those of heads
            key += case.batch, case.heads
        if key not in self._known:
            generator, scales = np.random.default_rng(SEED), []
            arrays = [generator.standard_normal(case.elements(), np.float32) for _ in range(self.count)]
            if case.dtype == "e4m3":
                shape = case.batch, case.heads, -1, case.head_dim
                pairs = [to_e4m3(array.reshape(shape), case.heads) for array in arrays]
                arrays, scales = [bits.ravel() for bits, _ in pairs], [x for _, x in pairs]
            else:
                arrays = [to_16_bits(array, case.dtype) for array in arrays]
            self._known[key] = (
                arrays,
                [device.upload(array) for array in arrays],
                scales,
                [device.upload(array) for array in scales],
            )
        self.arrays, self.memory, self.scales, self.scales_memory = self._known[key]

    def head(self, batch: int, head: int) -> tuple[np.ndarray, ...]:
        """Q, K and V of a head as doubles, each [N, D]."""
        size = self.case.seqlen * self.case.head_dim
        start = (batch * self.case.heads + head) * size
        values = (
            as_doubles(array[start : start + size], self.case.dtype).reshape(-1, self.case.head_dim)
            for array in self.arrays
        )
        if not self.scales:
            return tuple(values)
        return tuple(float(scales[batch, head]) * x for scales, x in zip(self.scales, values, strict=True))


def head_of(memory: Memory, case: Case, batch: int, head: int) -> np.ndarray:
    """One head of a tensor in 16 bits on the device, as doubles."""
    bits = np.empty((case.seqlen, case.head_dim), np.uint16)
    memory.download(bits, (batch * case.heads + head) * bits.nbytes)
    return as_doubles(bits, case.o_dtype())


@dataclass
class Contestant:
    """A step or baseline: `call` enqueues a pass, `result_of(batch, head)` is its last result."""

    name: str  # as in the fields speed_over_NAME
    fields: dict  # of its records
    call: Callable[[], object]
    result_of: Callable[[int, int], HeadResult]


# --- Block masks ----------------------------------------------------------------------------------


@contextmanager
def saved_masks(program: Path, wanted: set[tuple[str, int]]) -> Iterator[dict[tuple, Path]]:
    """Folders with block masks that the program writes, by mask and length, with as many keys as
    queries, for all heads. The program is not called if no masks are wanted."""
    with tempfile.TemporaryDirectory() as directory:
        folders = {(mask, n): Path(directory) / f"{mask.replace(':', '_')}_{n}" for mask, n in sorted(wanted)}
        (Path(directory) / "cases").write_text(
            "".join(
                f"-b 1 -H 1 -n {n} -d 64 --mask {mask} --save-mask {folder}\n" for (mask, n), folder in folders.items()
            )
        )
        if not folders:
            yield {}
            return
        done = subprocess.run(
            [program, "--mask-block", f"{MASK_BLOCK}x{MASK_BLOCK}", "--draw-mask", "--cases", f"{directory}/cases"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{program} --save-mask: {done.stderr.strip()}")
        yield folders


def row_spans(case: Case, dense: np.ndarray | None) -> np.ndarray | None:
    """The first key of each query and the end of its keys, int32 [N, 2]; None if a query attends
    several spans. `dense` is None for full and causal."""
    n = case.seqlen
    if dense is None:
        end = np.arange(1, n + 1) if case.mask == "causal" else np.full(n, n)
        return np.stack([0 * end, end], 1).astype(np.int32)
    counts, first = dense.sum(1), dense.argmax(1)
    end = np.where(counts > 0, n - dense[:, ::-1].argmax(1), first)
    return np.stack([first, end], 1).astype(np.int32) if (counts == end - first).all() else None


class Mask:
    """A block mask in host and device memory; `dense`, [N, N], is None for full and causal, and
    `spans` is None if the mask is not one span of keys for each query."""

    def __init__(self, device: Device, folder: Path, case: Case) -> None:
        self.host = masks.read(folder)
        self.memory = [device.upload(tensor) for tensor in self.host.tensors()]
        self.c: BlockMask = block_mask(
            [tensor.shape for tensor in self.host.tensors()], [memory.address for memory in self.memory]
        )
        self.dense = None if case.mask in DENSE else masks.to_dense(self.host, case.seqlen, case.seqlen)[0, 0]
        self.spans: BlockMask | None = None
        if (spans := row_spans(case, self.dense)) is not None:
            self.memory.append(device.upload(spans))
            self.spans = span_mask((1, 1, *spans.shape), self.memory[-1].address)

    def form_for(self, step: StepLibrary) -> BlockMask:
        """The mask as the host program gives it to the step."""
        return self.spans if self.spans is not None and step.takes_spans else self.c

    def fields(self, step: StepLibrary) -> dict:
        """Fields of a record: the form that the step gets, the number of blocks, and of those that
        are not masked."""
        used = np.arange(self.host.types.shape[3]) < self.host.counts[..., None]
        return {
            "mask_form": "blocks" if self.form_for(step) is self.c else "row spans",
            "mask_block_q": MASK_BLOCK,
            "mask_block_kv": MASK_BLOCK,
            "mask_blocks": self.host.counts.shape[2] ** 2,
            "mask_blocks_active": int((used & (self.host.types != masks.MASKED)).sum()),
        }


# --- Steps ----------------------------------------------------------------------------------------


class Outputs:
    """O and LSE of a case on the device, which all steps share: only one is checked at a time."""

    def __init__(self, device: Device, case: Case) -> None:
        self.case = case
        self.o = device.allocate(2 * case.elements())
        self.lse = device.allocate(4 * case.elements() // case.head_dim)

    def poison(self) -> None:
        """Fills both with NaN, which shows elements that a step does not write."""
        self.o.fill(0xFF)
        self.lse.fill(0xFF)

    def head(self, batch: int, head: int) -> HeadResult:
        lse = np.empty(self.case.seqlen, np.float32)
        self.lse.download(lse, (batch * self.case.heads + head) * lse.nbytes)
        return head_of(self.o, self.case, batch, head), lse.astype(np.float64)


@dataclass(eq=False)
class StepCall:
    """A forward pass of a step, with all the memory that it needs."""

    step: StepLibrary
    inputs: Inputs
    outputs: Outputs
    mask: Mask | None = None
    more: dict = field(default_factory=dict)
    kept: list[Memory] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.shape = self.inputs.case.shape()
        self.scales = [memory.address for memory in self.inputs.scales_memory] or (None,) * 3
        if self.mask is not None:
            form = self.more["mask"] = self.mask.form_for(self.step)
            self._keep("prepared", self.step.prepare(self.shape, form))
            self.step.prepare(self.shape, form, self.more["prepared"])
        if size := self.step.workspace_bytes(self.shape, WORKSPACE_BYTES):
            self._keep("workspace", size).fill()  # as Step::workspace_zero asks
            self.more["workspace_bytes"] = size

    def _keep(self, name: str, size: int) -> Memory:
        """Memory of the step's own library, which on the CPU backend can set no other."""
        self.kept.append(Device(self.step).allocate(size))
        self.more[name] = self.kept[-1].address
        return self.kept[-1]

    def tensors(self) -> Sequence[Memory]:
        return *self.inputs.memory, self.outputs.o, self.outputs.lse

    def __call__(self) -> None:
        self.step.forward(self.shape, *(memory.address for memory in self.tensors()), scales=self.scales, **self.more)

    def contestant(self, entries: int) -> Contestant:
        """The pass as a Contestant; `entries` is the number of unmasked entries in all heads."""
        name, traffic = self.step.ceiling(self.shape, self.more.get("mask"))
        must_move = sum(memory.size for memory in self.tensors()) + traffic * entries
        fields = {
            "step": self.step.name,
            "must_move_bytes": must_move,
            "ceiling": name,
            **(self.mask.fields(self.step) if self.mask else {}),
        }
        return Contestant(self.step.name, fields, self, self.outputs.head)


# --- Baselines ------------------------------------------------------------------------------------


def torch_on_a_gpu():
    """The module torch, or None if it is missing or finds no GPU."""
    try:
        torch = import_module("torch")
    except (ImportError, OSError):
        return None
    if not torch.cuda.is_available():
        return None
    torch.cuda.init()
    return torch


class BaselineCall:
    """A pass of a kernel of PyTorch; keeps the result of the last pass."""

    def __init__(self, torch, inputs: Inputs, build: Callable[..., Callable[[], object]]) -> None:
        case, self.torch, self.memory = inputs.case, torch, inputs.memory
        shape = case.batch, case.heads, case.seqlen, case.head_dim
        typestr, dtype = {"fp16": ("<i2", "float16"), "bf16": ("<i2", "bfloat16"), "e4m3": ("|i1", "float8_e4m3fn")}[
            case.dtype
        ]
        tensors = [self.tensor(memory, shape, typestr, dtype) for memory in self.memory]
        self.kept = inputs.scales_memory
        scales = [self.tensor(memory, shape[:2], "<i4", "float32") for memory in self.kept]
        self.call = build(torch, case, tensors, *([scales] if scales else []))

    def tensor(self, memory: Memory, shape: tuple[int, ...], typestr: str, dtype: str):
        """The memory as a tensor of a dtype that is as long as typestr, without a copy."""
        view = type(
            "View",
            (),
            {
                "__cuda_array_interface__": {
                    "shape": shape,
                    "typestr": typestr,
                    "data": (memory.address, False),
                    "version": 3,
                }
            },
        )()
        return self.torch.as_tensor(view, device="cuda").view(getattr(self.torch, dtype))

    def __call__(self) -> None:
        self.o = self.call()

    def contestant(self, fields: dict) -> Contestant:
        return Contestant(fields["short"], fields, self, self.head)

    def head(self, batch: int, head: int) -> HeadResult:
        return self.o[batch, head].to(self.torch.float64).cpu().numpy(), None


def sdpa(torch, case: Case, tensors: list, backend: str) -> Callable[[], object]:
    """A backend of scaled_dot_product_attention. Its is_causal is aligned to the top left, which
    makes no difference with as many queries as keys."""
    attention = torch.nn.attention
    backends, causal = [getattr(attention.SDPBackend, backend)], case.mask == "causal"

    def call():
        with attention.sdpa_kernel(backends):
            return torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=causal)

    return call


class UsageError(Exception):
    """The user named a library that cannot be used."""


def load_fa3(torch) -> str:
    """Loads FlashAttention-3 from the file that FA3_LIBRARY names. Returns why it is not compared:
    an empty text if it is."""
    path = os.environ.get("FA3_LIBRARY")
    if not path:
        return "FA3_LIBRARY names no library of it"
    if torch.cuda.get_device_capability() != (9, 0):
        return "it needs a GPU of compute capability 9.0"
    try:
        torch.ops.load_library(str(Path(path).resolve()))
        if not hasattr(torch.ops.flash_attn_3, "fwd"):
            raise OSError("it has no flash_attn_3.fwd")
    except (OSError, RuntimeError) as error:
        raise UsageError(
            f"FA3_LIBRARY={path}: must be a library of FlashAttention-3, built for "
            f"PyTorch {torch.__version__}: {reason_of(error)}"
        ) from error
    return ""


def flash_attention_3(torch, case: Case, tensors: list, scales: Sequence = ()) -> Callable[[], object]:
    """Takes [B, N, H, D] with any strides, so it gets views of the memory that all others read.
    With e4m3, `scales` are [B, H]; O is then bf16."""
    views, causal = [tensor.transpose(1, 2) for tensor in tensors], case.mask == "causal"
    forward = torch.ops.flash_attn_3.fwd
    more = dict(zip(("q_descale", "k_descale", "v_descale"), scales, strict=False))
    return lambda: forward(*views, is_causal=causal, num_splits=1, **more)[0].transpose(1, 2)


def flex_attention(torch, case: Case, tensors: list) -> Callable[[], object]:
    """FlexAttention, compiled for each case; the compiler's cache would be full after a few."""
    flex = import_module("torch.nn.attention.flex_attention")
    torch._dynamo.reset()
    blocks = None
    if case.mask != "full":
        blocks = flex.create_block_mask(
            case.rule(), None, None, case.seqlen, case.seqlen, device="cuda", BLOCK_SIZE=MASK_BLOCK
        )
    compiled = torch.compile(flex.flex_attention, dynamic=False)
    return lambda: compiled(*tensors, block_mask=blocks)


def in_16_bits(case: Case) -> bool:
    return case.mask in DENSE and case.dtype != "e4m3"


# Short name, name, a test for the cases that it runs, and a function that builds its call.
BASELINES = (
    ("fa2", "FlashAttention-2", in_16_bits, lambda torch, case, tensors: sdpa(torch, case, tensors, "FLASH_ATTENTION")),
    ("fa3", "FlashAttention-3", in_16_bits, flash_attention_3),
    ("cudnn", "cuDNN", in_16_bits, lambda torch, case, tensors: sdpa(torch, case, tensors, "CUDNN_ATTENTION")),
    ("flex", "FlexAttention", Case.takes_flex, flex_attention),
    ("fa3_fp8", "FlashAttention-3 in e4m3", lambda case: case.dtype == "e4m3", flash_attention_3),
)
