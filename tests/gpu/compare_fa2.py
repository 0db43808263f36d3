"""Measures steps beside PyTorch's FlashAttention-2, in turns, in one process on one GPU.

Usage: compare_fa2.py [--rounds N] ROWS.jsonl libstepNN.so ... (`make libraries BACKEND=cuda`)
For each library and for FlashAttention-2 a row for each shape is appended to ROWS.jsonl. A round
measures each of them once, after an L2 flush, so that what the clocks do in between meets all
alike. The commit is taken from COMMIT, or from git.

Exit codes: 0, 1 when the answers differ, 2 bad usage, 77 nothing to measure with.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

from step_library import Shape, StepLibrary

PEER = "FlashAttention-2"
QUERIES = 16384  # B * N
WIDTH = 2048  # H * D
WARM_UPS, ROUNDS = 3, 30
# Several times any L2. Overwriting it takes longer than Python takes to enqueue what is measured,
# so that the GPU never waits for that between the two events.
FLUSH_BYTES = 512 << 20
# Each is allowed twice the rounding error r of its result, and r is seldom above 2 u, u = 2^-11.
ALLOWED_DIFFERENCE = 8 * 2.0**-11


def shapes() -> list[Shape]:
    """As many queries and as wide a model in each."""
    return [Shape(QUERIES // seqlen, WIDTH // head_dim, WIDTH // head_dim, seqlen, seqlen, head_dim,
                  False, causal)
            for head_dim in (64, 128) for seqlen in (4096, 16384) for causal in (False, True)]


def flops(shape: Shape) -> int:
    """4 D for each entry that the mask leaves; as many keys as queries."""
    n = shape.seqlen
    entries = n * (n + 1) // 2 if shape.causal else n * n
    return 4 * shape.head_dim * shape.batch * shape.heads * entries


def row_of(name: str, shape: Shape, times_ms: list[float], fa2_ms: float, difference: float | None,
           environment: dict) -> dict:
    """A JSON row, with the fields of the programs' rows where it has the same to say."""
    median = statistics.median(times_ms)
    deciles = statistics.quantiles(times_ms, n=10, method="inclusive")
    return {
        ("peer" if name == PEER else "step"): name, **environment,
        "batch": shape.batch, "heads": shape.heads, "kv_heads": shape.kv_heads,
        "seqlen": shape.seqlen, "seqlen_kv": shape.seqlen_kv, "head_dim": shape.head_dim,
        "dtype": "fp16",
        "mask": "causal" if shape.causal else "full", "layout": "bhnd", "scale": shape.scale(),
        "input": "normal", "right": None, "difference_from_fa2": difference,
        "flops": flops(shape), "samples": len(times_ms), "median_ms": median, "p10_ms": deciles[0],
        "p90_ms": deciles[-1], "tflops": flops(shape) / median * 1e-9,
        "speed_over_fa2": fa2_ms / median,
    }


