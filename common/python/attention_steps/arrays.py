"""Arrays as the steps take them: 16-bit numbers in four dimensions, and masks."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .gallery import StepError


def to_16_bits(x: np.ndarray, dtype: str) -> np.ndarray:
    """The 16 bits of each number, rounded to fp16 or bf16."""
    if dtype == "fp16":
        with np.errstate(over="ignore"):
            return x.astype(np.float16).view(np.uint16)
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bf16(bits: np.ndarray) -> np.ndarray:
    """The numbers that these bits stand for, exactly."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


@dataclass
class Form:
    """How the caller writes numbers: results have the same form."""

    dtype: str  # fp16 or bf16: that of the step
    type: np.dtype
    dims: int

    def of(self, bits: np.ndarray) -> np.ndarray:
        """A result of the step, 16 bits [B, H, N, D], as the caller wants it."""
        if self.type.kind == "f" and self.type.itemsize > 2:
            numbers = bits.view(np.float16) if self.dtype == "fp16" else from_bf16(bits)
            return self.without_batch(numbers.astype(self.type))
        return self.without_batch(bits.view(self.type))

    def without_batch(self, x: np.ndarray) -> np.ndarray:
        return x[0] if self.dims == 3 else x


def form_of(q: np.ndarray, dtype: str | None) -> Form:
    """From the first array: float16, uint16 for the bits of bf16, bfloat16 of ml_dtypes, or wider numbers, which
    are rounded to `dtype`, fp16 if it is None."""
    q = np.asarray(q)
    if q.dtype == np.float16:
        own = "fp16"
    elif q.dtype == np.uint16 or q.dtype.name == "bfloat16":
        own = "bf16"
    elif q.dtype.kind == "f":
        own = dtype or "fp16"
    else:
        raise StepError(f"q: its type is {q.dtype}, must be float16, uint16 (the bits of bf16) or float32")
    if dtype not in (None, "fp16", "bf16"):
        raise StepError(f"dtype={dtype!r}: must be 'fp16' or 'bf16'")
    if dtype not in (None, own):
        raise StepError(f"dtype={dtype!r}: must be {own!r}, the type of q")
    if q.ndim not in (3, 4):
        raise StepError(f"q: has the shape {q.shape}, must be [H, N, D] or [B, H, N, D]")
    return Form(own, q.dtype, q.ndim)


def bits_of(name: str, x: np.ndarray, form: Form) -> np.ndarray:
    """The 16 bits of an input, contiguous [B, H, N, D]."""
    x = np.asarray(x)
    if x.dtype != form.type:
        raise StepError(f"{name}: its type is {x.dtype}, must be {form.type}, as that of q")
    if x.ndim != form.dims:
        raise StepError(f"{name}: has the shape {x.shape}, must have {form.dims} dimensions, as q")
    if x.dtype.itemsize > 2:
        bits = to_16_bits(x, form.dtype)
        if form.dtype == "fp16" and not np.isfinite(bits.view(np.float16)[np.isfinite(x)]).all():
            raise StepError(f"{name}: has numbers beyond the range of fp16; dtype='bf16' holds them")
    else:
        bits = np.ascontiguousarray(x).view(np.uint16)
    bits = np.ascontiguousarray(bits)
    return bits[None] if x.ndim == 3 else bits


def as_option(mask: object, folder: Path) -> list[str]:
    """The words of the command line for a mask; an array becomes a file in `folder`."""
    if mask is None:
        return []
    if isinstance(mask, str):
        return ["--mask", mask]
    mask = np.asarray(mask)
    if mask.dtype != bool:
        raise StepError(f"mask: its type is {mask.dtype}, must be bool, where True is a key that the query attends to")
    np.save(folder / "mask.npy", mask)
    return ["--mask", str(folder / "mask.npy")]
