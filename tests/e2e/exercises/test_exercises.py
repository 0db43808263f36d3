"""The exercises: every starting file fails for the reason that the table names, every solution has
all points, and a student's file can do the grader no harm."""

import difflib
import math
import os
import re
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from tests.e2e.exercises.wrong_answers import WRONG
from tests.lib.programs import BACKEND, REPOSITORY, built_commit
from tests.mutants.operators import changes
from tests.mutants.source import Source

FOLDER = REPOSITORY / "steps/exercises"
sys.path.insert(0, str(FOLDER))
import classroom  # noqa: E402
from table import EXERCISES, Exercise, Part  # noqa: E402

FAULTS = 12  # that are tried in each solution
# Small faults that change no answer, each with the reason.
EQUIVALENT: dict[str, str] = {
    "ex02 | warp_max | index + 1 | WARP_SIZE / 2":
        "distances 17, 8, 4, 2 and 1 reach each lane once, as 16, 8, 4, 2 and 1 do",
    "ex02 | warp_sum | index + 1 | WARP_SIZE / 2":
        "distances 17, 8, 4, 2 and 1 reach each lane once, as 16, 8, 4, 2 and 1 do",
    "ex14 | load_tile | index + 1 | 0":
        "rows past the end may hold any finite numbers: their probability is 0",
    "ex15 | load_tile | index + 1 | 0":
        "rows past the end may hold any finite numbers: their probability is 0",
    "ex16 | attention_kernel | buffer swapped | k_strides":
        "K and V have the same strides in every problem that the options describe",
    "ex26 | attention_kernel | buffer swapped | k_strides":
        "K and V have the same strides in every problem that the options describe",
    "ex27 | wgmma_descriptor | index + 1 | panel_bytes":
        "units() rounds down to 16 bytes",
    "ex27 | wgmma_descriptor | index + 1 | 8 * ROW_BYTES":
        "units() rounds down to 16 bytes",
    "ex27 | start_qk | index + 1 | d % COLUMNS":
        "units() rounds down to 16 bytes",
    "ex30 | make_plans_kernel | index + 1 | problem.kv_len":
        "no span begins or ends there: the smallest of them is the same",
    "ex30 | make_plans_kernel | index - 1 | problem.kv_len":
        "no span begins behind it, and a tile with the last key may run mask code",
    "ex30 | make_plans_kernel | index + 1 | 0":
        "a tile with the first key may run mask code, and no span ends before it",
    "ex30 | make_plans_kernel | index - 1 | 0":
        "no span begins or ends there: the largest of them is the same",
}

pytestmark = pytest.mark.cpu_only("starting files and solutions are compiled for the CPU backend")


@pytest.fixture(scope="module", autouse=True)
def judge() -> None:
    classroom.prepare_judge()


def graded(exercise: Exercise, kind: str, text: str) -> list[classroom.Mark]:
    name = f"{exercise.name}.{kind}"
    classroom.write_if_changed(classroom.MADE / f"{name}.cu", text)
    return classroom.marks_of(exercise, f"made/{name}")


def with_places(words: str, file: str, text: str) -> str:
    """Replaces each @...@ by the place of the only line of the made file that holds these words."""
    def place(match: re.Match) -> str:
        (number,) = (i for i, line in enumerate(text.split("\n"), 1) if match[1] in line)
        return f"{(classroom.MADE / file).relative_to(REPOSITORY)}:{number}"
    return re.sub("@(.+?)@", place, words)


@pytest.mark.parametrize("name", EXERCISES)
def test_the_starting_file_fails_as_intended(name: str) -> None:
    exercise = EXERCISES[name]
    start = classroom.sources(exercise)[1]
    marks = graded(exercise, "start", start)
    assert marks[0].what != "compiles", marks[0].why
    assert sum(mark.reached for mark in marks) <= exercise.points / 2
    words = with_places(exercise.fails, f"{name}.start.cu", start)
    assert words in "\n".join(f"{mark.what}: {mark.why}" for mark in marks if mark.why)


# The others' solutions are the steps themselves, of which other tests know more.
@pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if classroom.file_of(name, ".solution.*") else pytest.mark.exhaustive)
    for name in EXERCISES])
def test_the_solution_passes(name: str) -> None:
    exercise = EXERCISES[name]
    marks = classroom.marks_of(exercise, classroom.solution_of(exercise))
    assert [mark.why for mark in marks] == [""] * len(exercise.parts)


def mutants(exercise: Exercise) -> list[tuple[str, str]]:
    """Small faults in the functions that the student works on, those in his lines first: a name and
    the changed solution."""
    solution, start = classroom.sources(exercise)
    matcher = difflib.SequenceMatcher(None, solution.split("\n"), start.split("\n"), autojunk=False)
    own = {line for tag, i, j, *_ in matcher.get_opcodes() if tag in ("delete", "replace")
           for line in range(i, j)}
    source = Source(f"{exercise.name}.cu", solution)
    found = []
    for part in source.parts:
        for operator, first, end, text in changes(source, part):
            at, to = source.tokens[first].start, source.tokens[end - 1].end
            line = solution.count("\n", 0, at)
            near = min((abs(line - other) for other in own), default=0)
            name = f"{exercise.name} | {part.name} | {operator} | {solution[at:to]}"
            found.append((near, at, name, solution[:at] + text + solution[to:]))
    return [(name, text) for _, _, name, text in sorted(found)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [name for name in EXERCISES if name.startswith("ex")])
