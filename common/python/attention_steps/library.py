"""Calls a step through libstepNN.so (library.c)."""

import ctypes
import math
import struct
from collections.abc import Sequence
from pathlib import Path

from .gallery import StepError

# The files of a block mask, in the order of its tensors.
MASK_FILES = ("kv_num_blocks", "kv_indices", "block_mask_types", "partial_block_mask_indices", "partial_block_masks")


class Shape(ctypes.Structure):
    """Shape in library.c, the problem. `causal` is for steps without block masks; `strides` are those of batch, head
    and row of Q, K, V and O one after the other, none if all are compact."""

    _fields_ = [
        *((name, ctypes.c_int) for name in ("batch", "heads", "kv_heads", "seqlen", "seqlen_kv", "head_dim")),
        *((name, ctypes.c_bool) for name in ("bf16", "causal", "e4m3")),
        ("scale", ctypes.c_float),
        ("strides", 12 * ctypes.c_int64),
    ]

    def __init__(self, *sizes: int, e4m3=False, scale: float | None = None, strides: tuple[int, ...] = ()) -> None:
        """`sizes` end with bf16 and causal; `scale` is 1/sqrt(head_dim) unless given."""
        super().__init__(*sizes, e4m3, sizes[5] ** -0.5 if scale is None else scale, strides)


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
        return tuple(0 if i < 2 and n == 1 else math.prod(shape[i + 1 :]) for i, n in enumerate(shape))

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
    pack = struct.Struct("@5Pi6P").pack  # the same as bytes, which are made in less time
    _as_parameter_ = property(ctypes.byref)


class StepLibrary:
    """A step; `library` has its functions. They raise StepError for problems that the step does not take."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, path.stem.removeprefix("lib")
        self.library = ctypes.CDLL(str(path))
        shape, mask, address = (ctypes.POINTER(Shape), ctypes.POINTER(BlockMask), ctypes.c_void_p)
        backward, decode = ctypes.POINTER(BackwardTensors), address  # of DecodeTensors, as an object or bytes
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
                function.argtypes, function.restype, function.errcheck = types, ctypes.c_char_p, self._check

    def prepare(self, shape: Shape, mask: BlockMask, prepared: int | None = None, stream: int | None = None) -> int:
        """Returns the bytes of device memory that the preparation of a valid mask needs. If
        `prepared` is the address of as many, also enqueues the preparation, once per mask."""
        size = ctypes.c_size_t()
        self.library.step_prepare(shape, mask, prepared, ctypes.byref(size), stream)
        return size.value

    def workspace_bytes(self, shape: Shape, free_bytes: int) -> int:
        """The bytes of workspace that the step uses if `free_bytes` of device memory are free."""
        size = ctypes.c_size_t()
        self.library.step_workspace(shape, free_bytes, ctypes.byref(size))
        return size.value

    def decode_bytes(self, shape: Shape, page_size: int) -> tuple[int, int]:
        """The bytes of the workspace of a decode pass, which must be 0 at first, and of its schedule."""
        sizes = ctypes.c_size_t(), ctypes.c_size_t()
        self.library.step_decode_bytes(shape, page_size, *map(ctypes.byref, sizes))
        return sizes[0].value, sizes[1].value

    def _check(self, why: bytes | None, *_call: object) -> None:
        """Of what a function returns: NULL, or why it refuses."""
        if why is not None:
            text = why.decode()
            raise StepError(text if self.name in text else f"{self.name}: {text}")
