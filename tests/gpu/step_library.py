"""Calls a step from Python, through libstepNN.so (step_library.c)."""

import ctypes
from dataclasses import astuple, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Shape:
    """The problem, in the order of step_forward's arguments."""

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


class StepLibrary:
    """A step; `library` is what ctypes makes of the file."""

    def __init__(self, path: Path) -> None:
        self.name = path.stem.removeprefix("lib")
        self.library = ctypes.CDLL(str(path))
        self._forward = self.library.step_forward
        self._forward.argtypes = (6 * [ctypes.c_int] + 2 * [ctypes.c_bool] + [ctypes.c_float]
                                  + 6 * [ctypes.c_void_p])
        self._forward.restype = ctypes.c_char_p

    def forward(self, shape: Shape, q: int, k: int, v: int, o: int, lse: int,
                stream: int = 0) -> None:
        """Enqueues a forward pass; the pointers are addresses of compact device tensors."""
        why = self._forward(*astuple(shape), shape.scale(), q, k, v, o, lse, stream)
        if why is not None:
            raise ValueError(why.decode())
