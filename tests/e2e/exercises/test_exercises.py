"""The exercises: every starting file fails for the reason that the table names, every solution has
all points, and a student's file can do the grader no harm."""

import difflib
import os
import random
import re
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from tests.lib.programs import BACKEND, REPOSITORY, built_commit
from tests.mutants.operators import changes
from tests.mutants.source import Source

FOLDER = REPOSITORY / "steps/exercises"
sys.path.insert(0, str(FOLDER))
import catalogue  # noqa: E402
import classroom  # noqa: E402
from table import EXERCISES, Exercise, Part  # noqa: E402

FAULTS = 12  # that are tried in each solution
# Small faults that change no answer, each with the reason.
EQUIVALENT: dict[str, str] = {
    "ex02 | warp_max | index + 1 | WARP_SIZE / 2": "distances 17, 8, 4, 2 and 1 reach each lane once, as 16, 8, 4, 2 and 1 do",
    "ex02 | warp_sum | index + 1 | WARP_SIZE / 2": "distances 17, 8, 4, 2 and 1 reach each lane once, as 16, 8, 4, 2 and 1 do",
    "ex14 | load_tile | index + 1 | 0": "rows past the end may hold any finite numbers: their probability is 0",
    "ex15 | load_tile | index + 1 | 0": "rows past the end may hold any finite numbers: their probability is 0",
    "ex16 | attention_kernel | buffer swapped | k_strides": "K and V have the same strides in every problem that the options describe",
    "ex26 | attention_kernel | buffer swapped | k_strides": "K and V have the same strides in every problem that the options describe",
    "ex27 | wgmma_descriptor | index + 1 | panel_bytes": "units() rounds down to 16 bytes",
    "ex27 | wgmma_descriptor | index + 1 | 8 * ROW_BYTES": "units() rounds down to 16 bytes",
    "ex27 | start_qk | index + 1 | d % COLUMNS": "units() rounds down to 16 bytes",
    "ex30 | make_plans_kernel | index + 1 | problem.kv_len": "no span begins or ends there: the smallest of them is the same",
    "ex30 | make_plans_kernel | index - 1 | problem.kv_len": "no span begins behind it, and a tile with the last key may run mask code",
    "ex30 | make_plans_kernel | index + 1 | 0": "a tile with the first key may run mask code, and no span ends before it",
    "ex30 | make_plans_kernel | index - 1 | 0": "no span begins or ends there: the largest of them is the same",
    "ex34 | keys_kernel | index - 1 | causal ? max(first_k - problem.kv_len + problem.q_len, 0) : 0": "at most one tile more, in which all entries are masked",
    "ex38 | make_lists_kernel | index + 1 | 2": "a place of an array that nobody uses",
    "ex40 | keys_of_part | index + 1 | (max(keys.end - keys.begin, 0) + TILE - 1) / TILE": "parts may be longer than they must, and the last ones empty",
    "ex40 | keys_of_part | index + 1 | (tiles + parts - 1) / parts * TILE": "a part may end within a tile: the loop masks what is behind its end",
    "ex40 | keys_of_part | max() dropped | max(keys.end - keys.begin, 0)": "a range that ends before it begins has no keys, however it is divided",
    "ex41 | pages_of_sequence | index + 1 | sequence": "the number of a sequence whose pages are in a table: it is not used",
    "ex41 | pages_of_sequence | index - 1 | sequence": "likewise",
    "exf09 | run_events | index + 1 | 0": "flags of cudaStreamWaitEvent, which matter in a capture alone",
    "exf09 | run_events | index - 1 | 0": "flags of cudaStreamWaitEvent, which matter in a capture alone",
    "exf10 | try_lock | index + 1 | 1": "any number but 0 says that the lock is taken",
    "exf10 | transfer_kernel | condition always holds | LOWER_FIRST": "the stage that deadlocks on purpose is not checked",
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


# All are judged by the same code, so some of them tell whether it works.
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.exhaustive if i % 6 else ()) for i, name in enumerate(EXERCISES)]
)
def test_the_starting_file_fails_as_intended(name: str) -> None:
    exercise = EXERCISES[name]
    start = classroom.sources(exercise)[1]
    marks = graded(exercise, "start", start)
    assert marks[0].what != "compiles", marks[0].why
    assert sum(mark.reached for mark in marks) <= exercise.points / 2
    words = with_places(exercise.fails, f"{name}.start.cu", start)
    assert words in "\n".join(f"{mark.what}: {mark.why}" for mark in marks if mark.why)


