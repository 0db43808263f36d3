"""The problems of `make bench`, in order, and which steps and baselines run each of them."""

from collections.abc import Callable
from dataclasses import asdict, dataclass

from common.python.attention_steps.library import Shape
from tests.lib.steps import settings

# Every problem of the grid has QUERIES = B * N and WIDTH = H * D, so that their work is comparable.
QUERIES, WIDTH = 16384, 2048
HEAD_DIMS, SEQLENS = (128, 64, 256), (4096, 16384, 1024, 512, 2048, 8192)
BACKWARD_SEQLENS = (4096, 16384, 1024, 512)
DENSE = ("full", "causal")
MASK_HEAD_DIMS, MASK_SEQLENS = (64, 128), (4096, 16384)
MASK_BLOCK = 128

# (batch, head, query, key) -> True if attended, as FlexAttention's mask_mod.
Rule = Callable[[object, object, object, object], object]


@dataclass(frozen=True)
class Case:
    """One problem, for the steps and baselines that support it. Fields are named as in records."""

    seqlen: int
    head_dim: int
    mask: str = "full"
    dtype: str = "fp16"
    batch: int = 1
    heads: int = 2
    kind: str = "forward"  # or backward

    def __str__(self) -> str:
        return f"D={self.head_dim} N={self.seqlen} {self.dtype} {self.mask}" + " backward" * (self.kind == "backward")

    def shape(self) -> Shape:
        return Shape(
            self.batch,
            self.heads,
            self.heads,
            self.seqlen,
            self.seqlen,
            self.head_dim,
            self.dtype == "bf16",
            self.mask == "causal",
            e4m3=self.dtype == "e4m3",
        )

    def o_dtype(self) -> str:
        """The type of O of the steps."""
        return "fp16" if self.dtype == "e4m3" else self.dtype

    def elements(self) -> int:
        """The number of elements of each tensor."""
        return self.batch * self.heads * self.seqlen * self.head_dim

    def flops_per_entry(self) -> int:
        """For each unmasked entry: two products forward, five backward."""
        return (10 if self.kind == "backward" else 4) * self.head_dim

    def fields(self) -> dict:
        """The fields of its records."""
        return {
            **asdict(self),
            "kv_heads": self.heads,
            "seqlen_kv": self.seqlen,
            "scale": self.head_dim**-0.5,
            "input": "normal",
        }

    def takes_step(self, step: str) -> bool:
        """The table beside a slow step names the longest sequence that it is measured with."""
        return self.seqlen <= settings(step, "bench").get("longest", self.seqlen)

    def takes_flex(self) -> bool:
        """FlexAttention runs few cases: compiling each takes seconds."""
        return not self.mask.startswith(("blocks", "random")) and self.dtype == "fp16" and self.seqlen in MASK_SEQLENS

    def rule(self) -> Rule:
        """The rule of the mask, with as many keys as queries."""
        name, _, number = self.mask.partition(":")
        size = int(number or 0)
        document = self.seqlen // size if name == "document" else 0
        return {
            "causal": lambda b, h, q, k: k <= q,
            "window": lambda b, h, q, k: (k <= q) & (q - k < size),
            "document": lambda b, h, q, k: (k <= q) & (q // document == k // document),
            "prefix": lambda b, h, q, k: (k <= q) | (k < size),
        }[name]


def case(seqlen: int, head_dim: int, mask: str = "full", dtype: str = "fp16", kind: str = "forward") -> Case:
    """A problem of the grid."""
    return Case(seqlen, head_dim, mask, dtype, QUERIES // seqlen, WIDTH // head_dim, kind)


def block_masks(seqlen: int) -> list[str]:
    """The masks besides full and causal. Drawing random entries is too slow for greater lengths."""
    densities = [f"blocks:0.{tenth}" for tenth in range(1, 10)]
    return [
        "window:1024",
        "document:8",
        f"prefix:{seqlen // 4}",
        *densities,
        *(["random:0.5"] if seqlen <= MASK_SEQLENS[0] else []),
    ]


def all_cases() -> list[Case]:
    """All problems, beginning with the shape of the README's table."""
    dense = [case(n, d, mask) for d in HEAD_DIMS for n in SEQLENS for mask in DENSE]
    masked = [case(n, d, mask) for n in MASK_SEQLENS for mask in block_masks(n) for d in MASK_HEAD_DIMS]
    bf16 = [case(n, 128, mask, "bf16") for n in SEQLENS for mask in DENSE]
    e4m3 = [case(n, d, mask, "e4m3") for d in HEAD_DIMS[:2] for n in SEQLENS for mask in DENSE]
    return [*dense, *masked, *bf16, *e4m3]


def backward_cases() -> list[Case]:
    """All problems of backward steps, beginning with the shape of the README's table."""
    dense = [
        case(n, d, mask, dtype, "backward")
        for n in BACKWARD_SEQLENS
        for d, dtype in (*((d, "bf16") for d in HEAD_DIMS), (128, "fp16"))
        for mask in DENSE
    ]
    masked = [
        case(n, d, mask, "bf16", "backward")
        for n in MASK_SEQLENS
        for mask in block_masks(n)[:3]
        for d in MASK_HEAD_DIMS
    ]
    return [*dense, *masked]


def quick_cases(kind: str = "forward") -> list[Case]:
    """The shape of the README's table, without a mask and with two, and in e4m3."""
    if kind == "backward":
        return backward_cases()[:2]
    return [*(case(4096, 128, mask) for mask in (*DENSE, "window:1024")), case(4096, 128, "full", "e4m3")]
