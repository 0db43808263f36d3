"""Runs the steps on real and on random input, and writes the results as JSON records.

Usage: python3 -m plots.tools.real_input.measure DIRECTORY

Needs the programs of the CPU backend (`make all BACKEND=cpu`). Writes to DIRECTORY: scores.jsonl,
the distribution of the scores of an input; errors.jsonl, the error of every step; no_maximum.jsonl,
steps without the running maximum. Records are those of the programs, with more fields.
"""

import json
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from plots.tools.real_input.inputs import INPUTS, LONG, RANDOM_32, RANDOM_64, Input, draw
from tests.lib import no_maximum
from tests.lib.problem import Problem
from tests.lib.programs import REPOSITORY, RIGHT, WRONG, Program, read_records, read_result
from tests.lib.reference import Answer, attention, round_to
from tests.lib.steps import step_names

# The fields of a program's record that the tables need, and those of its origin.
FIELDS = (
    "step",
    "commit",
    "date",
    "backend",
    "heads",
    "kv_heads",
    "seqlen",
    "head_dim",
    "dtype",
    "mask",
    "scale",
    "input",
    "right",
    "rows",
    "rows_checked",
    "rows_wrong",
    "lse_wrong",
    "values_nan",
    "values_inf",
    "max_error",
    "mean_error",
    "allowed_error",
)
DTYPES = ("fp16", "bf16")
# Factors of 1/sqrt(D) for the steps without a maximum; above 1, P is sharper than in the models.
SHARPER = (1.0, 1.25, 2.0)


def problem_of(given: Input, dtype: str) -> Problem:
    q, k, _ = given.tensors()
    return Problem(
        heads=q.shape[1], kv_heads=k.shape[1], seqlen=q.shape[2], head_dim=q.shape[3], dtype=dtype, mask=given.mask
    )


def quantiles(x: np.ndarray, count: int) -> list[float]:
    """`count` evenly spaced quantiles, from the minimum to the maximum."""
    return [float(f"{value:.4g}") for value in np.quantile(x, np.linspace(0, 1, count))]


def scores_of(given: Input) -> dict:
    """Quantiles over all rows: the largest score, the entropy of P in nats, P of the first key."""
    q, k, _ = given.tensors()
    p = problem_of(given, "fp16")
    attended = np.arange(p.seqlen) < p.attended_keys()[:, None]
    row_max, entropy, first = [], [], []
    for head in range(p.heads):
        scores = q[0, head] @ k[0, head // (p.heads // p.kv_heads)].T * p.scale_used()
        scores[~attended] = -np.inf
        largest = scores.max(axis=-1)
        probs = np.exp(scores - largest[:, None])
        probs /= probs.sum(axis=-1, keepdims=True)
        logarithms = np.log(probs, out=np.zeros_like(probs), where=probs > 0)
        row_max.append(largest)
        entropy.append(-(probs * logarithms).sum(axis=-1))
        first.append(probs[:, 0])
    found = {"row_max": row_max, "entropy": entropy, "first_key": first}
    return {
        "name": given.name,
        "largest_score": float(f"{np.max(row_max):.4g}"),
        "heads_half_on_first_key": int(sum(np.median(x) > 0.5 for x in first)),
        **{name: quantiles(np.concatenate(x), 101) for name, x in found.items()},
    }


def rows_of(o: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """The relative error of each row of O, [H, N]."""
    difference = np.linalg.norm(o.astype(np.float64) - expected, axis=-1)
    return (difference / np.linalg.norm(expected, axis=-1))[0]


def by_position(errors: np.ndarray, o: np.ndarray) -> list[dict]:
    """Errors of the queries 1 to 64, 65 to 128, 129 to 256 and so on, over all heads."""
    found, first = [], 0
    while first < errors.shape[1]:
        end = min(max(64, 2 * first), errors.shape[1])
        part = errors[:, first:end]
        norms = np.linalg.norm(o[0, :, first:end], axis=-1)
        means = {"mean_error": part.mean(), "max_error": part.max(), "mean_norm": norms.mean()}
        found.append(
            {"first": first + 1, "last": end, **{name: float(f"{value:.4g}") for name, value in means.items()}}
        )
        first = end
    return found


def measure_errors(given: Input, scratch: Path) -> list[dict]:
    """One record for each step and dtype."""
    records = []
    exact = {dtype: answer_of(given, dtype) for dtype in DTYPES}
    # The error of rounding the inputs to bf16, before any step.
    rounded = rows_of(exact["bf16"].o, exact["fp16"].o)
    for dtype in DTYPES:
        for program in (Program(name, REPOSITORY / "build" / "cpu") for name in step_names()):
            if program.facts["fp8"]:  # e4m3.py runs it
                continue
            record, o = run(program, given, dtype, scratch)
            errors = rows_of(o, exact[dtype].o)
            more = {
                "name": given.name,
                "errors": quantiles(errors, 21),
                "by_position": by_position(errors, exact[dtype].o),
            }
            if dtype == "bf16":
                more |= {
                    "mean_error_of_inputs": float(f"{rounded.mean():.4g}"),
                    "max_error_of_inputs": float(f"{rounded.max():.4g}"),
                }
            records.append(record | more)
    return records


def answer_of(given: Input, dtype: str) -> Answer:
    p = problem_of(given, dtype)
    return attention(p, *(round_to(dtype, x) for x in given.tensors()))


def run(program: Program, given: Input, dtype: str, scratch: Path, *options: str) -> tuple[dict, np.ndarray]:
    """The JSON record of a run, which may be wrong, and O."""
    directory = scratch / "run"
    shutil.rmtree(directory, ignore_errors=True)
    (scratch / "row.json").unlink(missing_ok=True)
    p = replace(problem_of(given, dtype), mask=given.mask)
    done = program.run(
        "-c",
        "all",
        "-r",
        0,
        "-j",
        scratch / "row.json",
        "-o",
        directory,
        *p.options_with_files(given.directory),
        *options,
        cwd=REPOSITORY,
    )
    assert done.returncode in (RIGHT, WRONG), done.stderr
    (record,) = read_records(scratch / "row.json")
    return {field: record[field] for field in FIELDS}, read_result(directory).o


def measure_without_maximum(scratch: Path, commit: str) -> list[dict]:
    """One record for each step, dtype, input and sharpness."""
    records = []
    for step in no_maximum.PATCHES:
        program = no_maximum.build(scratch / step, step, commit)
        for given in INPUTS:
            for dtype in DTYPES:
                for factor in SHARPER:
                    scale = factor * problem_of(given, dtype).scale_used()
                    record, _ = run(program, given, dtype, scratch, f"--scale={scale!r}")
                    records.append(record | {"name": given.name, "without": "running maximum", "sharper": factor})
    return records


def main() -> int:
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(REPOSITORY / "build" / "real_input", ignore_errors=True)
    draw(RANDOM_64, heads=9, kv_heads=3, length=1024, head_dim=64)
    draw(RANDOM_32, heads=12, kv_heads=12, length=264, head_dim=32)
    draw(LONG, heads=1, kv_heads=1, length=4096, head_dim=64)
    with tempfile.TemporaryDirectory() as scratch:
        errors = [record for given in (*INPUTS, LONG) for record in measure_errors(given, Path(scratch))]
        made = {field: errors[0][field] for field in ("commit", "date")}
        for name, records in {
            "errors": errors,
            "scores": [made | scores_of(given) for given in INPUTS],
            "no_maximum": measure_without_maximum(Path(scratch), made["commit"]),
        }.items():
            (directory / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return 0


if __name__ == "__main__":
    sys.exit(main())
