"""make mutants: tries the mutants of the steps and prints the score.

A mutant is built into the checking build of its step, which solves a few problems with --report. A
finding, a wrong answer, or a run that fails or does not end catches it. A mutant that survives is
built again in full and called with tensors that the command line cannot ask for. docs/mutants.md
says what the score means.
"""

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from tests.lib.steps import facts, inherited, source_of
from tests.mutants import score
from tests.mutants.cases import write_cases
from tests.mutants.enumerate_mutants import Mutant, assigned_mutants, mutants_of, step_file, steps_of
from tests.mutants.judge import SURVIVED, Verdict, judge_all, judge_called
from tests.mutants.workspace import HEAD_DIMS, DoesNotCompile, Tools, Workspace

ROOT = Path(__file__).resolve().parents[2]
NOT_COMPILING = "not compiling"
WRAP = "-Wl,--wrap=cudaDeviceGetAttribute"  # as the Makefile links both


def hash_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def included(path: Path, found: dict[Path, None]) -> None:
    """Adds a source and the files of common/ that it includes, in the order of inclusion."""
    if path in found or not path.exists():
        return
    found[path] = None
    for name in re.findall(r'#include "([^"]+)"', path.read_text()):
        included(ROOT / "common" / name, found)


def sources_hash(step: str) -> str:
    """The hash of all that a verdict depends on, except the mutant itself and the cases."""
    sources = {}
    included(ROOT / step_file(ROOT, step), sources)
    backend = [path for path in sorted((ROOT / "common/simt").rglob("*")) if path.suffix in (".cuh", ".c", ".h", ".S")]
    tools = [Path(__file__).with_name(name) for name in ("judge.py", "workspace.py")]
    names = ("step_under_test.c", "solve_problem.h", "decode_under_test.c", "place_tensors.h", "limits.py")
    called = [ROOT / "tests/lib" / name for name in names]
    return hash_of(b"".join(path.read_bytes() for path in [*sources, *backend, *tools, *called]))


def runs_and_trials(step: str, directory: Path, tools: Tools) -> tuple[list, list[str]]:
    """The runs of a mutant of the step, and the trials of step_under_test.c or decode_under_test.c."""
    workspace = Workspace(ROOT, directory / step, tools)
    program = workspace.link(workspace.build(step, None), tools.main)
    known = facts(program)
    runs = write_cases(known, inherited(step, "mutants").get("head_dims", HEAD_DIMS), directory / "cases")
    if known["kind"] == "decode":
        for cases, _ in runs:
            leave_out_refused(program, cases)
        return runs, ["padded", "guarded"]
    if known["head_dims"] == [256]:
        return runs, ["wide"]  # the other trials have smaller head dimensions
    trials = ["padded"]
    if known["needs_compute_capability"] is None:
        trials += ["ragged", "strides", "pointers"]
    return runs, trials + ["l2"] * known["workspace_zero"]


def leave_out_refused(program: Path, cases: Path) -> None:
    """A decode step need not take every form of a problem."""

    def taken(line: str) -> bool:
        return subprocess.run([program, "--info", *line.split()], capture_output=True, check=False).returncode == 0

    cases.write_text("".join(f"{line}\n" for line in cases.read_text().splitlines() if taken(line)))


def verdict_on(
    mutant: Mutant | None, step: str, runs: list, trials: list[str], directory: Path, tools: Tools
) -> Verdict:
    workspace = Workspace(ROOT, directory / f"{step}_{threading.current_thread().name}", tools)
    try:
        program = workspace.link(workspace.build(step, mutant), tools.main)
        verdict = judge_all(program, runs)
        if verdict.how != SURVIVED:
            return verdict
        target = workspace.build(step, mutant, called=True)
        caller = tools.decode_under_test if source_of(step).kind == "decode" else tools.under_test
        return judge_called(workspace.link(target, caller, WRAP), trials)
    except DoesNotCompile as error:
        return Verdict(NOT_COMPILING, str(error).partition("error: ")[2].partition("\n")[0])


