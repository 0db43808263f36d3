"""make lab-orders: right kernels have no finding in any order of their threads.

Every step solves the problems of the end-to-end tests with --report, in forward, in reverse and in
20 random orders. One process takes all problems of a step in one order.
"""

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

from tests.e2e.masks import test_masks
from tests.e2e.correctness import test_results
from tests.lib.programs import step_names

ORDERS = ["forward", "reverse", *(f"random:{seed}" for seed in range(1, 21))]
MASK_BLOCKS = "step05"


def problems_of(step: str) -> list[list[str]]:
    """The options of every problem that the tests draw for this step."""
    problems = test_results.problems_of(step, test_results.LENGTHS)
    if step >= MASK_BLOCKS:
        problems += [test_masks.problem_of(row) for row in test_masks.COMBINATIONS]
    return [problem.options() for problem in problems]


def findings(program: Path, cases: Path, order: str) -> list[str]:
    """A line for each finding and for each case that was not right."""
    env = {**os.environ, "SIMT_ORDER": order, "SIMT_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([program, "--report", "--check", "all", "--cases", cases], env=env,
                          capture_output=True, text=True, check=False)
    said = [line for line in done.stdout.splitlines() if line.startswith("finding ") or
            line.startswith(f"{cases}:") and ": right: " not in line]
    return said + done.stderr.splitlines()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("programs", type=Path, help="where the built steps are")
    parser.add_argument("directory", type=Path, help="for the lists of problems")
    parser.add_argument("--step", choices=step_names(), help="this one alone, as step03")
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    failures = 0
    for step in [options.step] if options.step else step_names():
        start, problems = time.monotonic(), problems_of(step)
        cases = options.directory / f"{step}.cases"
        cases.write_text("".join(" ".join(words) + "\n" for words in problems))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            results = pool.map(lambda order, cases=cases, step=step: findings(
                options.programs / step, cases, order), ORDERS)
            for order, lines in zip(ORDERS, results, strict=True):
                failures += len(lines)
                for line in lines:
                    print(f"{step}, {order}: {line}")
        print(f"{step}: {len(problems)} problems in {len(ORDERS)} orders, "
              f"{time.monotonic() - start:.0f} s", flush=True)
    print(f"findings {failures}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
