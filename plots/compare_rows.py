"""The rows of a comparison: their fields, their table on the screen, their file."""

import json
import math
import os
import statistics
from dataclasses import asdict
from pathlib import Path

from compare_tasks import Task
from contest import Times
from exact import Verdict
from peers import Peer
from run_file import can_go_on, complete, partial_of, read_whole_rows, refuse_others
from step_calls import MASK_BLOCK, SEED, Contestant

# --- Fields ---------------------------------------------------------------------------------------

def deciles(values: list[float]) -> tuple[float, float]:
    """The first and the last."""
    cuts = statistics.quantiles(values, n=10, method="inclusive")
    return cuts[0], cuts[-1]


def verdict_fields(verdict: Verdict) -> dict:
    """None for what NaN or infinities made incomparable."""
    return {name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in asdict(verdict).items()}


def problem_fields(task: Task) -> dict:
    """Named as in the programs' rows."""
    shape = task.shape()
    blocks = {} if task.plain() else {"mask_block_q": MASK_BLOCK, "mask_block_kv": MASK_BLOCK}
    return {"batch": shape.batch, "heads": shape.heads, "kv_heads": shape.kv_heads,
            "seqlen": shape.seqlen, "seqlen_kv": shape.seqlen_kv, "head_dim": shape.head_dim,
            "dtype": task.dtype, "mask": task.mask, "layout": "bhnd", "scale": shape.scale(),
            "input": "normal", "seed": SEED, **blocks, "flops": task.flops(),
            "rows": shape.batch * shape.heads * shape.seqlen}


def time_fields(task: Task, times: Times | None) -> dict:
    """None for who was not measured."""
    if times is None:
        return {"samples": 0, "median_ms": None, "p10_ms": None, "p90_ms": None, "tflops": None}
    values = list(times.values())
    median, (p10, p90) = statistics.median(values), deciles(values)
    return {"samples": len(values), "median_ms": median, "p10_ms": p10, "p90_ms": p90,
            "tflops": task.flops() / median * 1e-9}


def ratio_fields(short: str, ours: Times, theirs: Times) -> dict:
    """How many times as fast as the peer, by rounds: the median and the deciles."""
    ratios = ours.ratios_to(theirs)
    p10, p90 = deciles(ratios)
    return {f"speed_over_{short}": statistics.median(ratios), f"speed_over_{short}_p10": p10,
            f"speed_over_{short}_p90": p90, f"rounds_with_{short}": len(ratios)}


def row_of(contestant: Contestant, task: Task, environment: dict, verdict: Verdict,
           times: dict[str, Times], peers: dict[str, str],
           differences: dict[str, float]) -> dict:
    """The row of one contestant. `peers` are those measured, names by their short ones;
    `differences` from their answers, by short name."""
    own = times.get(contestant.name)
    who = {contestant.kind(): contestant.name}
    row = {**who, **({} if contestant.short is None else {"short": contestant.short}),
           **environment, **problem_fields(task), **verdict_fields(verdict),
           **time_fields(task, own)}
    for short, name in peers.items():
        if own is not None and short != contestant.short:
            row |= {f"difference_from_{short}": differences.get(short),
                    **ratio_fields(short, own, times[name])}
    return row


def skipped_row(peer: Peer, task: Task, environment: dict, reason: str) -> dict:
    """Of a peer that could not solve the task."""
    return {"peer": peer.name, "short": peer.short, **environment, **problem_fields(task),
            "right": None, "skipped": reason, **time_fields(task, None)}


# --- The table ------------------------------------------------------------------------------------

def line_of(row: dict, shorts: list[str]) -> str:
    """A row of the table on the screen."""
    name = row.get("step") or row["peer"]
    if "skipped" in row:
        return f"  {name:16} skipped: {row['skipped']}"
    if row["median_ms"] is None:
        return f"  {name:16} WRONG, so not measured: error of a row {row['max_error']}"
    share = f"error {row['max_error_share']:4.2f} of allowed"
    ratios = [f"{row[f'speed_over_{short}']:.2f} ({row[f'speed_over_{short}_p10']:.2f} .. "
              f"{row[f'speed_over_{short}_p90']:.2f}) x {short}"
              for short in shorts if f"speed_over_{short}" in row]
    return (f"  {name:16} {row['median_ms']:8.3f} ms {row['tflops']:6.1f} TFLOP/s  {share}  "
            f"{', '.join(ratios)}").rstrip()


# --- The file -------------------------------------------------------------------------------------

def task_of(row: dict) -> Task:
    return Task(row["seqlen"], row["head_dim"], row["mask"], row["dtype"])


# One run is of one commit on one card, beside the same peers.
ORIGIN = ("commit", "device", "gpu_uuid", "driver", "cuda_runtime", "torch", "cudnn", "triton",
          "flash_attn_3")


class RowFile:
    """Rows of one run. Its name ends in .partial until all are there; what an interrupted run left
    in such a file is gone on with."""

    def __init__(self, path: Path, environment: dict) -> None:
        self.path, self.partial = path, partial_of(path)
        self.rows: list[dict] = []
        if self.partial.exists() and can_go_on(environment["commit"]):
            self.rows = read_whole_rows(self.partial, "a comparison", task_of)
        refuse_others(self.partial, self.rows, environment, ORIGIN)

    def done(self) -> set[Task]:
        return {task_of(row) for row in self.rows}

    def add(self, rows: list[dict]) -> None:
        """All rows of a task, or none of them if this is interrupted."""
        self.rows += rows
        scratch = self.path.with_name(self.path.name + ".new")
        scratch.write_text("".join(json.dumps(row) + "\n" for row in self.rows))
        os.replace(scratch, self.partial)

    def finish(self) -> None:
        complete(self.path)