def try_step(step: str, mutants: list[Mutant], directory: Path, tools: Tools) -> dict[str, Verdict]:
    """The verdict on each mutant, by name. Those of earlier runs are used again if they still hold:
    of the same sources and, for caught mutants, with the case that caught them; for survivors, with
    the same cases."""
    path, sources, start = directory / f"{step}.jsonl", sources_hash(step), time.monotonic()
    runs, trials = runs_and_trials(step, directory, tools)
    cases = {line for file, _ in runs for line in file.read_text().splitlines()}
    state = {"sources": sources, "cases": hash_of("\n".join(sorted(cases)).encode())}
    known = {}
    for record in map(json.loads, path.read_text().splitlines() if path.exists() else []):
        verdict = Verdict(*(record[key] for key in ("how", "what", "case")))
        noticed = verdict.how != SURVIVED and verdict.case in cases | {""}
        if record["sources"] == sources and (noticed or record["cases"] == state["cases"]):
            known[record["mutant"], record["text"]] = verdict
    left = [mutant for mutant in mutants if (mutant.name, mutant.text) not in known]
    if left and (right := verdict_on(None, step, runs, trials, directory, tools)).how != SURVIVED:
        sys.exit(f"{step}: without any change it is {right.how}: {right.what}")
    with path.open("a") as file, ThreadPoolExecutor(tools.jobs) as pool:
        verdicts = pool.map(lambda mutant: verdict_on(mutant, step, runs, trials, directory, tools), left)
        for i, (mutant, verdict) in enumerate(zip(left, verdicts, strict=True), 1):
            known[mutant.name, mutant.text] = verdict
            file.write(json.dumps({**state, "mutant": mutant.name, "text": mutant.text, **asdict(verdict)}) + "\n")
            file.flush()
            if i % 20 == 0 or i == len(left):
                print(f"{step}: {i} of {len(left)} mutants, {time.monotonic() - start:.0f} s", flush=True)
    return {mutant.name: known[mutant.name, mutant.text] for mutant in mutants}


def ask_later_steps(
    step: str, mutants: list[Mutant], verdicts: dict[str, Verdict], directory: Path, tools: Tools
) -> None:
    """A header may hold code that this step does not use: later steps try the survivors."""
    judged = score.read_judged(step)
    later = [name for name in steps_of(ROOT) if name > step]
    for name in later:
        known_there = {mutant.name for mutant in mutants_of(ROOT, name)}
        left = [
            m
            for m in mutants
            if m.name in known_there
            and verdicts[m.name].how == SURVIVED
            and judged.get(m.name, {}).get("verdict") != "equivalent"
        ]
        if left:
            verdicts.update(try_step(name, left, directory, tools))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path, help="where verdicts are kept")
    parser.add_argument("--step", action="append", help="stepNN; all when not given")
    parser.add_argument("--only", type=re.compile, help="mutants whose name has this pattern, as Python writes it")
    parser.add_argument("--sample", type=int, help="so many of each step, drawn at random")
    parser.add_argument("--summary", type=Path, help="JSON records to write, one a step")
    options = parser.parse_args()
    assigned = assigned_mutants(ROOT)
    for step in options.step or ():
        if step not in assigned:
            parser.error(f"STEP={step[4:]}: must be one of {', '.join(s[4:] for s in assigned)}")
    chosen = {}
    for step in options.step or assigned:
        drawn = set(score.in_random_order([m.name for m in assigned[step]])[: options.sample])
        chosen[step] = [
            m for m in assigned[step] if m.name in drawn and (options.only is None or options.only.search(m.name))
        ]
    options.directory.mkdir(parents=True, exist_ok=True)
    tools = Tools.from_environment()
    records = []
    for step, mutants in chosen.items():
        if not mutants:
            continue
        verdicts = try_step(step, mutants, options.directory, tools)
        ask_later_steps(step, mutants, verdicts, options.directory, tools)
        if options.only is None:
            score.write_judged(step, [name for name, v in verdicts.items() if v.how == SURVIVED])
        of = assigned[step] if options.only is None else mutants
        records.append(score.record_of(step, verdicts, score.read_judged(step), len(of)))
    if options.summary:
        score.write_records(options.summary, records, os.environ.get("COMMIT", "unknown"))
    return score.report(records, sys.stdout)


if __name__ == "__main__":
    sys.exit(main())
