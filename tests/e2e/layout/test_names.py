"""No step is named outside of its own files. What is known of a step comes from its descriptor and
from the table beside it, so a new step needs no change elsewhere, and another number is a new name."""

import re
import subprocess

import pytest

from tests.lib.programs import REPOSITORY
from tests.lib.steps import every_step

NUMBERS = "|".join(sorted((name.removeprefix("step") for name in every_step()), reverse=True))
NAMED = re.compile(rf"(?<![A-Za-z])steps? ?({NUMBERS})(?![0-9a-z])")
SEARCHED = ("Makefile", "*.mk", "common", "plots", "tests", "steps/steps.mk")
# What is written by a command, or measured.
GENERATED = ("plots/results/", "tests/gpu/h200/", "tests/data/", "tests/mutants/judged/")
EDITED = "its tests edit the sources of these steps"
ALLOWED = {
    "common/device/": "a header says which step introduced what it holds",
    "tests/docs/": "what the pages and explorers say of these steps",
    "tests/e2e/exercises/": "the exercises belong to steps",
    "tests/e2e/lab/test_lab.py": EDITED,
    "tests/e2e/lab/test_lab_hopper.py": EDITED,
    "tests/e2e/lab/test_lab_truth.py": "a number that a GPU counted for these steps",
    "tests/gpu/README.md": "it says what is known of measured steps",
}


def files() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *SEARCHED],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [path for path in listed.splitlines() if not path.startswith(GENERATED)]


@pytest.mark.cpu_only("the sources are the same on a GPU machine")
def test_steps_are_named_only_where_a_lesson_is_meant() -> None:
    found = {}
    for path in files():
        text = (REPOSITORY / path).read_text(encoding="utf-8", errors="replace")
        if names := [f"{text.count(chr(10), 0, m.start()) + 1}: {m[0]}" for m in NAMED.finditer(text)]:
            found[path] = names
    named = {path: names for path, names in found.items() if not path.startswith(tuple(ALLOWED))}
    assert named == {}
    assert [part for part in ALLOWED if not any(path.startswith(part) for path in found)] == []
