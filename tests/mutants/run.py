"""make mutants: tries every mutant of the steps and prints the score.

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
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from tests.lib.steps import facts, inherited
from tests.mutants import table
from tests.mutants.cases import write_cases
from tests.mutants.enumerate_mutants import (Mutant, assigned_mutants, mutants_of, step_file,
                                             steps_of)
from tests.mutants.equivalents import read_equivalents
from tests.mutants.judge import SURVIVED, Verdict, judge_all, judge_called
from tests.mutants.workspace import HEAD_DIMS, DoesNotCompile, Tools, Workspace

ROOT = Path(__file__).resolve().parents[2]
NOT_COMPILING = "not compiling"
WRAP = "-Wl,--wrap=cudaDeviceGetAttribute"  # as the Makefile links step_under_test.c


def included(path: Path, found: dict[Path, None]) -> None:
    """Adds a source and the files of common/ that it includes, in the order of inclusion."""
    if path in found or not path.exists():
        return
    found[path] = None
    for name in re.findall(r'#include "([^"]+)"', path.read_text()):
        included(ROOT / "common" / name, found)


def sources_hash(step: str) -> str:
    """The hash of all that a verdict depends on, except the mutant itself and the cases."""
    whole, sources = hashlib.sha256(), {}
    included(ROOT / step_file(ROOT, step), sources)
    backend = [path for path in sorted((ROOT / "common/simt").rglob("*"))
               if path.suffix in (".cuh", ".c", ".h", ".S")]
    tools = [Path(__file__).with_name(name) for name in ("judge.py", "workspace.py")]
    called = [ROOT / "tests/lib" / name
              for name in ("step_under_test.c", "place_tensors.h", "limits.py")]
    for path in [*sources, *backend, *tools, *called]:
        whole.update(path.read_bytes())
    return whole.hexdigest()[:16]


def cases_hash(cases: set[str]) -> str:
    return hashlib.sha256("\n".join(sorted(cases)).encode()).hexdigest()[:16]


class Runner:
    """Verdicts on the mutants of one step, on as many threads as there are processors."""

    def __init__(self, step: str, directory: Path, tools: Tools) -> None:
        self.step, self.tools = step, tools
        self.directory, self.local, self.made = directory, threading.local(), 0
        self.lock = threading.Lock()
        workspace, settings = self._workspace(), inherited(step, "mutants")
        self.facts = facts(workspace.link(workspace.build(step, None), tools.main))
        self.runs = write_cases(self.facts, settings.get("head_dims", HEAD_DIMS), directory / "cases")
        self.trials = ["padded"]  # of step_under_test.c
        if self.facts["needs_compute_capability"] is None:
            self.trials += ["ragged", "strides", "pointers"]
        self.trials += ["l2"] * self.facts["workspace_zero"]
        self.trials += ["wide"] * (256 in settings.get("called_head_dims", ()))

    def _workspace(self) -> Workspace:
        if not hasattr(self.local, "workspace"):
            with self.lock:
                self.made += 1
                name = f"{self.step}_{self.made}"
            self.local.workspace = Workspace(ROOT, self.directory / name, self.tools)
        return self.local.workspace

    def verdict(self, mutant: Mutant | None) -> Verdict:
        try:
            return self._try(mutant, self._workspace())
        except DoesNotCompile as error:
            return Verdict(NOT_COMPILING, str(error).partition("error: ")[2].partition("\n")[0])

    def _try(self, mutant: Mutant | None, workspace: Workspace) -> Verdict:
        target = workspace.build(self.step, mutant)
        verdict = judge_all(workspace.link(target, self.tools.main), self.runs)
        if verdict.how != SURVIVED:
            return verdict
        target = workspace.build(self.step, mutant, called=True)
        return judge_called(workspace.link(target, self.tools.under_test, WRAP),
                            self.trials)


def read_verdicts(path: Path, sources: str, cases: set[str]) -> dict[tuple[str, str], Verdict]:
    """Verdicts of earlier runs that still hold, by name and text: of the same sources and, for
    caught mutants, with the case that caught them; for survivors, with the same cases."""
    records = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    known = {}
    for record in records:
        holds = (record["cases"] == cases_hash(cases) if record["how"] == SURVIVED else
                 record["case"] in cases | {""})
        if record["sources"] == sources and holds:
            known[record["mutant"], record["text"]] = Verdict(record["how"], record["what"],
                                                              record["case"])
    return known


def try_step(step: str, mutants: list[Mutant], directory: Path, tools: Tools) -> dict:
    """The verdict on each mutant, by name. Known verdicts are used again."""
    path, sources = directory / f"{step}.jsonl", sources_hash(step)
    runner, start = Runner(step, directory, tools), time.monotonic()
    cases = {line for file, _ in runner.runs for line in file.read_text().splitlines()}
    known = read_verdicts(path, sources, cases)
    left = [mutant for mutant in mutants if (mutant.name, mutant.text) not in known]
    if left and (right := runner.verdict(None)).how != SURVIVED:
        sys.exit(f"{step}: without any change it is {right.how}: {right.what}")
    with path.open("a") as file, ThreadPoolExecutor(tools.jobs) as pool:
        verdicts = pool.map(runner.verdict, left)
        for i, (mutant, verdict) in enumerate(zip(left, verdicts, strict=True), 1):
            known[mutant.name, mutant.text] = verdict
            file.write(json.dumps({"sources": sources, "cases": cases_hash(cases),
                                   "mutant": mutant.name, "text": mutant.text,
                                   **asdict(verdict)}) + "\n")
            file.flush()
            if i % 20 == 0 or i == len(left):
                print(f"{step}: {i} of {len(left)} mutants, {time.monotonic() - start:.0f} s",
                      flush=True)
    return {mutant.name: known[mutant.name, mutant.text] for mutant in mutants}


def ask_later_steps(step: str, mutants: list[Mutant], verdicts: dict[str, Verdict],
                    reasons: dict[str, str], directory: Path, tools: Tools) -> None:
    """A header may hold code that this step does not use: later steps try the survivors."""
    later = [name for name in steps_of(ROOT) if name > step]
    for name in later:
        known_there = {mutant.name for mutant in mutants_of(ROOT, name)}
        left = [m for m in mutants if m.name in known_there and m.name not in reasons and
                verdicts[m.name].how == SURVIVED]
        if left:
            verdicts.update(try_step(name, left, directory, tools))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path, help="where verdicts are kept")
    parser.add_argument("--step", action="append", help="stepNN; all when not given")
    parser.add_argument("--only", default=re.compile(""), type=re.compile,
                        help="mutants whose name has this pattern, as Python writes it")
    parser.add_argument("--summary", type=Path, help="JSON records to write, one a step")
    parser.add_argument("--list", action="store_true", help="name the mutants and try none")
    options = parser.parse_args()
    assigned = assigned_mutants(ROOT)
    for step in options.step or ():
        if step not in assigned:
            parser.error(f"STEP={step[4:]}: must be one of {', '.join(s[4:] for s in assigned)}")
    chosen = {step: [m for m in assigned[step] if options.only.search(m.name)]
              for step in options.step or assigned}
    if options.list:
        print("\n".join(m.name for mutants in chosen.values() for m in mutants))
        return 0
    options.directory.mkdir(parents=True, exist_ok=True)
    reasons = read_equivalents()
    tools = Tools.from_environment()
    records = []
    for step, mutants in chosen.items():
        verdicts = try_step(step, mutants, options.directory, tools) if mutants else {}
        ask_later_steps(step, mutants, verdicts, reasons, options.directory, tools)
        records += [table.record_of(step, verdicts, reasons)] if mutants else []
    if options.summary:
        table.write_records(options.summary, records, os.environ.get("COMMIT", "unknown"))
    return table.report(records, sys.stdout)


if __name__ == "__main__":
    sys.exit(main())