def test_small_faults_lose_points(name: str) -> None:
    exercise, survivors, tried = EXERCISES[name], [], 0
    for mutant, text in mutants(exercise):
        marks = graded(exercise, "mutant", text)
        if marks[0].what == "compiles":
            continue
        tried += 1
        if not any(mark.why for mark in marks) and mutant not in EQUIVALENT:
            survivors.append(mutant)
        if tried == FAULTS:
            break
    assert survivors == [] and tried == FAULTS


# --- Typical wrong answers ------------------------------------------------------------------------

def documented(name: str) -> dict[str, str]:
    """Of the table of an exercise in docs/wrong-answers.md: the wrong answer, what the check says."""
    text = (REPOSITORY / "docs/wrong-answers.md").read_text()
    section = re.search(rf"^## Exercise {int(name[2:])}:.*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return {row[0]: row[1] for row in rows}


def parts_of(words: str) -> set[int]:
    """ "1 and 2" or "1, 2 and 4" or "1 to 3" """
    first, *rest = map(int, re.findall(r"\d", words))
    return set(range(first, rest[0] + 1)) if " to " in words else {first, *rest}


ALWAYS = [("ex02", "`row_max` begins with 0")]


@pytest.mark.parametrize("name, answer", [
    pytest.param(name, answer, marks=() if (name, answer) in ALWAYS else pytest.mark.exhaustive)
    for name, answers in WRONG.items() for answer in answers])
def test_typical_wrong_answers_are_told_as_documented(name: str, answer: str) -> None:
    """The parts that are right and wrong, the numbers, and the words in backticks."""
    exercise, says = EXERCISES[name], documented(name)[answer]
    text = classroom.sources(exercise)[0]
    for old, new in WRONG[name][answer]:
        assert old in text, old
        text = text.replace(old, new)
    marks = graded(exercise, f"wrong_{zlib.crc32(answer.encode()):08x}", text)
    told = "\n".join(f"{mark.what}: {mark.reached:g} of {mark.points}: {mark.why}" for mark in marks)
    assert marks[0].what != "compiles", told
    right = {part for words in re.findall(r"\bparts? ([\d, andto]*\d) right", says) for part in parts_of(words)}
    wrong = {int(part) for part in re.findall(r"\bpart (\d)(?:,? [^:;]*)?:", says)} - right
    if "all parts right" in says:
        right = set(range(1, len(marks) + 1))
    assert {i for i in right if marks[i - 1].why} == set(), told
    assert {i for i in wrong if not marks[i - 1].why} == set(), told
    quoted = [part for words in re.findall(r"`(.*?)`", says) if not words.endswith("()")
              for part in words.split(" ... ")]
    assert [words for words in quoted if words.removesuffix(" ...") not in told] == [], told
    for reached, points, own, best in re.findall(
            r"([\d.]+) of (\d) points?, (\d+) (?:\w+ )?instead of (\d+)", says):
        assert f": {reached} of {points}: " in told and f" is {own}, the solution's {best}" in told, told
    for tensor, own, best in re.findall(r"\b(O|LSE)(?: is)? (\S+) instead of ([^\s,;]+)", says.replace("`", "")):
        values = re.findall(rf"\b{tensor}\[.*?\] = (\S+), expected ([^\s:]+)", told)
        assert any(math.isclose(float(own), float(o), rel_tol=5e-3)
                   and math.isclose(float(best), float(b), rel_tol=5e-3) for o, b in values), told


def test_every_file_belongs_to_an_exercise() -> None:
    names = {path.name.split("_")[0] for path in FOLDER.glob("*_*.*")} - {""}
    assert names == set(EXERCISES)
    for name in EXERCISES:
        text = classroom.file_of(name, ".md").read_text()
        hints = re.findall(r"<summary>(Hint \d|Explanation)</summary>", text)
        assert hints == (["Hint 1", "Hint 2", "Hint 3", "Explanation"] if "broken" in name else [])


PROBE = Exercise("probe", "step01", (), (Part("whole tiles", 1, ("-n 64",)),), fails="")
HOSTILE = {
    "a loop without end": ("while (1) { volatile int x = 0; (void)x; }", "does a loop end"),
    "a crash": ("*(volatile int *)8 = 1;", "crashed"),
    "much memory": ("*(volatile char *)malloc((size_t)100 << 30) = 1;",
                    "crashed"),
    "memory in use": ("memset(malloc((size_t)2 << 30), 1, (size_t)2 << 30);", "GB of memory"),
    "much output": ("while (1) puts(\"PASS PASS PASS PASS PASS PASS PASS PASS\");", "of output"),
    "spoiled records": ("if (system(\"d=$(tr '\\\\0' '\\\\n' </proc/$PPID/cmdline | grep -m1 record.jsonl"
                        " | xargs dirname); echo 1 >$d/lab.jsonl; echo 1 >$d/record.jsonl;"
                        " : >$d/o.npy\")) {} _exit(0);", "cannot be read"),
    "a lie": ("puts(\"check RIGHT\"); fflush(stdout); _exit(0);", "without an answer"),
}


@pytest.mark.parametrize("fault", HOSTILE)
def test_a_file_cannot_harm_the_grader(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classroom, "LONGEST_S", 3)
    monkeypatch.setattr(classroom, "LARGEST_MEMORY", 256 << 20)
    code, words = HOSTILE[fault]
    text = next((REPOSITORY / "steps").glob("step01_*.cu")).read_text()
    assert text.count("static cudaError_t forward(") == 1
    text = "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n" + re.sub(
        r"(static cudaError_t forward\([^{]*\{)", lambda match: match[1] + code, text)
    (mark,) = graded(PROBE, re.sub(r"\W", "_", fault), text)
    assert mark.reached == 0 and words in mark.why and "\n" not in mark.why


@pytest.mark.parametrize("data, words", [
    (b"", "undefined symbol `step'"),
    ("constexpr int A = 1".encode("utf-16"), "stray"),
    (b"constexpr int A = 1 // f\xfcr\nint main() {}", "error: expected"),
    (b"int a[1 << 30] = {1};", "limit exceeded"),
    (b'#include "/dev/zero"', "out of memory")])
def test_a_file_that_does_not_compile(data: bytes, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classroom, "COMPILER_MEMORY", 1 << 30)
    name = re.sub(r"\W", "_", f"probe.{words}")
    (classroom.MADE / f"{name}.cu").write_bytes(data)
    (mark,) = classroom.marks_of(PROBE, f"made/{name}")
    assert mark.reached == 0 and words in mark.why.splitlines()[0]


def test_a_loop_in_a_kernel_is_named_by_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classroom, "LONGEST_S", 3)
    text = next((REPOSITORY / "steps").glob("step01_*.cu")).read_text().replace(
        "const int q_tiles", "while (*(volatile int *)&problem.q_len > 0) {}  // loop\n  const int q_tiles", 1)
    two_parts = Exercise("probe", "step01", (), 2 * PROBE.parts, fails="")
    first, second = graded(two_parts, "loop", text)
    assert with_places("at @// loop@ (time limit", "probe.loop.cu", text) in first.why
    assert first.reached == second.reached == 0 and second.why == "not run, as it was stopped"


