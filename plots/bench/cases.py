"""Which problems `make bench` measures, in which order, and who takes part in each."""

from collections.abc import Callable
from dataclasses import asdict, dataclass

from plots.bench.step_library import Shape

# Every problem of the grid has as many queries and is as wide, so that all do comparable work.
QUERIES, WIDTH = 16384, 2048
HEAD_DIMS, SEQLENS = (128, 64, 256), (4096, 16384, 1024, 512, 2048, 8192)
DENSE = ("full", "causal")
MASK_HEAD_DIMS, MASK_SEQLENS = (64, 128), (4096, 16384)
MASK_BLOCK = 128

# These take too long on longer sequences.
LONGEST = {"step01": 4096}
# May the query attend the key? As FlexAttention's mask_mod; batch and head make no difference.
Rule = Callable[[object, object, object, object], object]


@dataclass(frozen=True)
class Case:
    """One problem, for all contestants that can solve it. Fields are named as in records."""

    seqlen: int
    head_dim: int
    mask: str = "full"
    dtype: str = "fp16"
    batch: int = 1
    heads: int = 2

    def __str__(self) -> str:
        return f"D={self.head_dim} N={self.seqlen} {self.dtype} {self.mask}"

    def shape(self) -> Shape:
        return Shape(self.batch, self.heads, self.heads, self.seqlen, self.seqlen, self.head_dim,
                     self.dtype == "bf16", self.mask == "causal")

    def elements(self) -> int:
        """Of each tensor."""
        return self.batch * self.heads * self.seqlen * self.head_dim

    def fields(self) -> dict:
        """Of its records."""
        return {**asdict(self), "kv_heads": self.heads, "seqlen_kv": self.seqlen,
                "scale": self.head_dim**-0.5, "input": "normal"}

    def takes_step(self, step: str) -> bool:
        return self.seqlen <= LONGEST.get(step, self.seqlen)

    def takes_flex(self) -> bool:
        """FlexAttention compiles each problem anew, which takes seconds."""
        return (not self.mask.startswith(("blocks", "random")) and self.dtype == "fp16"
                and self.seqlen in MASK_SEQLENS)

    def rule(self) -> Rule:
        """The mask, of as many keys as queries."""
        name, _, number = self.mask.partition(":")
        size = int(number or 0)
        document = self.seqlen // size if name == "document" else 0
        return {
            "causal": lambda b, h, q, k: k <= q,
            "window": lambda b, h, q, k: (k <= q) & (q - k < size),
            "document": lambda b, h, q, k: (k <= q) & (q // document == k // document),
            "prefix": lambda b, h, q, k: (k <= q) | (k < size),
        }[name]


def case(seqlen: int, head_dim: int, mask: str = "full", dtype: str = "fp16") -> Case:
    """Of the grid."""
    return Case(seqlen, head_dim, mask, dtype, QUERIES // seqlen, WIDTH // head_dim)


def block_masks(seqlen: int) -> list[str]:
    """Those beside full and causal. Drawing entries takes a minute at greater lengths."""
    densities = [f"blocks:0.{tenth}" for tenth in range(1, 10)]
    return ["window:1024", "document:8", f"prefix:{seqlen // 4}", *densities,
            *(["random:0.5"] if seqlen <= MASK_SEQLENS[0] else [])]


def all_cases() -> list[Case]:
    """The shape of the README's table first."""
    dense = [case(n, d, mask) for d in HEAD_DIMS for n in SEQLENS for mask in DENSE]
    masked = [case(n, d, mask) for n in MASK_SEQLENS for mask in block_masks(n)
              for d in MASK_HEAD_DIMS]
    bf16 = [case(n, 128, mask, "bf16") for n in SEQLENS for mask in DENSE]
    return [*dense, *masked, *bf16]


def quick_cases() -> list[Case]:
    """The shape of the README's table, without a mask and with two."""
    return [case(4096, 128, mask) for mask in (*DENSE, "window:1024")]
