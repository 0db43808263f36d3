"""Measures step 05 beside PyTorch's compiled FlexAttention, in turns, in one process on one GPU.

Usage: compare_flex.py [--rounds N] ROWS.jsonl libstep05.so ... (`make all libraries BACKEND=cuda`)
The masks are those of the program beside each library (libstep05.so: step05), which saves them with
--save-mask; FlexAttention's are made by create_block_mask() from the same rule. Blocks are 128 x
128 in both. A row for each contestant, mask and shape is appended to ROWS.jsonl; on the masks full
and causal the steps run alone. What is done once per mask, compiling among it, is not timed. The
commit is taken from COMMIT, or from git.

Exit codes: 0, 1 when the answers differ, 2 bad usage, 3 when a program or PyTorch fails, 77 nothing
to measure with.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import side_by_side
from side_by_side import DIFFERENT, FAILED, RIGHT, Contest
from step_library import MASK_FILES, BlockMask, Shape, StepLibrary, block_mask

PEER, SHORT = "FlexAttention", "flex"
BLOCK = 128
HEAD_DIMS, SEQLENS = (64, 128), (4096, 16384)
WINDOW, DOCUMENTS, PREFIX_SHARE = 1024, 8, 4

# mask_mod(batch, head, query, key) of FlexAttention: tensors in, a tensor of bool out.
MaskMod = Callable[[object, object, object, object], object]


def mask_mods(n: int) -> dict[str, MaskMod | None]:
    """The masks for n queries and keys, by their --mask; None where the steps run alone."""
    document = n // DOCUMENTS
    prefix = n // PREFIX_SHARE
    return {
        "full": None,
        "causal": None,
        f"window:{WINDOW}": lambda b, h, q, k: (k <= q) & (q - k < WINDOW),
        f"document:{DOCUMENTS}": lambda b, h, q, k: (k <= q) & (q // document == k // document),
        f"prefix:{prefix}": lambda b, h, q, k: (k <= q) | (k < prefix),
    }


# --- Our masks ------------------------------------------------------------------------------------

@dataclass(frozen=True)
class SavedMask:
    """The five tensors, in the order of MASK_FILES, and how many entries they leave."""

    arrays: tuple
    entries: int


def program_beside(library: Path) -> Path:
    """The program from the same objects as libstepNN.so."""
    return library.with_name(library.stem.removeprefix("lib"))


@lru_cache
def saved_mask(program: Path, mask: str, n: int) -> SavedMask:
    """As the program builds it for n queries and keys, for all heads."""
    import numpy  # there, since main() has looked
    with tempfile.TemporaryDirectory() as directory:
        row = Path(directory) / "row.json"
        command = [program, "-b", "1", "-H", "1", "-n", str(n), "-d", "64", "--mask", mask,
                   "--mask-block", f"{BLOCK}x{BLOCK}", "--save-mask", f"{directory}/mask",
                   "--check", "none", "--repeat", "0", "--json", row]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip() or f"{program}: exit code {done.returncode}")
        arrays = tuple(numpy.load(f"{directory}/mask/{name}.npy") for name in MASK_FILES)
        return SavedMask(arrays, int(json.loads(row.read_text())["flops"]) // (4 * 64))


class PreparedMask:
    """A mask on the device and what a step made of it; keeps both alive."""

    def __init__(self, torch, step: StepLibrary, shape: Shape, saved: SavedMask) -> None:
        self.tensors = [torch.from_numpy(array).cuda() for array in saved.arrays]
        self.mask: BlockMask = block_mask([array.shape for array in saved.arrays],
                                          [tensor.data_ptr() for tensor in self.tensors])
        size = step.prepared_bytes(shape, self.mask)
        self.prepared = torch.empty(size, device="cuda", dtype=torch.uint8)
        step.prepare(shape, self.mask, self.prepared.data_ptr(),
                     torch.cuda.current_stream().cuda_stream)
        torch.cuda.synchronize()


# --- The contest ----------------------------------------------------------------------------------

def add_flex_attention(contest: Contest, mask_mod: MaskMod) -> None:
    """Compiled anew for each mask and shape: a cache of variants would be full after a few."""
    torch = contest.torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    torch._dynamo.reset()
    n = contest.shape.seqlen
    blocks = create_block_mask(mask_mod, None, None, n, n, device="cuda", BLOCK_SIZE=BLOCK)
    compiled = torch.compile(flex_attention, dynamic=False)
    contest.calls[PEER] = lambda: compiled(contest.q, contest.k, contest.v, block_mask=blocks)


def rows_of(shape: Shape, mask: str, entries: int, times: dict[str, list[float]],
            differences: dict[str, float], environment: dict) -> list[dict]:
    flops = 4 * shape.head_dim * shape.batch * shape.heads * entries
    rows = []
    for name, times_ms in times.items():
        row = side_by_side.row_of(name, "peer" if name == PEER else "step", shape, mask, flops,
                                  times_ms, environment)
        row |= {"mask_block_q": BLOCK, "mask_block_kv": BLOCK,
                "difference_from_flex": differences.get(name)}
        if PEER in times:
            row |= side_by_side.ratio_fields(SHORT, times_ms, times[PEER])
        rows.append(row)
    return rows


def compare(torch, libraries: list[Path], shape: Shape, mask: str, mask_mod: MaskMod | None,
            rounds: int, flush, environment: dict) -> tuple[list[dict], dict[str, float]]:
    """The rows of one mask and shape, and how far the steps are from FlexAttention."""
    contest = Contest(torch, shape, flush)
    masks = []
    for path in libraries:
        step, saved = StepLibrary(path), saved_mask(program_beside(path), mask, shape.seqlen)
        masks.append(PreparedMask(torch, step, shape, saved))
        contest.add_step(step, mask=masks[-1].mask, prepared=masks[-1].prepared.data_ptr())
    if mask_mod is not None:
        add_flex_attention(contest, mask_mod)
    differences = {} if mask_mod is None else contest.differences(PEER)
    times = contest.measure(rounds)
    return rows_of(shape, mask, saved.entries, times, differences, environment), differences


def main() -> int:
    words = side_by_side.arguments("Measures step 05 beside PyTorch's compiled FlexAttention.")
    libraries = [path.resolve() for path in words.libraries]
    for program in map(program_beside, libraries):
        if not program.is_file():
            print(f"compare_flex: {program}: no such file; make all BACKEND=cuda", file=sys.stderr)
            return 2
    torch = side_by_side.torch_on_a_gpu("compare_flex", "torch.nn.attention.flex_attention",
                                        "numpy")
    environment, failed = side_by_side.environment_of(torch), False
    flush = torch.empty(side_by_side.FLUSH_BYTES, device="cuda", dtype=torch.uint8)
    for head_dim in HEAD_DIMS:
        for seqlen in SEQLENS:
            shape = side_by_side.shape_of(seqlen, head_dim)
            for mask, mask_mod in mask_mods(seqlen).items():
                what = f"N={seqlen} D={head_dim} {mask}"
                try:
                    rows, differences = compare(torch, libraries, shape, mask, mask_mod,
                                                words.rounds, flush, environment)
                except (RuntimeError, ValueError) as error:
                    print(f"compare_flex: {what}: {' '.join(str(error).split())[:400]}",
                          file=sys.stderr)
                    return FAILED
                side_by_side.append_rows(words.rows, rows)
                for row in rows:
                    print(side_by_side.line_of(row, SHORT), flush=True)
                failed |= side_by_side.tell_differences("compare_flex", PEER, differences, what)
    return DIFFERENT if failed else RIGHT


if __name__ == "__main__":
    sys.exit(main())