def test_a_file_older_than_the_program_before_it_is_compiled() -> None:
    solution = next((REPOSITORY / "steps").glob("step01_*.cu")).read_text()
    assert [mark.reached for mark in graded(PROBE, "next", solution)] == [1]
    older = classroom.MADE / "probe.next.cu"
    older.write_text("")
    os.utime(older, (0, 0))
    assert [mark.what for mark in classroom.marks_of(PROBE, "made/probe.next")] == ["compiles"]


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make ex10` writes a file once and keeps it, `make grade` and `make exercises` name it, and
    nothing is written where a link leads to."""
    for name in ("Makefile", "common", "steps", "docs", "plots", "tests"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    (tmp_path / "steps").unlink()
    shutil.copytree(REPOSITORY / "steps", tmp_path / "steps", ignore=shutil.ignore_patterns("*[0-9].cu"))
    subprocess.run(["cp", "-rl", REPOSITORY / "build", tmp_path / "build"], check=True)
    monkeypatch.setenv("COMMIT", built_commit())

    def try_make(target: str) -> subprocess.CompletedProcess:
        return subprocess.run(["make", target, f"BACKEND={BACKEND}"], cwd=tmp_path, text=True,
                              capture_output=True, check=False)

    def make(target: str, code: int = 0) -> str:
        done = try_make(target)
        assert done.returncode == code, done.stderr
        return done.stdout
    (tmp_path / "steps/exercises/ex13.cu").symlink_to("nowhere.cu")
    said = try_make("ex13").stderr
    assert re.fullmatch(r"make ex13: steps/exercises/ex13\.cu is a link to nowhere\.cu, [^\n]*\n"
                        r"make\S*: [^\n]*Error 2\n", said)
    assert "just written" in make("ex10", 2)
    path = tmp_path / "steps/exercises/ex10.cu"
    path.write_text(path.read_text() + "// mine\n")
    said = make("ex10", 2)
    assert "just written" not in said and path.read_text().endswith("// mine\n")
    assert re.search(r"^  0 of 6 points: ex10\n  to look closer: ", said, re.MULTILINE)
    assert re.search(r"^ex10 .*started$", make("exercises"), re.MULTILINE)
    assert re.search(r"^ex10 +0 of +\d", make("grade"), re.MULTILINE)
    path.write_text(classroom.sources(EXERCISES["ex10"])[0])
    assert make("ex10").endswith("  6 of 6 points: ex10\n")
    make("clean")
    assert path.exists()
