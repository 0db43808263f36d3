"""Steps and a peer from PyTorch, measured in turns in one process on one GPU.

What compare_fa2.py and compare_flex.py share. A round measures each contestant once, after an L2
flush, so that what the clocks do in between meets all alike; ratios are taken round by round.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "plots"))
from step_library import Shape, StepLibrary  # noqa: E402

QUERIES = 16384  # B * N
WIDTH = 2048  # H * D
WARM_UPS, ROUNDS = 3, 30
# Several times any L2.
FLUSH_BYTES = 512 << 20
MOST_FLUSHES = 64
# Each is allowed twice the rounding error r of its result, and r is seldom above 2 u, u = 2^-11.
ALLOWED_DIFFERENCE = 8 * 2.0**-11

RIGHT, DIFFERENT, FAILED, NOTHING_TO_MEASURE_WITH = 0, 1, 3, 77


def shape_of(seqlen: int, head_dim: int, causal: bool = False) -> Shape:
    """As many queries and as wide a model in each."""
    heads = WIDTH // head_dim
    return Shape(QUERIES // seqlen, heads, heads, seqlen, seqlen, head_dim, False, causal)


# --- Measuring ------------------------------------------------------------------------------------

class Contest:
    """One shape: the inputs, and a call for each contestant that returns its O."""

    def __init__(self, torch, shape: Shape, flush) -> None:
        self.torch, self.shape, self.flush = torch, shape, flush
        self.flushes = 1
        generator = torch.Generator("cuda").manual_seed(1)
        size = (shape.batch, shape.heads, shape.seqlen, shape.head_dim)
        self.q, self.k, self.v = (
            torch.randn(size, generator=generator, device="cuda", dtype=torch.float16)
            for _ in range(3))
        self.lse = torch.empty(size[:3], device="cuda", dtype=torch.float32)
        self.calls: dict[str, Callable] = {}

    def add_step(self, step: StepLibrary, **mask: object) -> None:
        """`mask` goes to StepLibrary.forward()."""
        o = self.torch.full_like(self.q, float("nan"))
        pointers = [tensor.data_ptr() for tensor in (self.q, self.k, self.v, o, self.lse)]
        stream = self.torch.cuda.current_stream().cuda_stream

        def call():
            step.forward(self.shape, *pointers, stream, **mask)
            return o
        self.calls[step.name] = call

    def time_ms(self, call: Callable) -> float:
        """Of a sample in which the GPU had not to wait for Python between the two events.

        Overwriting the flushed memory keeps it busy while the call is enqueued; where once is too
        short for that, it is done more often.
        """
        while True:
            begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
            for _ in range(self.flushes):
                self.flush.zero_()
            begin.record()
            call()
            end.record()
            waited = begin.query()
            end.synchronize()
            if not waited:
                return begin.elapsed_time(end)
            if self.flushes == MOST_FLUSHES:
                raise RuntimeError(f"enqueueing a call takes longer than {MOST_FLUSHES} flushes of "
                                   f"L2, so its time would be that of Python")
            self.flushes *= 2

    def differences(self, peer: str) -> dict[str, float]:
        """The largest relative difference of a row of O from the peer's, for each step."""
        expected = self.calls[peer]().float()
        norms = expected.norm(dim=-1)
        return {name: ((call().float() - expected).norm(dim=-1) / norms).max().item()
                for name, call in self.calls.items() if name != peer}

    def measure(self, rounds: int) -> dict[str, list[float]]:
        """All in turns; the first rounds warm up."""
        times: dict[str, list[float]] = {name: [] for name in self.calls}
        for _ in range(WARM_UPS + rounds):
            for name, call in self.calls.items():
                times[name].append(self.time_ms(call))
        return {name: all_times[WARM_UPS:] for name, all_times in times.items()}


# --- Rows -----------------------------------------------------------------------------------------

def deciles(values: list[float]) -> tuple[float, float]:
    """The first and the last."""
    cuts = statistics.quantiles(values, n=10, method="inclusive")
    return cuts[0], cuts[-1]


def row_of(name: str, kind: str, shape: Shape, mask: str, flops: int, times_ms: list[float],
           environment: dict) -> dict:
    """A JSON row, with the fields of the programs' rows; `kind` is "step" or "peer"."""
    median, (p10, p90) = statistics.median(times_ms), deciles(times_ms)
    return {
        kind: name, **environment,
        "batch": shape.batch, "heads": shape.heads, "kv_heads": shape.kv_heads,
        "seqlen": shape.seqlen, "seqlen_kv": shape.seqlen_kv, "head_dim": shape.head_dim,
        "dtype": "fp16", "mask": mask, "layout": "bhnd", "scale": shape.scale(),
        "input": "normal", "right": None,
        "flops": flops, "samples": len(times_ms), "median_ms": median, "p10_ms": p10,
        "p90_ms": p90, "tflops": flops / median * 1e-9,
    }


def ratio_fields(short: str, times_ms: list[float], peer_ms: list[float]) -> dict[str, float]:
    """How many times as fast as the peer: of the medians, and deciles of the rounds' ratios."""
    p10, p90 = deciles([theirs / ours for ours, theirs in zip(times_ms, peer_ms, strict=True)])
    return {f"speed_over_{short}": statistics.median(peer_ms) / statistics.median(times_ms),
            f"speed_over_{short}_p10": p10, f"speed_over_{short}_p90": p90}


def line_of(row: dict, short: str) -> str:
    """A row of the table on the screen."""
    line = (f"N={row['seqlen']:<5} D={row['head_dim']:<3} {row['mask']:11} "
            f"{row.get('step') or row['peer']:16} {row['median_ms']:8.3f} ms "
            f"{row['tflops']:6.1f} TFLOP/s")
    if row.get(f"speed_over_{short}") is not None and "step" in row:
        speed, low, high = (row[f"speed_over_{short}{end}"] for end in ("", "_p10", "_p90"))
        line += (f" {speed:5.2f} x {short} ({low:.2f} .. {high:.2f}), "
                 f"differs by {row[f'difference_from_{short}']:.1e}")
    return line


def append_rows(path: str, rows: list[dict]) -> None:
    with open(path, "a", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")


def tell_differences(program: str, peer: str, differences: dict[str, float], what: object) -> bool:
    """Says which answers are too far from the peer's; True if any is."""
    wrong = {name: difference for name, difference in differences.items()
             if not difference <= ALLOWED_DIFFERENCE}  # NaN too
    for name, difference in wrong.items():
        print(f"{program}: {name} differs from {peer} by {difference:.1e} in some row, {what}: "
              f"at most {ALLOWED_DIFFERENCE:.1e} is right", file=sys.stderr)
    return bool(wrong)


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


# --- The command line -----------------------------------------------------------------------------

def arguments(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
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


def torch_on_a_gpu(program: str, *modules: str):
    """PyTorch; exits with 77 where it, one of these modules or a GPU is missing."""
    missing = None
    try:
        torch = import_module("torch")
    except ModuleNotFoundError:
        missing = "Python needs PyTorch. Install it: pip install torch"
    for module in modules if missing is None else ():
        try:
            import_module(module)
        except ImportError:
            missing = f"Python, or this PyTorch, has no {module}"
    if missing is None and not torch.cuda.is_available():
        missing = "no GPU"
    if missing is not None:
        print(f"{program}: {missing}", file=sys.stderr)
        sys.exit(NOTHING_TO_MEASURE_WITH)
    return torch
