"""Calls a step from Python, through libstepNN.so (step_library.c)."""

import ctypes
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

# The files of a block mask, in the order of its tensors.
MASK_FILES = ("kv_num_blocks", "kv_indices", "block_mask_types", "partial_block_mask_indices",
              "partial_block_masks")


class _CShape(ctypes.Structure):
    """Shape in step_library.c."""

    _fields_ = [*((name, ctypes.c_int) for name in (
        "batch", "q_heads", "kv_heads", "q_len", "kv_len", "head_dim")),
        ("bf16", ctypes.c_bool), ("causal", ctypes.c_bool), ("scale", ctypes.c_float)]


@dataclass(frozen=True)
class Shape:
    """The problem. `causal` is for steps that take no block mask."""

    batch: int
    heads: int
    kv_heads: int
    seqlen: int
    seqlen_kv: int
    head_dim: int
    bf16: bool
    causal: bool

    def scale(self) -> float:
        return self.head_dim**-0.5

    def as_c(self) -> _CShape:
        return _CShape(*astuple(self), self.scale())


class BlockMask(ctypes.Structure):
    """BlockMask in attention.h: tensors on the device."""

    _fields_ = [*((name, ctypes.c_int) for name in (
        "q_block_size", "kv_block_size", "q_blocks", "max_slots", "tile_count", "batches",
        "heads")),
        *((name, ctypes.c_void_p) for name in MASK_FILES),
        ("num_strides", 3 * ctypes.c_int64), ("index_strides", 4 * ctypes.c_int64),
        ("type_strides", 4 * ctypes.c_int64), ("partial_strides", 4 * ctypes.c_int64)]


def block_mask(shapes: Sequence[Sequence[int]], pointers: Sequence[int]) -> BlockMask:
    """A mask of compact tensors, in the order of MASK_FILES: their shapes and device addresses.

    In each of the first four, the first two dimensions may be 1 and stand for all.
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
    return BlockMask(q_block, kv_block, q_blocks, slots, tiles, batches, heads, *pointers,
                     *map(strides, shapes[:4]))


class StepLibrary:
    """A step; `library` is what ctypes makes of the file."""

    def __init__(self, path: Path) -> None:
        self.name = path.stem.removeprefix("lib")
        self.library = ctypes.CDLL(str(path))
        shape, mask, address = (ctypes.POINTER(_CShape), ctypes.POINTER(BlockMask),
                                ctypes.c_void_p)
        self._prepare = self.library.step_prepare
        self._prepare.argtypes = [shape, mask, address, ctypes.POINTER(ctypes.c_size_t), address]
        self._workspace = self.library.step_workspace
        self._workspace.argtypes = [shape, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)]
        self._forward = self.library.step_forward
        self._forward.argtypes = [shape, mask, address, address, ctypes.c_size_t, *6 * [address]]
        for function in (self._prepare, self._workspace, self._forward):
            function.restype = ctypes.c_char_p
        self.library.step_takes_block_masks.restype = ctypes.c_bool
        self.takes_block_masks: bool = self.library.step_takes_block_masks()

    def prepared_bytes(self, shape: Shape, mask: BlockMask) -> int:
        """How much device memory prepare() wants."""
        return self._call_prepare(shape, mask, None, 0)

    def prepare(self, shape: Shape, mask: BlockMask, prepared: int, stream: int = 0) -> None:
        """Enqueues what is done once per mask, which must be valid; `prepared` is an address."""
        self._call_prepare(shape, mask, prepared, stream)

    def _call_prepare(self, shape: Shape, mask: BlockMask, prepared: int | None,
                      stream: int) -> int:
        size = ctypes.c_size_t()
        _raise(self._prepare(shape.as_c(), mask, prepared, ctypes.byref(size), stream))
        return size.value

    def workspace_bytes(self, shape: Shape, free_bytes: int) -> int:
        """How much workspace it wants when so much device memory is free; 0: none."""
        size = ctypes.c_size_t()
        _raise(self._workspace(shape.as_c(), free_bytes, ctypes.byref(size)))
        return size.value

    def forward(self, shape: Shape, q: int, k: int, v: int, o: int, lse: int, stream: int = 0, *,
                mask: BlockMask | None = None, prepared: int | None = None,
                workspace: int | None = None, workspace_bytes: int = 0) -> None:
        """Enqueues a forward pass; the pointers are addresses of compact device tensors.

        `mask` and `prepared` are those of prepare(), for a step that takes block masks;
        `workspace` has as many bytes as workspace_bytes() said.
        """
        _raise(self._forward(shape.as_c(), mask, prepared, workspace, workspace_bytes, q, k, v, o,
                             lse, stream))


def _raise(why: bytes | None) -> None:
    if why is not None:
        raise ValueError(why.decode())
