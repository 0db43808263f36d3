"""Calls a step and its CUDA runtime through libstepNN.so (library.c)."""

import contextlib
import ctypes
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np

from .gallery import StepError

# The files of a block mask, in the order of its tensors.
MASK_FILES = ("kv_num_blocks", "kv_indices", "block_mask_types", "partial_block_mask_indices", "partial_block_masks")


class _CShape(ctypes.Structure):
    """Shape in library.c."""

    _fields_ = [
        *((name, ctypes.c_int) for name in ("batch", "q_heads", "kv_heads", "q_len", "kv_len", "head_dim")),
        ("bf16", ctypes.c_bool),
        ("causal", ctypes.c_bool),
        ("e4m3", ctypes.c_bool),
        ("scale", ctypes.c_float),
        ("strides", 12 * ctypes.c_int64),
    ]


@dataclass(frozen=True)
class Shape:
    """The problem. `causal` is for steps without block masks; `factor` is that of Q K^T, 0 for 1/sqrt(head_dim);
    `strides` are those of batch, head and row of Q, K, V and O one after the other, none if all are compact."""

    batch: int
    heads: int
    kv_heads: int
    seqlen: int
    seqlen_kv: int
    head_dim: int
    bf16: bool
    causal: bool
    e4m3: bool = False
    factor: float = 0.0
    strides: tuple[int, ...] = ()

    def scale(self) -> float:
        return self.factor or self.head_dim**-0.5

    def as_c(self) -> _CShape:
        return _CShape(*astuple(self)[:9], self.scale(), self.strides)


class BlockMask(ctypes.Structure):
    """BlockMask in block_mask.h; its tensors are on the device."""

    _fields_ = [
        *(
            (name, ctypes.c_int)
            for name in ("q_block_size", "kv_block_size", "q_blocks", "max_slots", "tile_count", "batches", "heads")
        ),
        *((name, ctypes.c_void_p) for name in MASK_FILES),
        ("num_strides", 3 * ctypes.c_int64),
        ("index_strides", 4 * ctypes.c_int64),
        ("type_strides", 4 * ctypes.c_int64),
        ("partial_strides", 4 * ctypes.c_int64),
        ("row_spans", ctypes.c_void_p),
        ("span_strides", 2 * ctypes.c_int64),
    ]


def block_mask(shapes: Sequence[Sequence[int]], pointers: Sequence[int]) -> BlockMask:
    """A mask of compact tensors, in the order of MASK_FILES: their shapes and device addresses.

    In each of the first four, a first or second dimension of 1 broadcasts.
    """

    def strides(shape: Sequence[int]) -> tuple[int, ...]:
        found, stride = [], 1
        for i in reversed(range(len(shape))):
            found.insert(0, 0 if i < 2 and shape[i] == 1 else stride)
            stride *= shape[i]
        return tuple(found)

    tiles, q_block, kv_block = shapes[4]
    q_blocks, slots = shapes[1][2:]
    batches, heads = (max(shape[i] for shape in shapes[:4]) for i in range(2))
    return BlockMask(q_block, kv_block, q_blocks, slots, tiles, batches, heads, *pointers, *map(strides, shapes[:4]))


def span_mask(shape: Sequence[int], pointer: int) -> BlockMask:
    """A mask of compact spans, int32 [B, H, Nq, 2], at a device address; 1 broadcasts B or H."""
    batches, heads, rows = shape[:3]
    strides = heads * rows if batches > 1 else 0, rows if heads > 1 else 0
    return BlockMask(batches=batches, heads=heads, row_spans=pointer, span_strides=strides)


class BackwardTensors(ctypes.Structure):
    """BackwardTensors in backward.h: addresses of compact device tensors and of the workspace; a mask and what
    prepare() made of it."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "o", "lse", "d_o", "d_q", "d_k", "d_v", "workspace")),
        ("block_mask", ctypes.POINTER(BlockMask)),
        ("prepared", ctypes.c_void_p),
    ]


class DecodeTensors(ctypes.Structure):
    """DecodeTensors in decode.h: addresses on the device."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "lengths", "page_table")),
        ("page_table_stride", ctypes.c_int),
        *((name, ctypes.c_void_p) for name in ("k_scales", "v_scales", "o", "lse", "workspace", "schedule")),
    ]


# Bits of Step::caches (attention.h).
CACHE_16_BIT, CACHE_E4M3, CACHE_PAGES = 1, 2, 4

# The names of Ceiling (attention.h) in records.
CEILINGS = ("device memory copy", "fp32 FFMA", "mma.sync", "wgmma", "wgmma e4m3")


