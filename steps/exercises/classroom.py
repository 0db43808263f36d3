"""Writes, builds, checks and grades the exercises; `make exercises`, `make ex07`, `make grade` and
`make hint EX=07` call it. It needs Python's standard library only.

Usage: classroom.py list | grade [NAME...] | check NAME [FILE] | hint NAME | start NAME
(exercises.mk sets the environment; FILE takes the place of steps/exercises/NAME.cu, and start prints what that begins as)

A student's kernel runs in a process of its own, with limits on time, output and memory. That process
only writes O and LSE, or gradients; the judge, another program, compares them with the reference.
A program of chapter 0 checks its result itself, and its exit code says whether it is right.
"""

import fcntl
import functools
import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from course import COURSE
from patches import REGION, patched, step_source
from table import EXERCISES, Exercise, Part

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "steps" / "exercises"
BACKEND = os.environ.get("BACKEND", "cpu")
BUILD = ROOT / os.environ.get("BUILD", "build/cpu")
MADE = BUILD / "exercises" / "made"
INCLUDED = f"{BUILD.relative_to(ROOT)}/exercises/include/"  # leads to common/
JUDGES = ROOT / "build" / "cpu"
MAKE = os.environ.get("MAKE", "make")
# Not a part of the make that runs this; a warning about an unfinished file is no error.
OWN_MAKE = {"MAKEFLAGS": "", "MAKELEVEL": "0", "WERROR": "0"}

LONGEST_S, LARGEST_OUTPUT, LARGEST_FILE = 10, 1 << 20, 256 << 20
LARGEST_MEMORY = 4 << 30  # in use, with the CPU backend
LARGEST_RANGE = 96 << 30  # of addresses; the CPU backend reserves a third of it for stacks
FINDINGS = 3  # of the lab that are printed
COMPILER_S, COMPILER_MEMORY = 60, 4 << 30  # of each of its processes
LONGEST_LINE = 200
STOPPED = "it was stopped"
TIME_LIMIT = "time limit of"  # in a finding of the lab; it names the line
FULL, NONE = 1.2, 10  # times the solution's counts or time
FIRST_ERROR = re.compile("error|undefined|multiple definition")  # of the compiler or the linker
MAP = re.compile(r" +(Map:|-?\d+,-?\d+ +\||\. right|L only)")  # of the heads, in a failure text
CONFIGS = re.compile(r"(Config(?:<[\w, ]*>)? CONFIGS\[\] = \{).*?(\};)", re.DOTALL)


# --- Files -----------------------------------------------------------------------------------------


@functools.cache
def file_of(name: str, ending: str) -> Path | None:
    return next(FOLDER.glob(f"{name}_*{ending}"), None)


def title_of(name: str) -> str:
    return file_of(name, ".md").read_text().split("\n", 1)[0].lstrip("# ")


def sources(exercise: Exercise) -> tuple[str, str]:
    """The solution, and the file that the student starts from."""
    whole = file_of(exercise.name, ".solution.cu")
    text = REGION.sub("", whole.read_text()) if whole else step_source(exercise.step)
    solution = patched(text, file_of(exercise.name, ".solution.patch"))
    (start_patch,) = (path for path in FOLDER.glob(f"{exercise.name}_*.patch") if ".solution" not in path.name)
    configs = ", ".join(f"CONFIG<{config}>" for config in exercise.configs)
    return tuple(
        CONFIGS.sub(lambda match: match[1] + configs + match[2], text) if configs else text
        for text in (solution, patched(solution, start_patch))
    )


