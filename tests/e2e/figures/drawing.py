"""Draws figures in the tests' own process, from rows of several kinds."""

import contextlib
import io
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from tests.e2e.figures.measured_rows import compare_rows, sweep_rows, write_results, write_rows
from tests.lib.programs import REPOSITORY

pytest.importorskip("matplotlib")
import figures
import rows as measured

NAMES = list(figures.FIGURES)
GIVEN = ("committed", "whole", "grown", "alone")


def draw(*arguments: object) -> SimpleNamespace:
    """figures.py in this process, which has loaded Matplotlib already."""
    out, err = io.StringIO(), io.StringIO()
    with mock.patch.object(sys, "argv", ["figures.py", *map(str, arguments)]), \
            contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        returncode = figures.main()
    return SimpleNamespace(returncode=returncode, stdout=out.getvalue(), stderr=err.getvalue())


def grown(rows: list[dict]) -> list[dict]:
    """With steps up to 12, most a little faster than the one before."""
    last = [row for row in rows if row.get("step") == "step05"]
    speedups = (1.05, 1.02, 1.3, 1.31, 1.29, 1.7, 1.69)
    return rows + [row | {"step": f"step{number:02}", "tflops": row["tflops"] * speedup,
                          "gb_per_s": row.get("gb_per_s", 1) * speedup,
                          "median_ms": row["median_ms"] / speedup}
                   for number, speedup in enumerate(speedups, 6) for row in last]


def rows_given(root: Path) -> dict[str, measured.Results]:
    """What is committed; a whole sweep and comparison; that with twelve steps; a sweep alone."""
    write_results(root / "whole")
    write_rows(root / "grown/h200/sweep_a.jsonl", grown(sweep_rows()))
    write_rows(root / "grown/h200/compare_a.jsonl", grown(compare_rows()))
    write_rows(root / "alone/h200/sweep_a.jsonl", sweep_rows())
    return {"committed": measured.load(REPOSITORY / "plots" / "results" / "h200"),
            **{name: measured.load(root / name / "h200") for name in GIVEN[1:]}}