class StepLibrary:
    """A step; `library` is its ctypes library. Raises StepError for unsupported problems."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, path.stem.removeprefix("lib")
        self.library = ctypes.CDLL(str(path))
        shape, mask, address = (ctypes.POINTER(_CShape), ctypes.POINTER(BlockMask), ctypes.c_void_p)
        backward, decode = ctypes.POINTER(BackwardTensors), ctypes.POINTER(DecodeTensors)
        size, number = ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_int)
        for name, types in {
            "step_describe": [shape, mask, number, number],
            "step_prepare": [shape, mask, address, size, address],
            "step_workspace": [shape, ctypes.c_size_t, size],
            "step_forward": [shape, mask, address, address, ctypes.c_size_t, *9 * [address]],
            "step_backward": [shape, backward, ctypes.c_size_t, address],
            "step_decode_bytes": [shape, ctypes.c_int, size, size],
            "step_schedule": [shape, ctypes.c_int, decode, address],
            "step_decode": [shape, ctypes.c_int, decode, address],
            "step_graph": [shape, ctypes.c_int, decode, ctypes.POINTER(address)],
        }.items():
            if function := getattr(self.library, name, None):  # older builds lack some of them
                function.argtypes, function.restype = types, ctypes.c_char_p
        self.takes_block_masks, self.takes_spans, self.takes_e4m3, self.is_backward = map(
            self._says, ("takes_block_masks", "takes_spans", "takes_e4m3", "is_backward")
        )

        caches = getattr(self.library, "step_caches", None)
        self.caches: int = caches() if caches else 0  # 0: it is no decode step
        self.kind = "backward" if self.is_backward else "decode" if self.caches else "forward"

    def _says(self, what: str) -> bool:
        if function := getattr(self.library, f"step_{what}", None):  # older builds have none
            function.restype = ctypes.c_bool
        return bool(function and function())

    def check(self, why: bytes | None) -> None:
        """Raises the reason that a function of the library returned, if it did."""
        if why is not None:
            text = why.decode()
            raise StepError(text if self.name in text else f"{self.name}: {text}")

    def ceiling(self, shape: Shape, mask: BlockMask | None) -> tuple[str, int]:
        """The step's ceiling, and the bytes of S and P in device memory per unmasked entry."""
        ceiling, traffic = ctypes.c_int(), ctypes.c_int()
        self.check(self.library.step_describe(shape.as_c(), mask, ctypes.byref(ceiling), ctypes.byref(traffic)))
        return CEILINGS[ceiling.value], traffic.value

    def prepare(self, shape: Shape, mask: BlockMask, prepared: int | None = None, stream: int | None = None) -> int:
        """Returns the bytes of device memory that the preparation of a valid mask needs. If
        `prepared` is the address of as many, also enqueues the preparation, once per mask."""
        size = ctypes.c_size_t()
        self.check(self.library.step_prepare(shape.as_c(), mask, prepared, ctypes.byref(size), stream))
        return size.value

    def workspace_bytes(self, shape: Shape, free_bytes: int) -> int:
        """The bytes of workspace that the step uses if `free_bytes` of device memory are free."""
        size = ctypes.c_size_t()
        self.check(self.library.step_workspace(shape.as_c(), free_bytes, ctypes.byref(size)))
        return size.value

    def forward(
        self,
        shape: Shape,
        q: int,
        k: int,
        v: int,
        o: int,
        lse: int,
        *,
        mask: BlockMask | None = None,
        prepared: int | None = None,
        workspace: int | None = None,
        workspace_bytes: int = 0,
        scales: Sequence[int | None] = (None, None, None),
        stream: int | None = None,
    ) -> None:
        """Enqueues a forward pass; the pointers are addresses of device tensors.

        `mask` and `prepared` are those of prepare(), for a step that takes block masks;
        `workspace` is the address of `workspace_bytes` bytes; `scales` are of q, k and v in e4m3.
        """
        self.check(
            self.library.step_forward(
                shape.as_c(), mask, prepared, workspace, workspace_bytes, q, k, v, o, lse, stream, *scales
            )
        )

    def backward(
        self, shape: Shape, tensors: BackwardTensors, workspace_bytes: int = 0, stream: int | None = None
    ) -> None:
        """Enqueues a backward pass."""
        self.check(self.library.step_backward(shape.as_c(), tensors, workspace_bytes, stream))

    def decode_bytes(self, shape: Shape, page_size: int) -> tuple[int, int]:
        """The bytes of the workspace of a decode pass, which must be 0 at first, and of its schedule."""
        sizes = ctypes.c_size_t(), ctypes.c_size_t()
        self.check(self.library.step_decode_bytes(shape.as_c(), page_size, *map(ctypes.byref, sizes)))
        return sizes[0].value, sizes[1].value

    def schedule(self, shape: Shape, page_size: int, tensors: DecodeTensors, stream: int | None = None) -> None:
        """Enqueues what a batch of lengths needs once."""
        self.check(self.library.step_schedule(shape.as_c(), page_size, tensors, stream))

    def decode(self, shape: Shape, page_size: int, tensors: DecodeTensors, stream: int | None = None) -> None:
        """Enqueues a decode pass."""
        self.check(self.library.step_decode(shape.as_c(), page_size, tensors, stream))

    def graph(self, shape: Shape, page_size: int, tensors: DecodeTensors) -> "Graph":
        """A CUDA graph of a decode pass."""
        made = ctypes.c_void_p()
        self.check(self.library.step_graph(shape.as_c(), page_size, tensors, ctypes.byref(made)))
        return Graph(self, made)