def write_if_changed(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def solution_of(exercise: Exercise) -> str:
    """Writes the solution; the name is for built(). Exercises with the same solution share it."""
    text = sources(exercise)[0]
    name = f"made/solution_{zlib.crc32(text.encode()):08x}"
    write_if_changed(BUILD / "exercises" / f"{name}.cu", text)
    return name


def built(name: str) -> tuple[Path | None, str]:
    """The program of steps/exercises/NAME.cu or of a file in MADE, or the compiler's first error."""
    program = BUILD / "exercises" / name
    source = program.with_name(f"{program.name}.cu") if "/" in name else FOLDER / f"{name}.cu"
    program.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{program}.lock", "a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests that run at the same time share solutions
        # A file that replaces another, such as the next student's, may be older than its program.
        content = f"{zlib.crc32(source.read_bytes()) if source.is_file() else 0:08x}"
        lock.seek(0)
        if lock.read() != content:
            program.with_name(f"{program.name}.o").unlink(missing_ok=True)
        lock.truncate(0)
        lock.write(content)
        done = subprocess.run(
            [MAKE, "--no-print-directory", f"BACKEND={BACKEND}", str(program.relative_to(ROOT))],
            cwd=ROOT,
            capture_output=True,
            errors="replace",
            check=False,
            env={**os.environ, **OWN_MAKE},
            preexec_fn=lambda: limit(COMPILER_S, COMPILER_MEMORY),
        )
    said = [line for line in done.stderr.splitlines() if line and not line.startswith("make")]
    first = next((i for i, line in enumerate(said) if FIRST_ERROR.search(line)), 0)
    return (program if done.returncode == 0 else None), "\n".join(said[first : first + 8])


# --- Runs ------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What one run of a kernel gave: one line if it failed, else its records."""

    failure: str = ""
    record: dict = field(default_factory=dict)
    lab: list = field(default_factory=list)


def limit(seconds: int, addresses: int) -> None:
    """In the child, before it starts."""
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if BACKEND == "cpu":
        resource.setrlimit(resource.RLIMIT_AS, (addresses, addresses))


def memory_of(process: int) -> int:
    """Bytes in use; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, IndexError):
        return 0


def run_limited(command: list[str], setting: str = "") -> tuple[int | None, str]:
    """The exit code, None if a limit was reached, and what the program said last."""
    child = subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=lambda: limit(2 * LONGEST_S, LARGEST_RANGE),
        env={
            **os.environ,
            "OMP_NUM_THREADS": "2",
            "OMP_WAIT_POLICY": "passive",
            **dict(item.split("=") for item in setting.split()),
        },
    )
    os.set_blocking(child.stdout.fileno(), False)
    said, size, end, reason = b"", 0, time.monotonic() + LONGEST_S, ""
    while child.poll() is None and not reason:
        time.sleep(0.005)
        chunk = child.stdout.read(1 << 16) or b""
        size, said = size + len(chunk), (said + chunk)[-(1 << 16) :]
        if size > LARGEST_OUTPUT:
            reason = f"it wrote more than {LARGEST_OUTPUT >> 20} MB of output"
        elif BACKEND == "cpu" and memory_of(child.pid) > LARGEST_MEMORY:
            reason = f"it used more than {LARGEST_MEMORY / 1e9:.3g} GB of memory"
        elif time.monotonic() > end:
            reason = f"{STOPPED} after {LONGEST_S} s: does a loop end?"
    try:
        os.killpg(child.pid, signal.SIGKILL)  # whatever it has started
    except ProcessLookupError:
        pass
    said += child.stdout.read() or b""
    child.wait()
    return (None, reason) if reason else (child.returncode, said.decode(errors="replace"))


def with_report(exercise: Exercise, command: str) -> str:
    """Some programs of chapter 0 have no option --report; watch.c lets all have the variable."""
    return f"REPORT= {command}" if exercise.is_foundation else f"{command} --report"


def run_kernel(
    exercise: Exercise, program: Path, options: list[str], scratch: Path, timed: bool = False, setting: str = ""
) -> Outcome:
    lab, record = scratch / "lab.jsonl", scratch / "record.jsonl"
    report = f"json:{lab},races,bounds,init,alignment,blocks,traffic,banks,counts"
    command, settings = [str(program), *options], setting
    if exercise.step != "f01":
        command += ["--json", str(record), "--repeat", "10" if timed else "0"]
    if exercise.is_foundation:
        settings += f" REPORT={report}"
    else:
        command += ["--check", "none", "--output", str(scratch)]
        if BACKEND == "cpu":
            command += ["--time-limit", str(LONGEST_S - 2), f"--report={report}"]
    code, said = run_limited(command, settings)
    lab_records = read_lines(lab)
    findings = [line for line in lab_records if line["record"] == "finding"]
    failure = ""
    if code is None:
        failure = said
    elif code < 0:
        failure = f"it crashed: {signal.strsignal(-code)}"
    elif findings:
        run = " ".join([setting, str(program.relative_to(ROOT)), *options]).strip()
        failure = in_words(findings, with_report(exercise, run))
    elif exercise.is_foundation and code == 1:
        wrong = (line for line in said.splitlines() if "wrong" in line.lower())
        failure = printable(next(wrong, "it ended with code 1, and says of nothing that it is wrong"))
    elif code not in (0, 1):
        last = printable((said.strip().splitlines() or [""])[-1])
        failure = f"it ended with code {code}: {last}".rstrip(": ")
    records = read_lines(record)
    if not failure and not exercise.is_foundation and not (any(scratch.glob("*.npy")) and records):
        failure = "it ended without an answer"
    if failure:
        return Outcome(failure)
    return Outcome("", records[-1] if records else {}, lab_records)


def printable(line: str) -> str:
    return "".join(filter(str.isprintable, " ".join(line.split())))[:LONGEST_LINE]


def read_lines(path: Path) -> list[dict]:
    """Records of a file that a student's program may have spoiled."""
    try:
        return [json.loads(line) for line in path.read_text().splitlines()]
    except (OSError, ValueError):
        return []


def in_words(findings: list[dict], command: str) -> str:
    """The first findings of the lab, a line each: what, where, and after what."""
    lines = []
    for finding in findings[:FINDINGS]:

        def at(place: str, calls: str) -> str:
            places = ", ".join(filter(None, (finding.get(place), finding.get(calls))))
            return places.replace(INCLUDED, "common/")

        waits = "barrier that" in finding["what"] or "DEADLOCK" in finding["where"]
        others = at("other_place", "other_calls")
        lines.append(
            f"{finding['what']}: at {at('place', 'calls')}"
            + (f"; {'others at' if waits else 'after'} {others}" if others else "")
            + f" ({finding['where']})"
        )
    if len(findings) > FINDINGS:
        lines.append(f"{len(findings) - FINDINGS} more: {command}")
    return "\n".join(lines)


def judge(exercise: Exercise, options: list[str], scratch: Path, outcome: Outcome) -> str:
    """Empty if the answer is right, else what is wrong with it."""
    tiles = f"{outcome.record.get('block_m', 64)}x{outcome.record.get('block_n', 64)}"
    env = {**os.environ, "ANSWER": str(scratch), "ANSWER_TILES": tiles, "ANSWER_RULE": exercise.rule}
    done = subprocess.run(
        [str(JUDGES / exercise.judge), *options, "--check", "all"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=6 * LONGEST_S,
    )
    if done.returncode == 0:
        return ""
    if done.returncode != 1:
        return f"the answer cannot be read: {done.stderr.strip()}"
    lines = [line.strip() for line in done.stderr.splitlines() if not MAP.match(line)]
    return "\n".join(sorted(lines, key=lambda line: " is explained " not in line))


def with_hints(why: str, program: Path, options: list[str]) -> str:
    """What the program itself says of its shuffles and masks comes first, if no known mistake explains it."""
    if " is explained " in why or BACKEND != "cpu":
        return why
    _, said = run_limited([str(program), *options, "--repeat", "0"])
    hints = [line.strip().replace(INCLUDED, "common/") for line in said.splitlines() if line.startswith("  hint: ")]
    return "\n".join([*hints, why])


def left_in_workspace(program: Path, options: list[str]) -> str:
    """What its own check says of a workspace that the next pass needs to be 0; empty if it is."""
    _, said = run_limited([str(program), *options, "--repeat", "0"])
    return next((line.strip() for line in said.splitlines() if line.startswith("  not 0 after the pass: ")), "")


# --- Grading ---------------------------------------------------------------------------------------


@dataclass
class Mark:
    """Points for a part, and why some are missing."""

    what: str
    reached: float
    points: int
    why: str = ""


def cost(exercise: Exercise, outcome: Outcome, part: Part) -> float:
    if BACKEND == "cuda":
        return outcome.record["ms" if exercise.is_foundation else "median_ms"]
    counted = "kernel" if exercise.is_foundation else "run"
    return sum(
        -line[name[1:]] if name[0] == "-" else line[name]
        for line in outcome.lab
        if line["record"] == counted
        for name in part.counts
    )


def share(own: float, best: float, limits: tuple[float, float]) -> float:
    """Of the points, for these counts or this time and those of the solution."""
    full, none = limits
    if own <= full * best:
        return 1
    return full * best / own if own < none * best else 0


def sized(exercise: Exercise, case: str) -> str:
    """With the CPU backend's default sizes for those that the case leaves open."""
    if BACKEND == "cpu" or exercise.is_foundation:
        return case
    lengths = "-n 1 -k 256" if exercise.judge == "judge_decode" else "-n 256"
    return f"-b 1 -H 2 {lengths} -d 64 {case}"


def mark_cost(program: Path, solution: Path, exercise: Exercise, part: Part, outcome: Outcome) -> Mark:
    """`outcome` is that of the program with the last of the cases."""
    cuda = BACKEND == "cuda"
    case, costs = sized(exercise, part.gpu if cuda and part.gpu else part.cases[-1]), []
    for each in (program, solution):
        if cuda or each != program:  # counts are the same in every run
            with tempfile.TemporaryDirectory() as folder:
                outcome = run_kernel(exercise, each, shlex.split(case), Path(folder), cuda, part.setting)
        if outcome.failure:
            return Mark(part.what, 0, part.points, f"with {case}: {outcome.failure}")
        costs.append(cost(exercise, outcome, part))
        if each == program and not cuda:
            names = [name for name in part.counts if name[0] != "-"]
            lines = [line for line in outcome.lab if line["record"] == "line"]
            most = max(lines, key=lambda line: sum(line.get(name) or 0 for name in names))
    reached = share(*costs, part.gpu_limits if cuda else (FULL, NONE))
    what = "ms" if cuda else " + ".join(part.counts).replace("+ -", "- ")
    why = f"with {case}: {what} is {costs[0]:g}, the solution's {costs[1]:g}" if reached < 1 else ""
    if why and not cuda:
        why += f"; most of it at {most['file']}:{most['line']}".replace(INCLUDED, "common/")
    return Mark(part.what, round(part.points * reached, 1), part.points, why)


def mark_part(program: Path, solution: Path | None, exercise: Exercise, part: Part) -> Mark:
    for case in (sized(exercise, case) for case in part.cases):
        with tempfile.TemporaryDirectory() as folder:
            options, scratch = shlex.split(case), Path(folder)
            outcome = run_kernel(exercise, program, options, scratch, setting=part.setting)
            why = outcome.failure
            if not why and not exercise.is_foundation:
                why = judge(exercise, options, scratch, outcome)
                if why and not exercise.rule:  # its own check knows no other rule
                    why = with_hints(why, program, options)
                if not why and exercise.judge == "judge_decode":
                    why = left_in_workspace(program, options)
        if why:
            setting = part.setting if BACKEND == "cpu" else ""
            with_what = " ".join(filter(None, (setting, case)))
            return Mark(part.what, 0, part.points, f"with {with_what}: {why}")
    if part.counts:
        return mark_cost(program, solution, exercise, part, outcome)
    return Mark(part.what, part.points, part.points)


def marks_of(exercise: Exercise, name: str) -> list[Mark]:
    """Grades steps/exercises/NAME.cu, or made/NAME."""
    program, said = built(name)
    if program is None:
        return [Mark("compiles", 0, exercise.points, said)]
    solution = None
    if any(part.counts for part in exercise.parts):
        own = solution_of(exercise)
        solution = program if own == name else built(own)[0]
    marks: list[Mark] = []
    for part in exercise.parts:
        if marks and re.search(f"{STOPPED}|{TIME_LIMIT}", marks[-1].why):  # so would the others
            marks.append(Mark(part.what, 0, part.points, f"not run, as {STOPPED}"))
            continue
        try:
            marks.append(mark_part(program, solution, exercise, part))
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            RecursionError,
            TypeError,
            ValueError,
            subprocess.TimeoutExpired,
        ):
            marks.append(Mark(part.what, 0, part.points, "what it wrote cannot be read"))
    return marks


def write_masks() -> None:
    """Masks that no option draws, of 192 queries: one of them attends nothing, the others all keys
    from one number on."""
    for name, empty, first_key, keys in (("empty_query", 10, 0, 256), ("few_keys", 70, 640, 768)):
        header = f"{{'descr': '|b1', 'fortran_order': False, 'shape': (192, {keys}), }}".ljust(117) + "\n"
        row = bytes(first_key) + b"\1" * (keys - first_key)
        path = JUDGES / "masks" / f"{name}.npy"
        array = (
            b"\x93NUMPY\1\0"
            + len(header).to_bytes(2, "little")
            + header.encode()
            + row * empty
            + bytes(keys)
            + row * (191 - empty)
        )
        if not path.exists() or path.read_bytes() != array:
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(f".{os.getpid()}")  # another check may be reading the mask
            part.write_bytes(array)
            part.replace(path)


def prepare_judge(exercises: Iterable[Exercise] = EXERCISES.values()) -> None:
    """Builds the judges of these exercises, and writes the masks of their cases."""
    write_masks()
    judges = dict.fromkeys(exercise.judge for exercise in exercises if not exercise.is_foundation)
    if judges:
        programs = [str((JUDGES / name).relative_to(ROOT)) for name in judges]
        subprocess.run(
            [MAKE, "-s", "--no-print-directory", "BACKEND=cpu", *programs],
            cwd=ROOT,
            check=True,
            env={**os.environ, **OWN_MAKE},
        )


# --- Commands --------------------------------------------------------------------------------------


def check(name: str, file: str = "") -> int:
    if name not in EXERCISES:
        print(f"{name}: there is no such exercise, must be one of {', '.join(EXERCISES)}", file=sys.stderr)
        return 2
    exercise = EXERCISES[name]
    text, path = file_of(name, ".md"), FOLDER / f"{name}.cu"
    if file:
        path, name = MADE / f"file_{name}.cu", f"made/file_{name}"
        write_if_changed(path, Path(file).read_text())
    if path.is_symlink() and not path.exists():
        print(
            f"make {name}: {path.relative_to(ROOT)} is a link to {os.readlink(path)}, which does not exist: "
            "remove the link",
            file=sys.stderr,
        )
        return 2
    print(f"{title_of(exercise.name)}\n  task: {text.relative_to(ROOT)}   your file: {path.relative_to(ROOT)}")
    if not path.exists():
        path.write_text(sources(exercise)[1])
        print("  (just written; it will not be overwritten: edit it, then run this again)")
    sys.stdout.flush()
    prepare_judge([exercise])
    failed, reached = 0, 0.0
    for mark in marks_of(exercise, name):
        reached += mark.reached
        print(f"  {mark.reached:g} of {mark.points} points: {mark.what}")
        for line in mark.why.splitlines()[: 1 if failed else None]:  # later parts say much the same
            print(f"      {line}")
        failed += bool(mark.why)
    print(f"  {reached:g} of {exercise.points} points: {exercise.name}")
    if failed:
        command = f"{(BUILD / 'exercises' / name).relative_to(ROOT)} OPTIONS"
        print(f"  to look closer: {with_report(exercise, command)}")
    return 1 if failed else 0


def start(name: str) -> int:
    if name not in EXERCISES:
        return check(name)
    print(sources(EXERCISES[name])[1], end="")
    return 0


def listing() -> int:
    for name, *_ in (entry for chapter in COURSE for entry in chapter.entries):
        started = "started" if (FOLDER / f"{name}.cu").exists() else ""
        print(f"{name:9} {EXERCISES[name].points:3} points  {title_of(name):60} {started}".rstrip())
    return 0


def grade(*names: str) -> int:
    """Those that were started, or those that are named, of which a missing file has no points."""
    if wrong := set(names) - set(EXERCISES):
        print(f"make grade: ONLY: there is no exercise {', '.join(sorted(wrong))}", file=sys.stderr)
        return 2
    asked = {
        name: exercise
        for name, exercise in EXERCISES.items()
        if (name in names if names else (FOLDER / f"{name}.cu").exists())
    }
    prepare_judge(asked.values())
    table = []
    for name, exercise in asked.items():
        started = (FOLDER / f"{name}.cu").exists()
        missing = [Mark("not handed in", 0, exercise.points, f"there is no file {name}.cu")]
        marks = marks_of(exercise, name) if started else missing
        reached = round(sum(mark.reached for mark in marks), 1)
        table.append(
            {"exercise": name, "points": reached, "of": exercise.points, "parts": [vars(mark) for mark in marks]}
        )
        failed = next((mark for mark in marks if mark.why), None)
        why = f"{failed.what}: {failed.why.splitlines()[0]}" if failed else ""
        print(f"{name:9} {reached:4g} of {exercise.points:2}  {why}", flush=True)
    total, most = (round(sum(row[key] for row in table), 1) for key in ("points", "of"))
    print(f"total     {total:4g} of {most:2}, of the exercises that were {'named' if names else 'started'}")
    (ROOT / "build" / "grade.json").write_text(
        json.dumps({"backend": BACKEND, "points": total, "of": most, "exercises": table}, indent=1)
    )
    return 0


def hint(name: str = "") -> int:
    """Prints the first hint of an exercise, the next time the second, and so on."""
    if name not in EXERCISES:
        print(
            "make hint: name an exercise or a broken kernel: make hint EX=05, make hint N=01 for broken01",
            file=sys.stderr,
        )
        return 2
    hints = re.findall(r"<summary>(.*?)</summary>\s*(.*?)\s*</details>", file_of(name, ".md").read_text(), re.DOTALL)
    seen = MADE / f"hints_{name}"
    level = min(int(seen.read_text()) if seen.exists() else 0, len(hints) - 1)
    print(f"{hints[level][0]}: {hints[level][1]}")
    write_if_changed(seen, str(level + 1))
    return 0


def main() -> int:
    command, *arguments = sys.argv[1:] or ["list"]
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `make exercises | head` ends without a word
    return {"list": listing, "grade": grade, "check": check, "hint": hint, "start": start}[command](*arguments)


if __name__ == "__main__":
    sys.exit(main())
