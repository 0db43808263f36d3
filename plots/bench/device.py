"""Steps and their device, as the benchmark needs them: passes, memory, a timer and graphs, by the library of a step
and the CUDA runtime in it (library.c)."""

import contextlib
import ctypes
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from common.python.attention_steps import library
from common.python.attention_steps.library import BackwardTensors, BlockMask, DecodeTensors, Shape

# The names of Ceiling (attention.h) in records.
CEILINGS = ("device memory copy", "fp32 FFMA", "mma.sync", "wgmma", "wgmma e4m3")


class StepLibrary(library.StepLibrary):
    """A step, its passes, and what it says of itself."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
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

    def ceiling(self, shape: Shape, mask: BlockMask | None) -> tuple[str, int]:
        """The step's ceiling, and the bytes of S and P in device memory per unmasked entry."""
        number, traffic = ctypes.c_int(), ctypes.c_int()
        self.library.step_describe(shape, mask, ctypes.byref(number), ctypes.byref(traffic))
        return CEILINGS[number.value], traffic.value

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
    ) -> None:
        """Enqueues a forward pass; the pointers are addresses of device tensors.

        `mask` and `prepared` are those of prepare(), for a step that takes block masks;
        `workspace` is the address of `workspace_bytes` bytes; `scales` are of q, k and v in e4m3.
        """
        settings = shape, mask, prepared, workspace, workspace_bytes
        self.library.step_forward(*settings, q, k, v, o, lse, None, *scales)

    def backward(self, shape: Shape, tensors: BackwardTensors, workspace_bytes: int = 0) -> None:
        """Enqueues a backward pass."""
        self.library.step_backward(shape, tensors, workspace_bytes, None)

    def schedule(self, shape: Shape, page_size: int, tensors: DecodeTensors) -> None:
        """Enqueues what a batch of lengths needs once."""
        self.library.step_schedule(shape, page_size, tensors, None)

    def decode(self, shape: Shape, page_size: int, tensors: DecodeTensors) -> None:
        """Enqueues a decode pass."""
        self.library.step_decode(shape, page_size, tensors, None)

    def graph(self, shape: Shape, page_size: int, tensors: DecodeTensors) -> "Graph":
        """A CUDA graph of a decode pass."""
        made = ctypes.c_void_p()
        self.library.step_graph(shape, page_size, tensors, ctypes.byref(made))
        return Graph(self, made)


class Graph:
    """A graph of a step; a call enqueues a replay."""

    def __init__(self, step: StepLibrary, made: ctypes.c_void_p) -> None:
        self._device, self._made = Device(step), made

    def __call__(self) -> None:
        self._device.call("device_replay", self._made)

    def __del__(self) -> None:
        self._device.call("device_free_graph", self._made)


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
