"""Measures steps beside PyTorch's FlashAttention-2, in turns, in one process on one GPU.

Usage: compare_fa2.py [--rounds N] ROWS.jsonl libstepNN.so ... (`make libraries BACKEND=cuda`)
For each library and for FlashAttention-2 a row for each shape is appended to ROWS.jsonl. The commit
is taken from COMMIT, or from git.

Exit codes: 0, 1 when the answers differ, 2 bad usage, 77 nothing to measure with.
"""

import sys

import side_by_side
from side_by_side import DIFFERENT, RIGHT
from step_library import Shape, StepLibrary

PEER, SHORT = "FlashAttention-2", "fa2"


def shapes() -> list[Shape]:
    return [side_by_side.shape_of(seqlen, head_dim, causal)
            for head_dim in (64, 128) for seqlen in (4096, 16384) for causal in (False, True)]


def flops(shape: Shape) -> int:
    """4 D for each entry that the mask leaves; as many keys as queries."""
    n = shape.seqlen
    entries = n * (n + 1) // 2 if shape.causal else n * n
    return 4 * shape.head_dim * shape.batch * shape.heads * entries


def rows_of(shape: Shape, times: dict[str, list[float]], differences: dict[str, float],
            environment: dict) -> list[dict]:
    mask = "causal" if shape.causal else "full"
    return [{**side_by_side.row_of(name, "peer" if name == PEER else "step", shape, mask,
                                   flops(shape), times_ms, environment),
             "difference_from_fa2": differences.get(name),
             **side_by_side.ratio_fields(SHORT, times_ms, times[PEER])}
            for name, times_ms in times.items()]


def add_flash_attention(contest: side_by_side.Contest) -> None:
    attention = contest.torch.nn.attention

    def call():
        with attention.sdpa_kernel(attention.SDPBackend.FLASH_ATTENTION):
            return contest.torch.nn.functional.scaled_dot_product_attention(
                contest.q, contest.k, contest.v, is_causal=contest.shape.causal)
    contest.calls[PEER] = call


def main() -> int:
    words = side_by_side.arguments("Measures steps beside PyTorch's FlashAttention-2.")
    torch = side_by_side.torch_on_a_gpu("compare_fa2", "torch.nn.attention")
    steps, failed = [StepLibrary(path.resolve()) for path in words.libraries], False
    environment = side_by_side.environment_of(torch)
    flush = torch.empty(side_by_side.FLUSH_BYTES, device="cuda", dtype=torch.uint8)
    for shape in shapes():
        contest = side_by_side.Contest(torch, shape, flush)
        for step in steps:
            contest.add_step(step)
        add_flash_attention(contest)
        differences = contest.differences(PEER)
        rows = rows_of(shape, contest.measure(words.rounds), differences, environment)
        side_by_side.append_rows(words.rows, rows)
        for row in rows:
            print(side_by_side.line_of(row, SHORT))
        failed |= side_by_side.tell_differences("compare_fa2", PEER, differences, shape)
    return DIFFERENT if failed else RIGHT


if __name__ == "__main__":
    sys.exit(main())
