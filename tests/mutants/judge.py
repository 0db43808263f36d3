"""Runs a program on its cases with --report, and says whether anything was noticed."""

import json
import os
import resource
import signal
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path

from tests.lib.limits import exceeded
from tests.lib.steps import source_of

CPU_SECONDS = 60  # per run: several times what right kernels take
WALL_SECONDS = 300  # for a run that waits forever

FINDING, ANSWER, FAILED, SURVIVED = "finding", "answer", "failed", "survived"


@dataclass(frozen=True)
class Verdict:
    how: str
    what: str = ""  # the first finding, or what failed
    case: str = ""  # the options of the case that noticed it


def limit() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def judge(program: Path, cases: Path, environment: dict[str, str]) -> Verdict:
    """Ends the program at the first case that is not right."""
    records = program.with_suffix(".jsonl")
    records.unlink(missing_ok=True)
    command = [program, "--report", "--check", "all", "--json", records, "--cases", cases]
    env = {**os.environ, "SIMT_THREADS": "1", "OMP_NUM_THREADS": "1", **environment}
    finding = unordered = ""
    with subprocess.Popen(
        command,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        errors="replace",
        preexec_fn=limit,
    ) as process:
        alarm = threading.Timer(WALL_SECONDS, process.send_signal, [signal.SIGXCPU])
        alarm.start()
        for line in process.stdout:
            if line.startswith("finding "):
                finding = finding or line[len("finding") :].strip()
            elif "the sum depends on the order" in line:
                unordered = line[len("note") :].strip()
            elif line.startswith(f"{cases}:") and ": right: " not in line:
                process.kill()
                alarm.cancel()
                _, said, case = line[len(str(cases)) + 1 :].strip().split(": ", 2)
                if finding:
                    return Verdict(FINDING, finding, case)
                return Verdict(ANSWER if said == "WRONG" else FAILED, said, case)
    alarm.cancel()
    if process.returncode == 0:
        return worse_than_promised(records, cases, unordered)
    if finding:
        return Verdict(FINDING, finding)
    if process.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return Verdict(FAILED, f"no end within {CPU_SECONDS} s")
    return Verdict(FAILED, f"exit code {process.returncode}")


def worse_than_promised(records: Path, cases: Path, unordered: str) -> Verdict:
    """For right answers: compares conflicts, sectors and overlap with the limits of the step. `unordered` is the
    note that floats are added in any order, which only a step may do that says so."""
    lines, records = cases.read_text().splitlines(), map(json.loads, records.read_text().splitlines())
    for case, record in zip(lines, records, strict=True):
        if unordered and not source_of(record["step"]).nondeterministic:
            return Verdict(FINDING, unordered)
        if found := exceeded(record):
            return Verdict(FINDING, found[0], case)
    return Verdict(SURVIVED)


def judge_all(program: Path, runs: list[tuple[Path, dict[str, str]]]) -> Verdict:
    for cases, environment in runs:
        verdict = judge(program, cases, environment)
        if verdict.how != SURVIVED:
            return verdict
    return Verdict(SURVIVED)


def judge_called(program: Path, trials: list[str]) -> Verdict:
    """With step_under_test.c: tensors that the command line cannot ask for."""
    for trial in trials:
        done = subprocess.run(
            [program, trial], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False, preexec_fn=limit
        )
        if done.returncode != 0:
            return Verdict(ANSWER if done.returncode == 1 else FAILED, f"called: {trial}")
    return Verdict(SURVIVED)
