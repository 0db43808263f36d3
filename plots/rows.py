"""Reads the measured rows of one GPU: plots/results/GPU/sweep_*.jsonl and compare_*.jsonl.

A file holds one run. A sweep's rows are those of the programs (docs/json-rows.md); a comparison's
are of steps and peers that were measured in turns. What is not as it should be is a RowsError, a
line that names the file and the line in it.
"""

import json
import math
import sys
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from types import NoneType
from typing import get_args, get_type_hints

# The shape of the README's table and of the waterfall; a mask comes with it.
HEADLINE = {"batch": 4, "heads": 16, "kv_heads": 16, "seqlen": 4096, "seqlen_kv": 4096,
            "head_dim": 128, "dtype": "fp16", "layout": "bhnd", "input": "normal"}
MASKS = ("full", "causal")
KINDS = ("sweep", "compare")
SHORT_NAMES = {"FlashAttention-2": "FA2", "FlashAttention-3": "FA3", "FlexAttention": "Flex",
               "unfused SDPA": "math"}


class RowsError(Exception):
    """What a user can put right; one line."""


@dataclass(frozen=True)
class Row:
    """One contestant on one problem: a step of ours or a peer. Times in ms, speeds in TFLOP/s.

    What only some rows have is None in the others.
    """

    commit: str
    date: str
    device: str
    batch: int
    heads: int
    kv_heads: int
    seqlen: int
    seqlen_kv: int
    head_dim: int
    dtype: str
    mask: str
    layout: str
    input: str
    flops: int
    step: str | None = None
    peer: str | None = None
    right: bool | None = None
    samples: int | None = None
    median_ms: float | None = None
    p10_ms: float | None = None
    p90_ms: float | None = None
    tflops: float | None = None
    dense_tflops: float | None = None
    gb_per_s: float | None = None
    gpu_uuid: str | None = None
    driver: str | None = None
    sm_clock_mhz: int | None = None
    cuda_runtime: str | None = None
    shared_kv: bool | None = None
    mask_block_q: int | None = None
    mask_block_kv: int | None = None
    mask_blocks: int | None = None
    mask_blocks_active: int | None = None
    extra_bytes: int | None = None
    max_error: float | None = None
    allowed_error: float | None = None
    ceiling: str | None = None
    ceiling_percent: float | None = None
    ceiling_ffma_tflops: float | None = None
    ceiling_mma_tflops: float | None = None
    ceiling_copy_gb_per_s: float | None = None
    speed_over_fa2: float | None = None
    speed_over_fa2_p10: float | None = None
    speed_over_fa2_p90: float | None = None
    speed_over_flex: float | None = None

    def name(self) -> str:
        """Short: 04, FA2."""
        return (self.step.removeprefix("step") if self.step
                else SHORT_NAMES.get(self.peer, self.peer))

    def density(self) -> float:
        """The share of entries that the mask leaves."""
        return self.flops / (4 * self.head_dim * self.batch * self.heads
                             * self.seqlen * self.seqlen_kv)

    def is_of(self, **wanted: object) -> bool:
        """Whether all these fields have these values."""
        return all(getattr(self, name) == value for name, value in wanted.items())


@dataclass(frozen=True)
class Run:
    """The rows of one file that count: timed, not wrong, and as the step runs by default."""

    path: Path
    rows: list[Row]

    def select(self, **wanted: object) -> list[Row]:
        return [row for row in self.rows if row.is_of(**wanted)]

    def steps(self) -> list[str]:
        return sorted({row.step for row in self.rows if row.step})

    def date(self) -> str:
        """Of the last row."""
        return max(row.date for row in self.rows)

    def origin(self) -> str:
        """Where, from which source and when, for the head of a picture."""
        return f"{self.rows[0].device}, commit {self.rows[0].commit}, {self.date()[:10]}"


@dataclass(frozen=True)
class Results:
    """What there is of one GPU; None where nothing was measured."""

    sweep: Run | None
    compare: Run | None

    def origins(self) -> str:
        """Of both runs, once if it is the same."""
        runs = [run for run in (self.sweep, self.compare) if run]
        cards = {row.gpu_uuid for run in runs for row in run.rows if row.gpu_uuid}
        return "; ".join(dict.fromkeys(run.origin() for run in runs)) + (
            ", two cards" if len(cards) > 1 else "")

    def headline(self, mask: str) -> list[Row]:
        """The sweep's steps in turn on the shape of the table, each found right."""
        rows = self.sweep.select(**HEADLINE, mask=mask, right=True) if self.sweep else []
        return sorted(rows, key=lambda row: row.step)


# --- Rows ----------------------------------------------------------------------------------------

TYPES = {name: get_args(hint) or (hint,) for name, hint in get_type_hints(Row).items()}


def fits(value: object, types: tuple[type, ...]) -> bool:
    """True is no number, but an integer may stand for 1.0."""
    if isinstance(value, bool):
        return bool in types
    return isinstance(value, types) or (isinstance(value, int) and float in types)


# Numbers that are not above 0 mean that something was not measured; but these may be 0.
MAY_BE_ZERO = ("samples", "mask_blocks_active", "extra_bytes", "max_error", "allowed_error",
               "ceiling_percent")
# Times and speeds are written to more digits.
DIGITS = 1e-6


def out_of_range(name: str, value: float) -> str | None:
    """What is wrong with a number, in words; NaN is in no range."""
    if not abs(value) <= sys.float_info.max:
        return f'"{name}" is {json.dumps(value)[:30]}, must be a finite number'
    if name in MAY_BE_ZERO:
        return None if value >= 0 else f'"{name}" is {value}, must be 0 or more'
    return None if value > 0 else f'"{name}" is {value}, must be above 0'