# The others' solutions are the steps themselves, of which other tests know more; of these, one in two.
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if classroom.file_of(name, ".solution.*") and i % 2 else pytest.mark.exhaustive)
        for i, name in enumerate(EXERCISES)
    ],
)
def test_the_solution_passes(name: str) -> None:
    exercise = EXERCISES[name]
    marks = classroom.marks_of(exercise, classroom.solution_of(exercise))
    assert [mark.why for mark in marks] == [""] * len(exercise.parts)


def mutants(exercise: Exercise) -> list[tuple[str, str]]:
    """Small faults in the functions that the student works on, those in his lines first: a name and
    the changed solution."""
    solution, start = classroom.sources(exercise)
    matcher = difflib.SequenceMatcher(None, solution.split("\n"), start.split("\n"), autojunk=False)
    own = {line for tag, i, j, *_ in matcher.get_opcodes() if tag in ("delete", "replace") for line in range(i, j)}
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

ANSWERS = [(name, answer) for name in EXERCISES for answer in catalogue.wrong_answers(name)]
SAMPLE = random.Random(3).sample(range(len(ANSWERS)), 10)


@pytest.mark.parametrize(
    "name, answer",
    [
        pytest.param(*row, marks=() if i in SAMPLE else pytest.mark.exhaustive, id=f"{row[0]} {row[1]['what']}")
        for i, row in enumerate(ANSWERS)
    ],
)
def test_wrong_answers_are_told_as_documented(name: str, answer: dict) -> None:
    """`says`: of each part the points and, after a colon, words of the check."""
    text = classroom.sources(EXERCISES[name])["broken" in name]
    for old, new in answer["edits"]:
        assert old in text, old
        text = text.replace(old, new)
    marks = graded(EXERCISES[name], f"wrong_{zlib.crc32(answer['what'].encode()):08x}", text)
    wrong = []
    for mark, says in zip(marks, answer["says"], strict=True):
        points, _, words = says.partition(": ")
        if points != f"{mark.reached:g}" or not all(piece in mark.why for piece in words.split(" ... ")):
            wrong.append((mark, says))
    assert wrong == []


def test_every_file_belongs_to_an_exercise() -> None:
    names = {path.name.split("_")[0] for path in FOLDER.glob("*_*.*")} - {""}
    assert names == set(EXERCISES)
    assert {entry.name for entry in catalogue.ENTRIES} == names
    for name in EXERCISES:
        text = classroom.file_of(name, ".md").read_text()
        hints = re.findall(r"<summary>(Hint \d|Explanation)</summary>", text)
        assert hints == ["Hint 1", "Hint 2", "Hint 3", *(["Explanation"] if "broken" in name else [])]


PROBE = Exercise("probe", "step01", (), (Part("whole tiles", 1, ("-n 64",)),), fails="")
HOSTILE = {
    "a loop without end": ("while (1) { volatile int x = 0; (void)x; }", "does a loop end"),
    "a crash": ("*(volatile int *)8 = 1;", "crashed"),
    "much memory": ("*(volatile char *)malloc((size_t)100 << 30) = 1;", "crashed"),
    "memory in use": ("memset(malloc((size_t)2 << 30), 1, (size_t)2 << 30);", "GB of memory"),
    "much output": ('while (1) puts("PASS PASS PASS PASS PASS PASS PASS PASS");', "of output"),
    "spoiled records": (
        "if (system(\"d=$(tr '\\\\0' '\\\\n' </proc/$PPID/cmdline | grep -m1 record.jsonl"
        " | xargs dirname); echo 1 >$d/lab.jsonl; echo 1 >$d/record.jsonl;"
        ' : >$d/o.npy")) {} _exit(0);',
        "cannot be read",
    ),
    "a lie": ('puts("check RIGHT"); fflush(stdout); _exit(0);', "without an answer"),
}


