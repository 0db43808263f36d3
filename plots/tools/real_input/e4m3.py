"""Measures what e4m3 costs on real and on random input, and writes the results as JSON records.

Usage: python3 -m plots.tools.real_input.e4m3 DIRECTORY

Writes DIRECTORY/e4m3.jsonl: for each input and type, the errors of the rows of O, compared with the
exact answer for the input in fp16. O is that of the first step in e4m3 where it is built and takes the head
dimension; else NumPy computes it with the same roundings. The inputs are those of measure.py, which
draws the random ones.
"""

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from plots.tools.real_input.inputs import INPUTS, Input
from plots.tools.real_input.measure import problem_of, quantiles, rows_of
from tests.lib.problem import Problem
from tests.lib.programs import REPOSITORY, RIGHT, Program, built_commit, read_result
from tests.lib.reference import attention, rounded_input
from tests.lib.steps import step_names

# Of a record: its type, and what has a scale of its own.
TYPES = (("fp16", ""), ("bf16", ""), ("e4m3", "head"), ("e4m3", "tensor"))


def fp8_program() -> Program | None:
    programs = (Program(name, REPOSITORY / "build" / "cpu") for name in step_names())
    return next((program for program in programs if program.path.exists() and program.facts["fp8"]), None)


def solved_by_step(p: Problem, given: Input) -> np.ndarray | None:
    """O of that step, or None if it cannot be had."""
    program = fp8_program()
    if p.dtype != "e4m3" or program is None:
        return None
    with tempfile.TemporaryDirectory() as scratch:
        done = program.run(
            "-c", "all", "-r", 0, "-o", scratch, *p.options_with_files(given.directory), cwd=REPOSITORY, timeout=3600
        )
        return read_result(Path(scratch)).o if done.returncode == RIGHT else None


def measure(given: Input) -> list[dict]:
    """One record for each of TYPES."""
    tensors = given.tensors()
    exact, records = attention(problem_of(given, "fp16"), *tensors).o, []
    for dtype, scales in TYPES:
        p = replace(problem_of(given, dtype), scales=scales or "head")
        answer = attention(p, *(rounded_input(dtype, x, p.kv_heads, p.scales) for x in tensors))
        o = solved_by_step(p, given)
        found = {"": rows_of(answer.base if o is None else o, exact), "_of_inputs": rows_of(answer.o, exact)}
        records.append(
            {
                "name": given.name,
                "dtype": dtype,
                "scales": scales,
                "commit": built_commit(),
                "by": "NumPy" if o is None else fp8_program().name,
                **{
                    f"{name}_error{of}": float(f"{value:.4g}")
                    for of, errors in found.items()
                    for name, value in (("mean", errors.mean()), ("max", errors.max()))
                },
                "errors": quantiles(found[""], 21),
            }
        )
    return records


def main() -> int:
    records = [record for given in INPUTS for record in measure(given)]
    (Path(sys.argv[1]) / "e4m3.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return 0


if __name__ == "__main__":
    sys.exit(main())
