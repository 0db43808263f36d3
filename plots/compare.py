"""Measures the steps beside PyTorch's kernels, in turns, in one process on one GPU.

Usage: compare.py [OPTIONS] DIRECTORY-OF-CUDA-BUILD RESULTS (`make compare` builds it first)

RESULTS/GPU/compare_COMMIT.jsonl gets a row for each contestant and task; its name ends in .partial
until it is complete, and another call goes on where an interrupted one ended. A further run of the
same commit gets _2 behind its name. With --quick, --only, --peers or --steps the rows go to
compare.jsonl in the directory of the build instead. docs/measuring-peers.md says what is measured.

Exit codes: 0; 1 an answer was wrong; 2 bad usage; 3 a step, a program or PyTorch failed; 77 nothing
to measure with; 130 interrupted.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from compare_gpu import Gpu, date, torch_on_a_gpu
from run_file import (RunError, can_go_on, choose, end_by_signals, exit_code, only_writer,
                      partial_of, refuse_complete)
from step_program import commits_of, in_words

if TYPE_CHECKING:
    from compare_one import Comparison
    from compare_rows import RowFile
    from compare_tasks import Task

RIGHT, WRONG, FAILED, INTERRUPTED = 0, 1, 3, 130
SHORTS = ("fa2", "cudnn", "math", "flex", "fa3")


def arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path, help="where libstepNN.so and the programs are")
    parser.add_argument("results", type=Path, help="gets a folder for each GPU")
    parser.add_argument("--quick", action="store_true", help="three tasks, few turns")
    parser.add_argument("--only", action="append", default=[], metavar="WORD,...",
                        help="tasks with all these words, as in 'N=4096,D=64,fp16,causal'; "
                        "may be given several times")
    parser.add_argument("--peers", type=lambda text: text.split(","), metavar="LIST",
                        help=f"of {','.join(SHORTS)}")
    parser.add_argument("--steps", type=lambda text: text.split(","), metavar="LIST",
                        help="such as step04,step05")
    parser.add_argument("--rows", type=Path, metavar="FILE",
                        help="the file to write, in place of its usual name")
    parser.add_argument("--can-run", action="store_true",
                        help="only tell, by exit code 77, what is missing to run at all")
    found = parser.parse_args(words)
    for peer in found.peers or ():
        if peer not in SHORTS:
            parser.error(f"--peers {peer}: must be of {', '.join(SHORTS)}")
    return found


def libraries(words: argparse.Namespace, commit: str) -> list[Path]:
    """Of the steps asked for, each with its program beside it, which must be of this commit."""
    build, wanted = words.build, words.steps
    found = sorted(build.resolve().glob("libstep[0-9][0-9].so"))
    names = [path.stem.removeprefix("lib") for path in found]
    if not found:
        raise RunError(f"{build}: has no libraries; make all libraries BACKEND=cuda")
    for step in wanted or ():
        if step not in names:
            raise RunError(f"--steps {step}: must be of {', '.join(names)}")
    chosen = [name for name in names if wanted is None or name in wanted]
    commits = commits_of([build / name for name in chosen])
    if set(commits) != {commit}:
        raise RunError(f"{build}: programs of another commit ({in_words(commits)}), but this is "
                       f"{commit}; make all libraries BACKEND=cuda")
    return [path for path, name in zip(found, names) if name in chosen]


class Progress:
    """How far the comparison is, by what its tasks cost."""

    def __init__(self, costs: list[int]) -> None:
        self.costs, self.done, self.started = costs, 0, time.monotonic()

    def next(self) -> str:
        """`[ 3/24]`, and the time that is left."""
        spent, left = sum(self.costs[:self.done]), sum(self.costs[self.done:])
        text = f"[{self.done + 1:2}/{len(self.costs)}]"
        self.done += 1
        if spent == 0:
            return text
        seconds = (time.monotonic() - self.started) / spent * left
        return f"{text} about {seconds:.0f} s left"


def run(words: argparse.Namespace) -> int:
    """The comparison, once what it needs has been found."""
    torch = torch_on_a_gpu("compare")
    if words.can_run:
        return RIGHT
    # Only now, since they import NumPy.
    from compare_one import Comparison
    from compare_rows import RowFile
    from compare_tasks import all_tasks, quick_tasks, selected
    from gpu_name import short_name
    gpu = Gpu(torch)
    environment = gpu.environment()
    tasks = selected(quick_tasks() if words.quick else all_tasks(), words.only)
    if not tasks:
        raise RunError(f"--only {' '.join(words.only)}: no task has these words; there are: "
                       f"{'; '.join(map(str, all_tasks()))}")
    comparison = Comparison(torch, gpu, environment, libraries(words, environment["commit"]),
                            words.peers or SHORTS, words.quick)
    a_look = words.rows is None and any((words.quick, words.only, words.peers, words.steps))
    path = words.rows or (
        words.build / "compare.jsonl" if a_look else
        choose(words.results / short_name(gpu.properties.name), f"compare_{environment['commit']}"))
    with only_writer(path):
        if a_look:  # which replaces the one before
            path.unlink(missing_ok=True)
            partial_of(path).unlink(missing_ok=True)
        refuse_complete(path)
        try:
            return measure_all(comparison, tasks, RowFile(path, environment))
        except KeyboardInterrupt:
            anew = a_look or not can_go_on(environment["commit"])
            print("\ncompare: interrupted; the same command "
                  + ("begins anew" if anew else "goes on with what is there"), file=sys.stderr)
            return INTERRUPTED


def measure_all(comparison: "Comparison", tasks: list["Task"], file: "RowFile") -> int:
    """What is left of these tasks, into the file. The exit code."""
    from compare_rows import line_of
    left = [task for task in tasks if task not in file.done()]
    for line in comparison.notes():
        print(line)
    progress = Progress([task.cost() for task in left])
    for task in left:
        print(f"{progress.next()} {task}", flush=True)
        rows = comparison.rows(task, date())
        file.add(rows)
        for row in rows:
            print(line_of(row, SHORTS), flush=True)
    file.finish()
    print(f"compare: {len(file.rows)} rows in {file.path}, "
          f"{time.monotonic() - progress.started:.0f} s")
    return WRONG if any(row.get("right") is False for row in file.rows) else RIGHT


def main() -> int:
    words = arguments(sys.argv[1:])
    end_by_signals()
    try:
        return exit_code("compare", lambda: run(words))
    except (RuntimeError, ValueError) as error:
        print(f"compare: {' '.join(str(error).split())[:400]}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("\ncompare: interrupted before anything was measured", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
