"""Which problems `make sweep` measures, in which order."""

from collections.abc import Iterable
from dataclasses import dataclass

# Every problem of the grid has as many tokens and is as wide, so that all do comparable work.
TOKENS, WIDTH = 16384, 2048
HEAD_DIMS = (64, 128, 256)
SEQLENS = (512, 1024, 2048, 4096, 8192, 16384)
DTYPES = ("fp16", "bf16")

# These take a second and more beyond; one point shows where they go.
SLOW_STEPS = ("step01", "step02")
SLOW_LONGEST = 4096

# Block masks, and of some of them what prefetch gives: the same with one buffer.
MASK_STEPS = ("step05",)
MASK_HEAD_DIMS = (64, 128)
MASK_SEQLENS = (4096, 16384)
ONE_STAGE_MASKS = ("full", "causal", "window:1024", "document:8")
# As long as these masks are for. The reference takes its time there, and a sample is enough.
LONG_SEQLENS = (65536, 131072)
LONG_MASKS = ("window:1024", "document:8")
LONG_ROWS = 500


@dataclass(frozen=True)
class Case:
    """One row to measure."""

    step: str
    seqlen: int
    head_dim: int
    dtype: str = "fp16"
    mask: str = "full"
    shared_kv: bool = False
    check_rows: int | None = None

    @property
    def batch(self) -> int:
        return max(TOKENS // self.seqlen, 1)

    @property
    def heads(self) -> int:
        return WIDTH // self.head_dim

    def options(self) -> str:
        """For the step's program."""
        words = [f"-b {self.batch} -H {self.heads} -n {self.seqlen} -d {self.head_dim}",
                 f"-t {self.dtype} -m {self.mask}"]
        words += [f"-c rows:{self.check_rows}"] * (self.check_rows is not None)
        words += ["--shared-kv"] * self.shared_kv
        return " ".join(words)

    def identity(self) -> tuple:
        """Equal to identity_of() of the row that this case gives."""
        return (self.step, self.batch, self.heads, self.heads, self.seqlen, self.seqlen,
                self.head_dim, self.dtype, self.mask, self.shared_kv)


def identity_of(row: dict) -> tuple:
    """What tells the rows of one run apart."""
    fields = ("step", "batch", "heads", "kv_heads", "seqlen", "seqlen_kv", "head_dim", "dtype",
              "mask")
    return (*(row[field] for field in fields), row.get("shared_kv", row.get("stages") == 1))


def case_in_words(identity: tuple) -> str:
    """What identity_of() tells, as the step's options say it."""
    step, batch, heads, _, seqlen, _, head_dim, dtype, mask, shared_kv = identity
    return (f"{step} -b {batch} -H {heads} -n {seqlen} -d {head_dim} -t {dtype} -m {mask}"
            f"{' --shared-kv' * shared_kv}")


@dataclass(frozen=True)
class Group:
    """Cases that are measured one right after the other, step by step."""

    name: str
    cases: tuple[Case, ...]


def is_wanted(case: Case) -> bool:
    """Whether the standard grid has this case: not all of the slow steps."""
    if case.step not in SLOW_STEPS or case.seqlen <= SLOW_LONGEST:
        return True
    return (case.seqlen, case.head_dim, case.dtype, case.mask) == (SEQLENS[-1], 128, "fp16", "full")


def dense_group(steps: Iterable[str], seqlen: int, head_dim: int, dtype: str) -> Group:
    """Full and causal, every step in turn."""
    cases = (Case(step, seqlen, head_dim, dtype, mask) for step in steps
             for mask in ("full", "causal"))
    return Group(f"D={head_dim} N={seqlen} {dtype}", tuple(filter(is_wanted, cases)))


def masks_of(seqlen: int) -> list[str]:
    """Those beside full and causal, which are in the standard grid."""
    densities = [f"blocks:0.{tenth}" for tenth in range(1, 10)]
    return ["window:1024", "document:8", f"prefix:{seqlen // 4}", *densities, "random:0.5"]


def mask_groups(steps: Iterable[str]) -> list[Group]:
    """Block masks, in fp16."""
    steps = [step for step in steps if step in MASK_STEPS]
    groups = []
    for head_dim in MASK_HEAD_DIMS:
        for seqlen in MASK_SEQLENS:
            cases = [Case(step, seqlen, head_dim, mask=mask) for mask in masks_of(seqlen)
                     for step in steps]
            cases += [Case(step, seqlen, head_dim, mask=mask, shared_kv=True)
                      for mask in ONE_STAGE_MASKS for step in steps]
            groups.append(Group(f"masks, D={head_dim} N={seqlen}", tuple(cases)))
        cases = [Case(step, seqlen, head_dim, mask=mask, check_rows=LONG_ROWS)
                 for seqlen in LONG_SEQLENS for mask in LONG_MASKS for step in steps]
        groups.append(Group(f"masks, D={head_dim}, long", tuple(cases)))
    return groups


def full_grid(steps: list[str]) -> list[Group]:
    """All of `make sweep`."""
    dense = [dense_group(steps, seqlen, head_dim, dtype) for head_dim in HEAD_DIMS
             for seqlen in SEQLENS for dtype in DTYPES]
    return [group for group in [*dense, *mask_groups(steps)] if group.cases]


def quick_grid(steps: list[str]) -> list[Group]:
    """The shapes that are talked about most."""
    dense = [dense_group(steps, seqlen, head_dim, "fp16")
             for seqlen, head_dim in ((4096, 128), (4096, 64), (16384, 128))]
    masks = Group("masks, D=128 N=16384", tuple(Case(step, 16384, 128, mask=mask)
                                                for mask in LONG_MASKS for step in steps
                                                if step in MASK_STEPS))
    return [group for group in [*dense, masks] if group.cases]
