"""What is compared: shapes, element types and masks, their names and how to select them."""

from collections.abc import Callable
from dataclasses import dataclass

from step_library import Shape

QUERIES = 16384  # B * N
WIDTH = 2048  # H * D
HEAD_DIMS, SEQLENS = (64, 128), (4096, 16384)
CURVE_SEQLEN = 1024  # as far from the others as they are from each other
WINDOW, DOCUMENTS, PREFIX_SHARE = 1024, 8, 4
PLAIN = ("full", "causal")

# rule(batch, head, query, key): may the query attend the key? Of NumPy's arrays, or of tensors as
# FlexAttention's mask_mod; head and batch are not looked at.
Rule = Callable[[object, object, object, object], object]


@dataclass(frozen=True)
class Task:
    """One problem for all contestants: as many queries and as wide a model in each."""

    seqlen: int
    head_dim: int
    mask: str  # as for --mask
    dtype: str = "fp16"

    def shape(self) -> Shape:
        heads = WIDTH // self.head_dim
        return Shape(QUERIES // self.seqlen, heads, heads, self.seqlen, self.seqlen, self.head_dim,
                     self.dtype == "bf16", self.mask == "causal")

    def words(self) -> list[str]:
        return [f"N={self.seqlen}", f"D={self.head_dim}", self.dtype, self.mask]

    def __str__(self) -> str:
        return " ".join(self.words())

    def plain(self) -> bool:
        """A mask that every kernel knows."""
        return self.mask in PLAIN

    def rule(self) -> Rule:
        """The mask, of as many keys as queries."""
        name, _, number = self.mask.partition(":")
        size = int(number or 0)
        document = self.seqlen // size if name == "document" else 0
        return {
            "full": lambda b, h, q, k: (q >= 0) & (k >= 0),
            "causal": lambda b, h, q, k: k <= q,
            "window": lambda b, h, q, k: (k <= q) & (q - k < size),
            "document": lambda b, h, q, k: (k <= q) & (q // document == k // document),
            "prefix": lambda b, h, q, k: (k <= q) | (k < size),
        }[name]

    def entries(self) -> int:
        """How many pairs of a query and a key the mask leaves."""
        if self.mask == "full":
            return self.seqlen**2
        name, _, number = self.mask.partition(":")
        size = {"causal": self.seqlen, "window": int(number or 0), "prefix": self.seqlen,
                "document": self.seqlen // int(number or 1)}[name]
        if name == "document":
            return int(number) * size * (size + 1) // 2
        below = max(self.seqlen - size, 0)  # queries with a whole window
        entries = size * (size + 1) // 2 + below * size
        return entries + (int(number) * (int(number) - 1) // 2 if name == "prefix" else 0)

    def flops(self) -> int:
        """4 D for each entry that the mask leaves."""
        shape = self.shape()
        return 4 * shape.head_dim * shape.batch * shape.heads * self.entries()

    def cost(self) -> int:
        """How long all contestants take for it, in proportion: step 01 takes most of it."""
        return 1 if not self.plain() else 2 if self.seqlen < QUERIES else 4


def sparse_masks(seqlen: int) -> list[str]:
    return [f"window:{WINDOW}", f"document:{DOCUMENTS}", f"prefix:{seqlen // PREFIX_SHARE}"]


def all_tasks() -> list[Task]:
    """The headline shapes, D = 256, bf16, the masks, and one more length for the curves over N."""
    def plain(*seqlens: int) -> list[Task]:
        return [Task(seqlen, head_dim, mask) for head_dim in (*HEAD_DIMS, 256)
                for seqlen in seqlens for mask in PLAIN]

    masks = [Task(seqlen, head_dim, mask) for head_dim in HEAD_DIMS for seqlen in SEQLENS
             for mask in sparse_masks(seqlen)]
    return [*plain(*SEQLENS), *(Task(4096, 128, mask, "bf16") for mask in PLAIN), *masks,
            *plain(CURVE_SEQLEN)]


def quick_tasks() -> list[Task]:
    """One of each kind."""
    return [Task(4096, 128, mask) for mask in (*PLAIN, sparse_masks(4096)[0])]


def selected(tasks: list[Task], only: list[str]) -> list[Task]:
    """Those that have all words of one of the selections, such as "D=64,causal"."""
    wanted = [set(selection.split(",")) for selection in only]
    return [task for task in tasks
            if not wanted or any(words <= set(task.words()) for words in wanted)]
