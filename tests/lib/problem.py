"""One problem, for the command line and for NumPy."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tests.lib.programs import Program, write_inputs


@dataclass(frozen=True)
class Problem:
    """Fields have the names of options; kv_heads 0 and seqlen_kv 0 mean as many as for Q."""

    batch: int = 1
    heads: int = 1
    kv_heads: int = 0
    seqlen: int = 32
    seqlen_kv: int = 0
    head_dim: int = 64
    dtype: str = "fp16"
    mask: str = "full"
    layout: str = "bhnd"
    scale: float | None = None
    input: str = "normal"
    seed: int = 1
    mask_block: tuple[int, int] | None = None  # for steps that take block masks: queries, keys
    out_dtype: str = "fp16"  # of O and
    scales: str = "head"  # of Q, K and V, both with e4m3 only

    def __post_init__(self) -> None:
        # The dataclass is frozen so that it can be a dictionary's key.
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
        object.__setattr__(self, "seqlen_kv", self.seqlen_kv or self.seqlen)

    def q_shape(self) -> tuple[int, int, int, int]:
        return (self.batch, self.heads, self.seqlen, self.head_dim)

    def kv_shape(self) -> tuple[int, int, int, int]:
        return (self.batch, self.kv_heads, self.seqlen_kv, self.head_dim)

    def scale_used(self) -> float:
        """The factor of Q K^T; the programs hold it in single precision."""
        return float(np.float32(1 / np.sqrt(self.head_dim) if self.scale is None else self.scale))

    def o_dtype(self) -> str:
        """The type of O."""
        return self.out_dtype if self.dtype == "e4m3" else self.dtype

    def for_step(self, step: Program) -> "Problem":
        """The problem, for a step with inputs in e4m3 with these instead, where O keeps its type; and
        with another head dimension for a step that does not take this one."""
        taken = self if step.takes(self.head_dim) else replace(self, head_dim=step.facts["head_dims"][-1])
        return replace(taken, dtype="e4m3", out_dtype=self.dtype) if step.facts["fp8"] else taken

    def attended_keys(self) -> np.ndarray:
        """How many keys each query attends, where these are always the first ones."""
        if self.mask == "full":
            return np.full(self.seqlen, self.seqlen_kv)
        assert self.mask == "causal", f"{self.mask}: tests/lib/masks.py knows it"
        # Query q attends key k iff k <= q + (Nkv - Nq).
        return np.clip(np.arange(self.seqlen) + self.seqlen_kv - self.seqlen + 1, 0, self.seqlen_kv)

    def options(self) -> list[str]:
        """The command line of this problem."""
        words = []
        for name in (
            "batch",
            "heads",
            "kv-heads",
            "seqlen",
            "seqlen-kv",
            "head-dim",
            "dtype",
            "mask",
            "layout",
            "input",
            "seed",
        ):
            words += [f"--{name}", str(getattr(self, name.replace("-", "_")))]
        return words + self._rarer_options()

    def options_with_files(self, directory: Path, *inputs: np.ndarray) -> list[str]:
        """The command line when shapes and values come from q.npy, k.npy and v.npy; writes `inputs`
        to these first."""
        if inputs:
            write_inputs(directory, *inputs)
        words = ["--input", str(directory), "--dtype", self.dtype, "--mask", self.mask, "--layout", self.layout]
        return words + self._rarer_options()

    def _rarer_options(self) -> list[str]:
        words = [] if self.scale is None else [f"--scale={self.scale!r}"]
        if self.dtype == "e4m3":
            words += ["--out-dtype", self.out_dtype, "--scales", self.scales]
        if self.mask_block:
            words += ["--mask-block", "{}x{}".format(*self.mask_block)]
        return words

    def with_other_layout(self) -> "Problem":
        return replace(self, layout="bnhd" if self.layout == "bhnd" else "bhnd")
