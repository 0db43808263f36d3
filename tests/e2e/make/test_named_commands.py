"""Each make command that README.md, CONTRIBUTING.md, a page or `make` alone names is run: by .ci/run, by
tests/docs, which runs the blocks of the pages, or by a test. Those that need what is not here are refused."""

import re
from pathlib import Path

import pytest

from tests.e2e.make.test_make import Tree
from tests.lib.programs import REPOSITORY

pytestmark = pytest.mark.cpu_only("it tests the Makefile, which is the same on a GPU machine")

PAGES = [
    REPOSITORY / "README.md",
    REPOSITORY / "CONTRIBUTING.md",
    *(REPOSITORY / "docs").glob("*.md"),
    *(REPOSITORY / "steps/exercises").glob("*.md"),
    *(REPOSITORY / "tests").glob("*/README.md"),
    REPOSITORY / "common/simt/README.md",
]
BLOCK = re.compile(r"^```(sh|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(
    r"(?:^ *|&& )make ((?:[A-Z_]+=\S+ |-C \S+ |-\S+ )*)([\w./][\w./-]*(?: (?!&&)[a-z][\w-]*)*)", re.MULTILINE
)

NEED_A_GPU = (
    "bench",
    "bench QUICK=1",
    "builds OLD=build",
    "ceilings",
    "variants",
    "profile STEP=03",
    "train TEXT=README.md",
    "packed TEXT=README.md",
    "generate",
    "model STEP=10c",
)
# What the recipes call with Python. Other tests call the same tools.
TOOLS = {
    "lab": ("plots.tools.lab",),
    "notebook": ("tests.docs.notebook",),
    "pages": ("plots.figures.pages",),
    "pictures": ("plots.figures.pictures",),
    "plots": ("plots.figures.all",),
    "readme": ("plots.figures.readme",),
    "real-input": tuple(f"plots.tools.real_input.{name}" for name in ("measure", "e4m3", "tables")),
}
# Targets that are parts of those that .ci/run makes.
PARTS = {
    "test",
    "test-unit",
    "test-e2e",
    "libraries",
    "simt",
    "lab-counts",
    "docs",
    "explorers",
    "slides",
    "foundations",
    "fNN",
}
# Test files that make the others.
ELSEWHERE = {
    "all": "make/test_make.py",
    "clean": "exercises/test_exercises.py",
    "exercises": "exercises/test_exercises.py",
    "grade": "exercises/test_exercises.py",
    "mutants": "make/test_new_step.py",
    "ptx": "tools/test_profile.py",
    "sass": "tools/test_profile.py",
    "walk": "figures/test_walk.py",
    "build/cpu/variants/{name}": "tools/test_variants.py",
}
TRIED_HERE = {
    *TOOLS,
    *(words.split()[0] for words in NEED_A_GPU),
    "activations",
    "test-all",
    "lint",
    "test-valgrind",
    "build/cuda-sm_90/layouts",
    "build/cuda-sm_90/wgmma_waits",
}


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """Python, which writes sources, and checkers of the source are fake, too."""
    made = Tree(tmp_path)
    for name in ("python3", "valgrind", "cppcheck"):
        (made.bin / name).write_text(
            f'#!/bin/sh\necho "{name} $*" >> {made.log}\n'
            'for last; do :; done; case $last in *.cu) touch "$last"; esac\n'
        )
        (made.bin / name).chmod(0o755)
    return made


def targets(text: str) -> set[str]:
    """Of the make commands in a text; the number of a step or an exercise does not matter."""
    words = {
        re.sub(r"variants/step\w+", "variants/{name}", word)
        for match in COMMAND.finditer(text)
        for word in match[2].split()
    }
    return {re.sub(r"^(step|diff|ex|broken|f)f?(\d\d[a-z]?|NN)(?:_mine)?$", r"\1NN", word) for word in words}


def named_in_pages() -> set[str]:
    texts = [page.read_text() for page in PAGES]
    quoted = [f"{words}\n" for text in texts for words in re.findall(r"`(make [^`]*)`", text)]
    return targets("".join([*quoted, *(match[2] for text in texts for match in BLOCK.finditer(text))]))


def test_each_named_command_is_run(tree: Tree) -> None:
    named = named_in_pages() | targets(tree.make().stdout)
    assert {"deps", "test", "stepNN", "ptx", "check", "exNN"} <= named
    in_blocks = {
        target
        for page in PAGES
        if page.parent.name != "exercises"
        for kind, text in BLOCK.findall(page.read_text())
        if kind == "sh"
        for target in targets(text)
        if page.name != "CONTRIBUTING.md"
    }
    in_ci = targets((REPOSITORY / ".ci/run").read_text())
    assert {"deps", "test", "check-format", "cppcheck", "check-docs"} <= in_ci
    for target, file in ELSEWHERE.items():
        assert f'"{target}"' in (REPOSITORY / "tests/e2e" / file).read_text(), target
    assert named - in_blocks - in_ci - PARTS - TRIED_HERE - set(ELSEWHERE) == set()


@pytest.mark.parametrize("words", NEED_A_GPU)
def test_what_needs_a_gpu_is_refused(tree: Tree, words: str) -> None:
    done = tree.make(*words.split(), "BACKEND=cpu")
    assert done.returncode != 0 and done.stdout == "" and not tree.log.exists()
    assert re.fullmatch(
        rf"make {words.split()[0]}: times need a GPU, and this is BACKEND=cpu; [^\n]*\n"
        r"make: \*\*\* [^\n]*\n",
        done.stderr,
    )


@pytest.mark.parametrize("target", TOOLS)
def test_tools_that_recipes_call_exist(tree: Tree, target: str) -> None:
    calls = tree.build(target, "BACKEND=cpu")
    called = [name for call in calls if (name := re.match(r"python3 -m (\S+)", call))]
    assert {match[1] for match in called} >= set(TOOLS[target])
    for match in called:
        path = tree.root / match[1].replace(".", "/")
        assert path.with_suffix(".py").exists(), match[1]


def test_everything_is_tested_by_test_all(tree: Tree) -> None:
    calls = tree.build("test-all", "BACKEND=cpu", "-j2")
    for words in ("-fsanitize=address", "python3 -m pytest -q -n", "valgrind -q ", "cppcheck "):
        assert [call for call in calls if words in call], words
    assert not [call for call in calls if "not exhaustive" in call]
    assert {call.split()[0] for call in calls if "build/lint-" in call} >= {"gcc", "g++", "nvcc"}


def test_activations_need_a_network(tree: Tree) -> None:
    python = tree.bin / "python3"
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *venv*) mkdir -p "$3/bin"; cp {python} "$3/bin/python";; *"-m pip"*) exit 1;; esac\n'
    )
    done = tree.make("activations", "KEEP=--keep")
    assert done.returncode != 0
    assert (
        "activations: pip could not fetch all of tests/activations/requirements.txt; it needs a network for that"
        in (done.stdout + done.stderr).splitlines()
    )


@pytest.mark.parametrize("name", ["layouts", "wgmma_waits"])
def test_programs_for_a_gpu_are_compiled(tree: Tree, name: str) -> None:
    calls = tree.build("BACKEND=cuda", "ARCH=sm_90", f"build/cuda-sm_90/{name}")
    assert [call for call in calls if call.startswith("nvcc ") and f"tests/gpu/{name}.cu" in call]