def commit() -> str:
    """As the Makefile finds it."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    done = subprocess.run(command, capture_output=True, text=True, check=False,
                          cwd=Path(__file__).parent)
    return os.environ.get("COMMIT") or done.stdout.strip() or "unknown"


def environment_of(torch) -> dict:
    """Which machine and versions, the same in every row."""
    gpu = torch.cuda.get_device_properties(0)
    driver = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
                            capture_output=True, text=True, check=False).stdout.split("\n")[0]
    return {"commit": commit(), "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "backend": "cuda", "device": gpu.name, "multiprocessors": gpu.multi_processor_count,
            "compute_capability": 10 * gpu.major + gpu.minor, "cuda_runtime": torch.version.cuda,
            "driver": driver, "torch": torch.__version__}


class Contest:
    """One shape: the inputs, and a call for each contestant that returns its O."""

    def __init__(self, torch, shape: Shape, steps: list[StepLibrary], flush) -> None:
        self.torch, self.shape, self.flush = torch, shape, flush
        generator = torch.Generator("cuda").manual_seed(1)
        size = (shape.batch, shape.heads, shape.seqlen, shape.head_dim)
        self.q, self.k, self.v = (
            torch.randn(size, generator=generator, device="cuda", dtype=torch.float16)
            for _ in range(3))
        self.lse = torch.empty(size[:3], device="cuda", dtype=torch.float32)
        self.calls: dict[str, Callable] = {step.name: self.call_of(step) for step in steps}
        self.calls[PEER] = self.flash_attention

    def call_of(self, step: StepLibrary) -> Callable:
        o = self.torch.full_like(self.q, float("nan"))
        pointers = [tensor.data_ptr() for tensor in (self.q, self.k, self.v, o, self.lse)]
        stream = self.torch.cuda.current_stream().cuda_stream

        def call():
            step.forward(self.shape, *pointers, stream)
            return o
        return call

    def flash_attention(self):
        from torch.nn.attention import SDPBackend, sdpa_kernel
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return self.torch.nn.functional.scaled_dot_product_attention(
                self.q, self.k, self.v, is_causal=self.shape.causal)

    def time_ms(self, call: Callable) -> float:
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.flush.zero_()
        begin.record()
        call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    def differences(self) -> dict[str, float]:
        """The largest relative difference of a row of O from FlashAttention-2's, for each step."""
        expected = self.calls[PEER]().float()
        norms = expected.norm(dim=-1)
        return {name: ((call().float() - expected).norm(dim=-1) / norms).max().item()
                for name, call in self.calls.items() if name != PEER}

    def measure(self, rounds: int) -> dict[str, list[float]]:
        """All in turns; the first rounds warm up."""
        times: dict[str, list[float]] = {name: [] for name in self.calls}
        for _ in range(WARM_UPS + rounds):
            for name, call in self.calls.items():
                times[name].append(self.time_ms(call))
        return {name: all_times[WARM_UPS:] for name, all_times in times.items()}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Measures steps beside PyTorch's FlashAttention-2.")
    parser.add_argument("rows", metavar="ROWS.jsonl", help="where to append the measured rows")
    parser.add_argument("libraries", metavar="libstepNN.so", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=ROUNDS,
                        help=f"at least 2 (default: {ROUNDS})")
    words = parser.parse_args()
    if words.rounds < 2:
        parser.error(f"--rounds {words.rounds}: must be at least 2")
    for path in words.libraries:
        if not path.is_file():
            parser.error(f"{path}: no such file; make libraries BACKEND=cuda")
    return words


def main() -> int:
    words = arguments()
    try:
        import torch
    except ModuleNotFoundError:
        print("compare_fa2: Python needs PyTorch. Install it: pip install torch", file=sys.stderr)
        return 77
    if not torch.cuda.is_available():
        print("compare_fa2: no GPU", file=sys.stderr)
        return 77

    steps, failed = [StepLibrary(path.resolve()) for path in words.libraries], False
    environment = environment_of(torch)
    flush = torch.empty(FLUSH_BYTES, device="cuda", dtype=torch.uint8)
    for shape in shapes():
        contest = Contest(torch, shape, steps, flush)
        differences = contest.differences()
        times = contest.measure(words.rounds)
        fa2_ms = statistics.median(times[PEER])
        with open(words.rows, "a", encoding="utf-8") as file:
            for name, times_ms in times.items():
                row = row_of(name, shape, times_ms, fa2_ms, differences.get(name), environment)
                file.write(json.dumps(row) + "\n")
                print(f"N={shape.seqlen} D={shape.head_dim} {row['mask']:6} {name:16} "
                      f"{row['median_ms']:8.3f} ms {row['tflops']:6.1f} TFLOP/s "
                      f"{100 * row['speed_over_fa2']:4.0f} % of FA2"
                      + (f", differs by {differences[name]:.1e}" if name in differences else ""))
        for name, difference in differences.items():
            if not difference <= ALLOWED_DIFFERENCE:  # NaN too
                print(f"compare_fa2: {name} differs from FlashAttention-2 by {difference:.1e} in "
                      f"some row, {shape}: at most {ALLOWED_DIFFERENCE:.1e} is right",
                      file=sys.stderr)
                failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
