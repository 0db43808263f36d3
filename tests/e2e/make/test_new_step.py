"""A step is added by its source and its page: a copy of a step under a new name is built, tested, tried
by mutants, documented and benchmarked without an edit elsewhere."""

import os
import re
import subprocess
import sys

import pytest

from tests.lib.kinds import FACTS, MMA_STEPS
from tests.lib.programs import REPOSITORY, STEP_DIR
from tests.lib.source_tree import SourceTree
from tests.lib.steps import source_of, every_step

pytestmark = pytest.mark.cpu_only("it builds a step for the CPU backend")

ORIGINAL = next(name for name in reversed(MMA_STEPS) if 64 in FACTS[name]["head_dims"])
NEW = f"{ORIGINAL}z"
NUMBER = NEW.removeprefix("step")
PAGE = f"# Step {NUMBER}\n\n<!-- numbers: not yet -->\n<!-- /numbers -->\n"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> SourceTree:
    """The sources with the new step, which is built, and the programs of the other steps."""
    tree = SourceTree(tmp_path_factory.mktemp("new"), built="cpu")
    text = source_of(ORIGINAL).path.read_text()
    text, count = re.subn(
        r'\.name = "\w+",\n    \.after = "\w+",', f'.name = "{NEW}",\n    .after = "{ORIGINAL}",', text
    )
    assert count == 1
    (tree.root / f"steps/{NEW}_copy.cu").write_text(text)
    (tree.root / f"docs/{NEW}.md").write_text(PAGE)
    for name in every_step():
        (tree.root / "build/cpu" / name).symlink_to(STEP_DIR / name)
    tree.made("-j2", "BACKEND=cpu", f"build/cpu/{NEW}", f"build/cpu/lib{NEW}.so")
    return tree


def python(tree: SourceTree, *words: object) -> str:
    """What Python prints in the tree, after the time of a test."""
    env = {**os.environ, "STEP_DIR": str(tree.root / "build/cpu"), "COMMIT": "unknown"}
    env.pop("PYTEST_ADDOPTS", None)
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=tree.root,
        env=env,
        text=True,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_is_built_and_compared(tree: SourceTree) -> None:
    assert f"{ORIGINAL} {NEW}" in tree.make("help", "BACKEND=cpu").stdout
    first, second, *_, last = tree.make(f"diff{NUMBER}").stdout.splitlines()
    assert first.startswith(f"--- steps/{ORIGINAL}_") and second.startswith(f"+++ steps/{NEW}_")
    assert last.startswith("2 lines of code added")


def test_it_is_tested(tree: SourceTree) -> None:
    """It has the limits of the step that it builds on."""
    said = python(
        tree,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:xdist",
        "-p",
        "no:cacheprovider",
        "-k",
        f"{NEW} and (test_info or keep_their_limits)",
        "-m",
        "not exhaustive",
        "tests/e2e/cli/test_report.py",
        "tests/e2e/lab/test_lab.py",
    )
    assert re.search("^3 passed", said, re.MULTILINE), said


@pytest.mark.exhaustive
def test_it_is_tried_by_mutants(tree: SourceTree) -> None:
    only = r"attention_kernel \| barrier removed .* \| 1$"
    words = ("mutants", "BACKEND=cpu", f"STEP={NUMBER}", f"ONLY={only}", f"PYTHON={sys.executable}")
    done = tree.made(*words)
    assert re.search(rf"^{NEW} +1 +0 +1 ", done.stdout, re.MULTILINE), done.stdout  # by a finding
    assert " of " not in tree.made(*words).stdout  # all verdicts are known


def test_it_is_documented(tree: SourceTree) -> None:
    """README's table, and the part of its page that a command writes."""
    results = REPOSITORY / "plots/results/h200"
    written = python(
        tree,
        "-c",
        f"""
from pathlib import Path
from plots.figures import pages, readme
from plots.figures.records import load
from tests.lib.programs import Program
results, after = load(Path({str(results)!r})), pages.source_of({NEW!r}).after
print(readme.table(results, load(Path({str(results.parent / "backward")!r}))))
reports = {{name: pages.report_of(Program(name), name, list(pages.SHAPES)[0], Path({str(tree.bin)!r}))
            for name in (after, {NEW!r})}}
print(*pages.speed(results, {NEW!r}, after), *pages.lab(reports, {NEW!r}, after, list(pages.SHAPES)[0]), sep="\\n")
""",
    )
    assert re.search(rf"^\| \[{NUMBER}\]\(docs/{NEW}.md\) \[.* \| – \| – \| – \| – \|$", written, re.MULTILINE)
    assert "Not measured on a GPU yet: `make bench`." in written
    assert f"|  | step {ORIGINAL[4:]} | step {NUMBER} |" in written


def test_it_is_benchmarked(tree: SourceTree) -> None:
    found = python(
        tree,
        "-c",
        f"""
from pathlib import Path
from plots.bench.cases import all_cases
from plots.bench.run import libraries_in
(path,) = (path for path in libraries_in(Path("build/cpu")) if path.stem == "lib{NEW}")
print(sum(case.takes_step({NEW!r}) for case in all_cases()) == len(all_cases()))
""",
    )
    assert found == "True\n"
