"""Measures all steps over the standard grid, into a file that can be gone on with.

Usage: sweep.py [--quick] [--rows FILE] DIRECTORY-OF-CUDA-BUILD RESULTS

RESULTS/GPU/sweep_COMMIT.jsonl gets the rows of the steps' own programs; with --quick it is
quick_COMMIT.jsonl and has the shapes that are talked about most. Until it is complete its name ends
in .partial, and another call goes on where the last one ended; a further run of the same commit
gets _2 behind its name, and so on. docs/measuring.md says more.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from ceilings import read_row
from gpu_name import short_name
from run_file import (RunError, can_go_on, choose, complete, end_by_signals, exit_code,
                      only_writer, partial_of, refuse_complete)
from step_program import commits_of, first_line, in_words
from sweep_file import read_rows, resume
from sweep_grid import Case, Group, case_in_words, full_grid, identity_of, quick_grid
from sweep_progress import Progress

NO_GPU = 77
INTERRUPTED = 130
# As programs report each case of --cases.
VERDICT = re.compile(r":(\d+): (right|WRONG|refused|failed|not checked): ")


def find_programs(build: Path) -> list[Path]:
    """The steps' programs, which must all be of one commit."""
    programs = sorted(path for path in build.glob("step[0-9][0-9]") if path.is_file())
    if not programs:
        raise RunError(f"{build}: has no programs; make all BACKEND=cuda")
    commits = commits_of(programs)
    if len(commits) > 1:
        raise RunError(f"{build}: programs of several commits ({in_words(commits)}); make all "
                       "BACKEND=cuda")
    return programs