@pytest.mark.parametrize("fault", HOSTILE)
def test_a_file_cannot_harm_the_grader(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classroom, "LONGEST_S", 3)
    monkeypatch.setattr(classroom, "LARGEST_MEMORY", 256 << 20)
    code, words = HOSTILE[fault]
    text = next((REPOSITORY / "steps").glob("step01_*.cu")).read_text()
    assert text.count("static cudaError_t forward(") == 1
    text = "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n" + re.sub(
        r"(static cudaError_t forward\([^{]*\{)", lambda match: match[1] + code, text
    )
    (mark,) = graded(PROBE, re.sub(r"\W", "_", fault), text)
    assert mark.reached == 0 and words in mark.why and "\n" not in mark.why


@pytest.mark.parametrize(
    "data, words",
    [
        (b"", "undefined symbol `step'"),
        ("constexpr int A = 1".encode("utf-16"), "stray"),
        (b"constexpr int A = 1 // f\xfcr\nint main() {}", "error: expected"),
        (b"int a[1 << 30] = {1};", "limit exceeded"),
        (b'#include "/dev/zero"', "out of memory"),
    ],
)
def test_a_file_that_does_not_compile(data: bytes, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classroom, "COMPILER_MEMORY", 1 << 30)
    name = re.sub(r"\W", "_", f"probe.{words}")
    (classroom.MADE / f"{name}.cu").write_bytes(data)
    (mark,) = classroom.marks_of(PROBE, f"made/{name}")
    assert mark.reached == 0 and words in mark.why.splitlines()[0]


def test_a_loop_in_a_kernel_is_named_by_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classroom, "LONGEST_S", 3)
    text = (
        next((REPOSITORY / "steps").glob("step01_*.cu"))
        .read_text()
        .replace("const int q_tiles", "while (*(volatile int *)&problem.q_len > 0) {}  // loop\n  const int q_tiles", 1)
    )
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
    shutil.copytree(REPOSITORY / "steps", tmp_path / "steps", ignore=shutil.ignore_patterns("*[0-9].cu", "exf*.cu"))
    subprocess.run(["cp", "-rl", REPOSITORY / "build", tmp_path / "build"], check=True)
    monkeypatch.setenv("COMMIT", built_commit())

    def try_make(target: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            ["make", *target.split(), f"BACKEND={BACKEND}"], cwd=tmp_path, text=True, capture_output=True, check=False
        )

    def make(target: str, code: int = 0) -> str:
        done = try_make(target)
        assert done.returncode == code, done.stderr
        return done.stdout

    (tmp_path / "steps/exercises/ex13.cu").symlink_to("nowhere.cu")
    said = try_make("ex13").stderr
    assert re.fullmatch(
        r"make ex13: steps/exercises/ex13\.cu is a link to nowhere\.cu, [^\n]*\n"
        r"make\S*: [^\n]*Error 2\n",
        said,
    )
    assert "just written" in make("ex10", 2)
    path = tmp_path / "steps/exercises/ex10.cu"
    path.write_text(path.read_text() + "// mine\n")
    said = make("ex10", 2)
    assert "just written" not in said and path.read_text().endswith("// mine\n")
    assert re.search(r"^  0 of 6 points: ex10\n  to look closer: ", said, re.MULTILINE)
    assert re.search(r"^ex10 .*started$", make("exercises"), re.MULTILINE)
    assert re.search(r"^ex10 +0 of +\d", make("grade"), re.MULTILINE)
    said = [make("hint EX=10") for _ in range(4)]
    assert [hint[:8] for hint in said] == ["Hint 1: ", "Hint 2: ", "Hint 3: ", "Hint 3: "]
    path.write_text(classroom.sources(EXERCISES["ex10"])[0])
    assert make("ex10").endswith("  6 of 6 points: ex10\n")
    make("clean")
    assert path.exists()
