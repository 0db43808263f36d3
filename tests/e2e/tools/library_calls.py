"""Steps as shared libraries, called from NumPy: device memory, one forward pass, its time."""

import ctypes
import ctypes.util
import os
import shutil
import statistics
from pathlib import Path

import numpy as np

from tests.lib import masks
from tests.lib.problem import Problem
from tests.lib.programs import BACKEND, STEP_DIR, Program, Result

from step_library import MASK_FILES, BlockMask, Shape, StepLibrary, block_mask

TO_DEVICE, TO_HOST = 1, 2  # cudaMemcpyKind
L2_CACHE_SIZE = 38  # cudaDevAttrL2CacheSize


def library_of(name: str) -> StepLibrary:
    """A step's, which must have been built."""
    path = STEP_DIR / f"lib{name}.so"
    assert path.exists(), f"{path}: is not built; make libraries BACKEND={BACKEND}"
    return StepLibrary(path)


def shape_of(p: Problem) -> Shape:
    return Shape(p.batch, p.heads, p.kv_heads, p.seqlen, p.seqlen_kv, p.head_dim, p.dtype == "bf16",
                 p.mask == "causal")


def cuda_runtime() -> ctypes.CDLL:
    """libcudart.so of the toolkit. It shares the device's context with what the libraries hold."""
    nvcc = shutil.which(os.environ.get("NVCC", "nvcc")) or "/usr/local/cuda/bin/nvcc"
    beside = Path(nvcc).resolve().parents[1] / "lib64" / "libcudart.so"
    name = str(beside) if beside.exists() else ctypes.util.find_library("cudart")
    assert name is not None, f"no libcudart.so: neither {beside} nor where the linker looks"
    return ctypes.CDLL(name)


class Device:
    """Device memory and events; what was allocated is freed at the end of a `with`.

    On the CPU backend each library holds a runtime, and a device, of its own.
    """

    def __init__(self, library: StepLibrary) -> None:
        self.runtime = library.library if BACKEND == "cpu" else cuda_runtime()
        self.pointers: list[ctypes.c_void_p] = []

    def __enter__(self) -> "Device":
        return self

    def __exit__(self, *_: object) -> None:
        while self.pointers:
            self.call("cudaFree", self.pointers.pop())

    def call(self, name: str, *arguments: object) -> None:
        status = getattr(self.runtime, name)(*arguments)
        assert status == 0, f"{name}: CUDA error {status}"

    def allocate(self, size: int) -> int:
        """An address of `size` bytes."""
        pointer = ctypes.c_void_p()
        self.call("cudaMalloc", ctypes.byref(pointer), ctypes.c_size_t(size))
        self.pointers.append(pointer)
        return pointer.value

    def upload(self, array: np.ndarray) -> int:
        pointer = self.allocate(array.nbytes)
        self.call("cudaMemcpy", ctypes.c_void_p(pointer), ctypes.c_void_p(array.ctypes.data),
                  ctypes.c_size_t(array.nbytes), TO_DEVICE)
        return pointer

    def download(self, pointer: int, array: np.ndarray) -> np.ndarray:
        """Fills the array, and waits for what was enqueued before."""
        self.call("cudaMemcpy", ctypes.c_void_p(array.ctypes.data), ctypes.c_void_p(pointer),
                  ctypes.c_size_t(array.nbytes), TO_HOST)
        return array

    def l2_bytes(self) -> int:
        size = ctypes.c_int()
        self.call("cudaDeviceGetAttribute", ctypes.byref(size), L2_CACHE_SIZE, 0)
        return size.value


class Call:
    """A forward pass with everything on the device, to which a mask of NumPy is copied."""

    def __init__(self, device: Device, library: StepLibrary, p: Problem, inputs: list[np.ndarray],
                 m: masks.BlockMask | BlockMask | None = None, free_bytes: int = 1 << 40) -> None:
        self.device, self.library, self.p, self.shape = device, library, p, shape_of(p)
        o = np.full(p.q_shape(), 0xffff, np.uint16)
        lse = np.full(p.q_shape()[:3], np.nan, np.float32)
        self.tensors = [device.upload(array) for array in (*inputs, o, lse)]
        if isinstance(m, masks.BlockMask):
            m = self._upload(m)
        self.more = {} if m is None else self._prepare(m)
        size = library.workspace_bytes(self.shape, free_bytes)
        if size > 0:
            self.more = {"workspace": device.allocate(size), "workspace_bytes": size}

    def _upload(self, m: masks.BlockMask) -> BlockMask:
        tensors = m.tensors()
        return block_mask([tensor.shape for tensor in tensors],
                          [self.device.upload(tensor) for tensor in tensors])

    def _prepare(self, mask: BlockMask) -> dict:
        prepared = self.device.allocate(self.library.prepared_bytes(self.shape, mask))
        self.library.prepare(self.shape, mask, prepared)
        return {"mask": mask, "prepared": prepared}

    def enqueue(self) -> None:
        self.library.forward(self.shape, *self.tensors, **self.more)

    def result(self) -> Result:
        """O and LSE as the program would write them."""
        self.enqueue()
        bits = self.device.download(self.tensors[3], np.empty(self.p.q_shape(), np.uint16))
        lse = self.device.download(self.tensors[4], np.empty(self.p.q_shape()[:3], np.float32))
        if self.p.dtype == "fp16":
            return Result(bits.view(np.float16), lse)
        return Result((bits.astype(np.uint32) << 16).view(np.float32), lse)


def program_mask(program: Program, p: Problem, directory: Path) -> masks.BlockMask:
    """The block mask that a program makes of the problem's."""
    program.run_right(*p.options(), "--check", "none", "--save-mask", directory)
    return masks.BlockMask(*(np.load(directory / f"{name}.npy") for name in MASK_FILES))


# --- Timing ---------------------------------------------------------------------------------------

WARM_UPS, LEAST_SAMPLES, LEAST_MS = 3, 10, 500.0
# The program flushes L2 once; Python, slower at enqueueing, must keep the GPU busy for longer.
FLUSHES = 4


class Stopwatch:
    """Times calls as the programs do: events around each, L2 flushed before it."""

    def __init__(self, device: Device) -> None:
        self.device, self.events = device, [ctypes.c_void_p(), ctypes.c_void_p()]
        self.flush_bytes = 2 * device.l2_bytes()
        self.flush = device.allocate(self.flush_bytes)
        for event in self.events:
            device.call("cudaEventCreate", ctypes.byref(event))

    def sample_ms(self, call: Call) -> float:
        start, stop = self.events
        for _ in range(FLUSHES):
            self.device.call("cudaMemsetAsync", ctypes.c_void_p(self.flush), 0,
                             ctypes.c_size_t(self.flush_bytes), None)
        self.device.call("cudaEventRecord", start, None)
        call.enqueue()
        self.device.call("cudaEventRecord", stop, None)
        self.device.call("cudaEventSynchronize", stop)
        milliseconds = ctypes.c_float()
        self.device.call("cudaEventElapsedTime", ctypes.byref(milliseconds), start, stop)
        return milliseconds.value

    def median_ms(self, call: Call) -> float:
        for _ in range(WARM_UPS):
            self.sample_ms(call)
        samples: list[float] = []
        while len(samples) < LEAST_SAMPLES or sum(samples) < LEAST_MS:
            samples.append(self.sample_ms(call))
        return statistics.median(samples)