def measure_ceilings(program: Path) -> dict:
    """Measured at the start, so that all rows of the sweep have the same; tells the GPU as well."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "row"
        done = subprocess.run([program, "--ceilings", "--json", path], capture_output=True,
                              text=True, check=False)
        if done.returncode == NO_GPU:
            raise RunError(f"no GPU here, and times need one ({first_line(done.stderr)})", NO_GPU)
        if done.returncode != 0:
            raise RunError(first_line(done.stderr), done.returncode)
        if "\nnot kept " in done.stdout:
            raise RunError("the ceilings cannot be kept, so that every program would measure its "
                             "own; XDG_CACHE_HOME must name a directory that can be written")
        return read_row(program, path)


class Sweep:
    """What is measured so far, and what became of the rest."""

    def __init__(self, build: Path, path: Path, groups: list[Group], rows: list[dict]) -> None:
        self.build, self.path, self.groups = build, path, groups
        self.done = {identity_of(row) for row in rows}
        self.measured = set(self.done)
        self.refused: list[str] = []
        self.failed: list[str] = []
        left = [case.step for group in groups for case in group.cases if not self.has(case)]
        total = sum(len(group.cases) for group in groups)
        self.progress = Progress(left, total - len(left))

    def has(self, case: Case) -> bool:
        """Whether there is a row of it."""
        return case.identity() in self.done

    def run(self) -> None:
        """All groups; in each of them the steps take turns."""
        for group in self.groups:
            left = [case for case in group.cases if not self.has(case)]
            for step in dict.fromkeys(case.step for case in left):
                self.measure(group, [case for case in left if case.step == step])
            if left:
                self.progress.group_done(group.name)
        self.progress.clear()

    def measure(self, group: Group, cases: list[Case]) -> None:
        """Cases of one step, by one run of its program, which appends a row for each."""
        step = cases[0].step
        text = f"{step} {group.name}"
        self.progress.draw(text)
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / "cases"
            file.write_text("".join(case.options() + "\n" for case in cases))
            errors = Path(scratch) / "errors"
            verdicts = {}
            with errors.open("w") as stderr, subprocess.Popen(
                    [self.build / step, "--cases", file, "--json", self.path], text=True,
                    stdout=subprocess.PIPE, stderr=stderr) as process:
                try:
                    for line in process.stdout:
                        if found := VERDICT.search(line):
                            verdicts[int(found[1])] = found[2]
                            self.progress.case_done(step, text)
                except BaseException:
                    process.kill()  # or it would go on writing rows
                    raise
            said = errors.read_text().replace(f"{file}:", "")
        self.judge(cases, verdicts, said, process.returncode)

    def judge(self, cases: list[Case], verdicts: dict[int, str], said: str, code: int) -> None:
        """Notes what gave no row; rows themselves say whether they are right."""
        for number, case in enumerate(cases, start=1):
            verdict = verdicts.get(number)
            reason = re.search(rf"^{number}: (.*)", said, re.MULTILINE)
            why = f"{case.step} {case.options()}: {reason[1] if reason else first_line(said)}"
            if verdict == "refused":
                self.refused.append(why)
            elif verdict in (None, "failed"):
                self.failed.append(why if verdict else f"{why} (exit code {code})")
            else:
                self.measured.add(case.identity())
            if verdict is None:
                self.progress.case_done(case.step, case.step)


def finish(sweep: Sweep, path: Path) -> int:
    """Says what came out, and gives a complete file its name. The exit code."""
    rows = read_rows(sweep.path) if sweep.path.exists() else []
    if lost := sweep.measured - {identity_of(row) for row in rows}:
        raise RunError(f"{sweep.path}: {len(lost)} of the rows that were measured are gone; the "
                       "same command measures them again", 3)
    wrong = [row for row in rows if row.get("right") is not True or not row.get("samples")]
    for row in wrong:
        print(f"sweep: WRONG or not timed: {case_in_words(identity_of(row))}", file=sys.stderr)
    for what, reasons in (("refused", sweep.refused), ("failed", sweep.failed)):
        for reason in reasons:
            print(f"sweep: {what}: {reason}", file=sys.stderr)
    if sweep.failed or not rows:
        print(f"sweep: not complete; the same command goes on with {sweep.path}", file=sys.stderr)
        return 1
    complete(path)
    print(f"sweep: {len(rows)} rows in {path}, {sweep.progress.elapsed()}")
    return 1 if wrong else 0


def run(arguments: argparse.Namespace) -> int:
    programs = find_programs(arguments.build)
    origin = measure_ceilings(programs[0])
    if arguments.rows is None:
        stem = f"{'quick' if arguments.quick else 'sweep'}_{origin['commit']}"
        path = choose(arguments.results / short_name(origin["device"]), stem)
    else:
        path = arguments.rows
    with only_writer(path):
        refuse_complete(path)
        return measure_all(arguments, path, [program.name for program in programs], origin)


def measure_all(arguments: argparse.Namespace, path: Path, steps: list[str], origin: dict) -> int:
    """What is left of the sweep of `path`. The exit code."""
    groups = (quick_grid if arguments.quick else full_grid)(steps)
    partial = partial_of(path)
    sweep = Sweep(arguments.build, partial, groups, resume(partial, origin))
    print(f"sweep: {len(steps)} steps on {origin['device']}, commit {origin['commit']}: "
          f"{sweep.progress.state()}", flush=True)
    try:
        sweep.run()
    except KeyboardInterrupt:
        sweep.progress.clear()
        what = f"goes on with {partial}" if can_go_on(origin["commit"]) else "begins anew"
        print(f"sweep: interrupted; the same command {what}", file=sys.stderr)
        return INTERRUPTED
    return finish(sweep, path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path, help="where the programs of BACKEND=cuda are")
    parser.add_argument("results", type=Path, help="gets a folder for each GPU")
    parser.add_argument("--quick", action="store_true", help="only the shapes most talked about")
    parser.add_argument("--rows", type=Path, help="the file to write, in place of its usual name")
    words = parser.parse_args()
    end_by_signals()
    try:
        return exit_code("sweep", lambda: run(words))
    except KeyboardInterrupt:
        print("sweep: interrupted before anything was measured", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
