"""Grades the untouched file and the solution of every exercise on a GPU: a line for each, as in `make grade`.

Usage: BACKEND=cuda BUILD=build/cuda-sm_90 python3 tests/gpu/exercises.py [NAME...]
Some untouched files have all points, because a GPU shows no races; but a solution that lost points is a failure.
"""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "steps/exercises"))
import classroom

AT_A_TIME = 8


def graded(row: tuple[str, str, str]) -> bool:
    """Of one file: prints the points, and why some are missing; are all there?"""
    name, what, file = row
    exercise = classroom.EXERCISES[name]
    marks = classroom.marks_of(exercise, file)
    if what == "solution" and any(mark.why for mark in marks):  # times, beside seven other files?
        marks = classroom.marks_of(exercise, file)
    reached = round(sum(mark.reached for mark in marks), 1)
    first = next((f"{mark.what}: {mark.why.splitlines()[0]}" for mark in marks if mark.why), "")
    print(f"{name:9} {what:9} {reached:4g} of {exercise.points:2}  {first}", flush=True)
    return reached == exercise.points


def main() -> int:
    rows = []
    for name in sys.argv[1:] or classroom.EXERCISES:
        exercise = classroom.EXERCISES[name]
        classroom.write_if_changed(classroom.MADE / f"{name}.start.cu", classroom.sources(exercise)[1])
        rows += [(name, "untouched", f"made/{name}.start"), (name, "solution", classroom.solution_of(exercise))]
    folder = (classroom.BUILD / "exercises").relative_to(classroom.ROOT)
    subprocess.run(
        ["make", "-s", "-j16", "-k", f"BACKEND={classroom.BACKEND}", *{f"{folder}/{row[2]}" for row in rows}],
        cwd=classroom.ROOT,
        check=False,
        stderr=subprocess.DEVNULL,
    )
    classroom.prepare_judge()
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        full = list(pool.map(graded, rows))
    return int(not all(is_full for is_full, row in zip(full, rows, strict=True) if row[1] == "solution"))


if __name__ == "__main__":
    sys.exit(main())
