"""Problems of decode steps: a few new queries at the end of a cache, for the command line and for NumPy."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.lib.generators import draw_inputs, random_bits, random_uniform
from tests.lib.problem import Problem
from tests.lib.reference import Answer, attention, bf16_bits, from_e4m3, round_to, to_e4m3

PAGE_SIZES = (16, 32, 64, 128, 256)
LENGTHS = 40  # the stream of random numbers of drawn lengths


@dataclass(frozen=True)
class DecodeProblem(Problem):
    """`seqlen` are the new queries of each sequence; `seqlen_kv` is no less than the longest length."""

    seqlen: int = 1
    mask: str = "causal"
    lengths: tuple[int, ...] = ()
    page_size: int = 0
    kv_dtype: str = ""  # e4m3, or as dtype

    def __post_init__(self) -> None:
        object.__setattr__(self, "seqlen_kv", self.seqlen_kv or max(1, *self.lengths))
        super().__post_init__()

    def options(self) -> list[str]:
        return [*super().options(), "--lengths", ",".join(map(str, self.lengths))]

    def _rarer_options(self) -> list[str]:
        words = super()._rarer_options()
        if self.page_size:
            words += ["--page-size", str(self.page_size)]
        if self.kv_dtype:
            words += ["--kv-dtype", self.kv_dtype]
        return words

    def options_with_files(self, directory: Path, *inputs: np.ndarray) -> list[str]:
        """Those with files that save() wrote, which say the sizes."""
        assert not inputs
        words = ["--input", str(directory), "--dtype", self.dtype, "--mask", self.mask, "--layout", self.layout]
        return words + (["--kv-dtype", self.kv_dtype] if self.kv_dtype else [])

    def attended(self) -> np.ndarray:
        """Which keys each query attends, bool [B, 1, Nq, Nkv]."""
        lengths = np.array(self.lengths)[:, None, None, None]
        key = np.arange(self.seqlen_kv)
        position = lengths - self.seqlen + np.arange(self.seqlen)[:, None]
        if self.mask == "full":
            return np.broadcast_to(key < lengths, np.broadcast_shapes(position.shape, key.shape))
        window = int(self.mask.partition(":")[2] or 2**31)
        return (key <= position) & (key > position - window) & (key < lengths)

    def is_there(self) -> np.ndarray:
        """Which keys the sequences have, bool [B, 1, Nkv, 1]."""
        return (np.arange(self.seqlen_kv) < np.array(self.lengths)[:, None])[:, None, :, None]

    def drawn(self) -> tuple[np.ndarray, ...]:
        """Q, K and V before they are rounded; 0 past the lengths."""
        q, k, v = draw_inputs(self)
        return q, k * self.is_there(), v * self.is_there()

    def rounded(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, ...]:
        """The same as the step gets it."""
        if self.kv_dtype == "e4m3":
            return round_to(self.dtype, q), *(from_e4m3(*to_e4m3(x, self.kv_heads)) for x in (k, v))
        return tuple(round_to(self.dtype, x) for x in (q, k, v))

    def answer(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> Answer:
        return attention(self, q, k, v, self.attended())


def drawn_lengths(text: str, batch: int, seed: int) -> list[int]:
    """The lengths of `A-B` and `log:A-B`."""
    least, most = map(int, text.removeprefix("log:").split("-"))
    index = np.arange(batch)
    if not text.startswith("log:"):
        return [least + int(bits) % (most - least + 1) for bits in random_bits(seed, LENGTHS, index)]
    found = []
    for u in random_uniform(seed, LENGTHS, index):
        length, root = float(least), most / least
        for _ in range(32):  # binary digits of u, and roots of the ratio
            root = np.sqrt(root)
            u *= 2
            if u >= 1:
                length *= root
                u -= 1
        found.append(min(int(length), most))
    return found


def pages_of(p: DecodeProblem, x: np.ndarray, table: np.ndarray, pages: int, fill: float) -> np.ndarray:
    """K or V, [B, Hkv, Nkv, D], as [pages, page_size, Hkv, D]; `fill` is where no sequence has a key."""
    paged = np.full((pages, p.page_size, p.kv_heads, p.head_dim), fill, x.dtype)
    for b, length in enumerate(p.lengths):
        for key in range(length):
            paged[table[b, key // p.page_size], key % p.page_size] = x[b, :, key]
    return paged


def drawn_table(p: DecodeProblem, rng: np.random.Generator, spare: int = 2) -> tuple[np.ndarray, int]:
    """A page table without shared pages, and the number of pages; -1 past the end of a sequence."""
    counts = [-(-length // p.page_size) for length in p.lengths]
    pages = sum(counts) + spare
    order = rng.permutation(pages)
    table = np.full((p.batch, max(1, *counts)), -1, np.int32)
    for b, count in enumerate(counts):
        table[b, :count], order = order[:count], order[count:]
    return table, pages


def file_of(dtype: str, x: np.ndarray) -> np.ndarray:
    """The numbers as a file holds them exactly."""
    return bf16_bits(x) if dtype == "bf16" else x.astype("<f2")


def save(
    p: DecodeProblem,
    directory: Path,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    table: np.ndarray | None = None,
    **more: np.ndarray,
) -> Path:
    """Writes the files of --input; K and V may be in pages already, with their table."""
    directory.mkdir(parents=True, exist_ok=True)
    files = {"q": file_of(p.dtype, q), "k": k, "v": v, "lengths": np.array(p.lengths, np.int32), **more}
    if table is not None:
        files["page_table"] = table
    for name, array in files.items():
        np.save(directory / f"{name}.npy", array)
    return directory