class Graph:
    """A graph of a step's library; a call enqueues a replay."""

    def __init__(self, step: StepLibrary, made: ctypes.c_void_p) -> None:
        self._step, self._made = step, made
        for name in ("device_replay", "device_free_graph"):
            getattr(step.library, name).restype = ctypes.c_char_p

    def __call__(self) -> None:
        self._step.check(self._step.library.device_replay(self._made))

    def __del__(self) -> None:
        self._step.library.device_free_graph(self._made)


class DeviceError(Exception):
    """An error of the CUDA runtime; after most of them, every later call fails too."""


class Memory:
    """Device memory, freed with its last reference."""

    def __init__(self, device: "Device", size: int) -> None:
        self._device, self.size = device, size
        pointer = ctypes.c_void_p()
        try:
            device.call("device_allocate", ctypes.c_size_t(size), ctypes.byref(pointer))
        except DeviceError as error:  # the device can still be used
            raise MemoryError(f"{size} bytes: {error}") from error
        self.address: int = pointer.value

    def __del__(self) -> None:
        if getattr(self, "address", None):
            with contextlib.suppress(DeviceError):
                self._device.call("device_free", ctypes.c_void_p(self.address))

    def upload(self, array: np.ndarray, offset: int = 0) -> "Memory":
        self._device.call(
            "device_copy",
            ctypes.c_void_p(self.address + offset),
            ctypes.c_void_p(array.ctypes.data),
            ctypes.c_size_t(array.nbytes),
        )
        return self

    def download(self, array: np.ndarray, offset: int = 0) -> np.ndarray:
        """Fills the array from `offset` bytes on, after the work enqueued before."""
        self._device.call(
            "device_copy",
            ctypes.c_void_p(array.ctypes.data),
            ctypes.c_void_p(self.address + offset),
            ctypes.c_size_t(array.nbytes),
        )
        return array

    def fill(self, value: int = 0) -> None:
        """Enqueues setting all bytes to `value`."""
        self._device.call("device_fill", ctypes.c_void_p(self.address), value, ctypes.c_size_t(self.size))

    def flush_l2(self) -> None:
        """Enqueues a flush of L2: overwrites one half of this memory, then reads the other."""
        self._device.call("device_flush", ctypes.c_void_p(self.address), ctypes.c_size_t(self.size))


class Device:
    """Memory and a timer of the device, from the runtime in one step's library. On a GPU, all
    libraries and PyTorch can use its memory; on the CPU backend each library has its own device."""

    def __init__(self, library: StepLibrary) -> None:
        self.library = library.library

    def call(self, name: str, *arguments: object) -> None:
        function = getattr(self.library, name)
        function.restype = ctypes.c_char_p
        if (why := function(*arguments)) is not None:
            raise DeviceError(f"{name}: {why.decode()}")

    def allocate(self, size: int) -> Memory:
        return Memory(self, max(size, 1))

    def upload(self, array: np.ndarray) -> Memory:
        array = np.ascontiguousarray(array)
        return self.allocate(array.nbytes).upload(array)

    def synchronize(self) -> None:
        self.call("device_synchronize")

    def read(self, first: "Memory", second: "Memory", size: int) -> None:
        """Enqueues a kernel that only reads so many bytes of each."""
        self.call("device_read", *map(ctypes.c_void_p, (first.address, second.address)), ctypes.c_size_t(size))

    def do_nothing(self) -> None:
        """Enqueues an empty kernel."""
        self.call("device_do_nothing")

    def address(self) -> str:
        """The PCI address, by which nvidia-smi knows the GPU; empty on the CPU backend."""
        text = ctypes.create_string_buffer(32)
        self.call("device_address", text, len(text))
        return text.value.decode()

    def start(self) -> None:
        self.call("timer_start")

    def stop(self) -> tuple[float, bool]:
        """Milliseconds since start(); whether the device may have waited for the host."""
        milliseconds, late = ctypes.c_float(), ctypes.c_bool()
        self.call("timer_stop", ctypes.byref(milliseconds), ctypes.byref(late))
        return milliseconds.value, late.value