def misfit(found: dict) -> str | None:
    """What is wrong with a row, in words; None if nothing is."""
    if ("step" in found) == ("peer" in found):
        return 'must have either "step" or "peer"'
    for name, types in TYPES.items():
        value = found.get(name)
        if value is None and NoneType not in types:
            return f'has no "{name}"'
        if not fits(value, types):
            return f'"{name}" is {json.dumps(value)}, must be of type {types[0].__name__}'
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            if wrong := out_of_range(name, value):
                return wrong
    if (found.get("mask_blocks_active") or 0) > (found.get("mask_blocks") or 0):
        return '"mask_blocks_active" must be at most "mask_blocks"'
    return misdated(found["date"])


DATE = "%Y-%m-%dT%H:%M:%SZ"


def misdated(date: str) -> str | None:
    """Dates choose the newest run."""
    try:
        told = datetime.strptime(date, DATE).strftime(DATE)
    except ValueError:
        told = None
    return None if date == told else (f'"date" is {json.dumps(date)}, must be like '
                                      "2030-01-02T03:04:05Z")


# What a timed row has beside what every row has.
TIMED = {"sweep": ("median_ms", "p10_ms", "p90_ms", "tflops", "gb_per_s", "max_error",
                   "allowed_error", "ceiling", "ceiling_percent", "ceiling_copy_gb_per_s",
                   "cuda_runtime"),
         "compare": ("median_ms", "tflops", "cuda_runtime")}


def mistimed(found: dict, kind: str) -> str | None:
    """What is wrong with the time of a row that fits, in words; None if nothing is."""
    for name in TIMED[kind]:
        if found.get(name) is None:
            return f'has "samples" but no "{name}"'
    speed = found["flops"] / found["median_ms"] * 1e-9
    if not math.isclose(found["tflops"], speed, rel_tol=DIGITS):
        return f'"tflops" is {found["tflops"]}, but "flops" in "median_ms" are {speed:.6g}'
    return None


def read_row(line: str, kind: str, where: str) -> Row:
    """`where` names the file and the line."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RowsError(f"{where}: no JSON: {error}") from error
    if not isinstance(found, dict):
        raise RowsError(f"{where}: must be an object, see docs/json-rows.md")
    wrong = misfit(found)
    if not wrong and found.get("samples"):
        wrong = mistimed(found, kind)
    if wrong:
        raise RowsError(f"{where}: {wrong}; see docs/json-rows.md")
    found.setdefault("shared_kv", found.get("stages") == 1)  # as older rows tell it
    return Row(**{field.name: found.get(field.name) for field in fields(Row)})


def counts(row: Row) -> bool:
    """Timed, not wrong, and not one of those that ask what a shared K/V buffer would cost."""
    return bool(row.samples) and row.right is not False and not row.shared_kv


def read_run(path: Path, kind: str) -> Run:
    """The rows of a file; of those that measure the same, the last."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RowsError(f"{path}: {error}") from error
    rows = [read_row(line, kind, f"{path}, line {i}") for i, line in enumerate(lines, 1)]
    refuse_other_origins(rows, path)
    latest = {}
    for row in rows:
        if counts(row):
            latest[measurement(row)] = row
    return Run(path, list(latest.values()))


def refuse_other_origins(rows: list[Row], path: Path) -> None:
    """A run is of one commit on one GPU."""
    for i, row in enumerate(rows, 1):
        for field in ("commit", "device", "gpu_uuid"):
            value, first = getattr(row, field), getattr(rows[0], field)
            if value != first:
                raise RowsError(f'{path}, line {i}: "{field}" is {json.dumps(value)}, but that of '
                                f"line 1 is {json.dumps(first)}; a run is of one commit and GPU")


def measurement(row: Row) -> tuple:
    """What is measured, whenever."""
    return (row.step, row.peer, row.batch, row.heads, row.kv_heads, row.seqlen, row.seqlen_kv,
            row.head_dim, row.dtype, row.mask, row.layout, row.input)


# --- Runs ----------------------------------------------------------------------------------------

def newest_complete(runs: list[Run]) -> Run | None:
    """Neither interrupted nor quick: every step of all runs, and half of what the largest has."""
    steps = {step for run in runs for step in run.steps()}
    largest = max((len(run.rows) for run in runs), default=0)
    complete = [run for run in runs
                if run.rows and set(run.steps()) == steps and 2 * len(run.rows) >= largest]
    candidates = complete or [run for run in runs if run.rows]
    return max(candidates, key=Run.date, default=None)


def load(directory: Path) -> Results:
    """The newest complete run of each kind in the directory of one GPU."""
    found = {kind: newest_complete([read_run(path, kind)
                                    for path in sorted(directory.glob(f"{kind}_*.jsonl"))])
             for kind in KINDS}
    return Results(**found)


def gpu_directory(results: Path, gpu: str | None) -> Path:
    """The directory of `gpu`; without a name, of the only GPU that was measured."""
    measured = sorted({path.parent for kind in KINDS for path in results.glob(f"*/{kind}_*.jsonl")})
    names = ", ".join(path.name for path in measured)
    if not measured:
        raise RowsError(f"no results in {results}: make sweep and make compare, on a GPU, "
                        "measure some")
    if gpu is None and len(measured) > 1:
        raise RowsError(f"results of {names} in {results}: choose one with GPU=...")
    chosen = measured[0] if gpu is None else results / gpu
    if chosen not in measured:
        raise RowsError(f"GPU={gpu}: no results in {results}, there are those of: {names}")
    return chosen
