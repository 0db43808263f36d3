"""What the lab counts and finds, as objects."""

import json
from pathlib import Path

import numpy as np
import pytest

from common.python import attention_steps
from common.python.attention_steps import BuildError, StepError
from tests.lib.generators import rounded_inputs
from tests.lib.kinds import NAIVE
from tests.lib.problem import Problem
from tests.lib.programs import REPOSITORY, Program
from tests.lib.steps import source_of, step_names

P = Problem(heads=2, seqlen=100)
# The second step of the gallery, which has a barrier in its loop.
TILED = step_names()[1]
INPUTS = [x.astype(np.float16) for x in rounded_inputs(P)]


@pytest.fixture(scope="module")
def lab() -> attention_steps.Lab:
    return attention_steps.step(TILED).lab(*INPUTS, mask="causal")


def test_a_report_has_the_counts_of_the_program(lab: attention_steps.Lab, tmp_path: Path) -> None:
    words = "--mask", "causal", "--input", tmp_path / "in", f"--report=json:{tmp_path / 'lab'}"
    (tmp_path / "in").mkdir()
    for name, x in zip("qkv", INPUTS, strict=True):
        np.save(tmp_path / "in" / f"{name}.npy", x)
    Program(TILED).run_right(*words)
    run, *others = map(json.loads, (tmp_path / "lab").read_text().splitlines())
    assert lab.right and lab.findings == [] and lab.why == ""
    assert lab.counts["shared_load_wavefronts"] == run["shared_load_wavefronts"] > 0
    assert lab.counts.sectors == sum(
        count for name, count in run.items() if name.endswith(("load_sectors", "store_sectors"))
    )
    assert len(lab.lines) == sum(record["record"] == "line" for record in others)
    assert sum(line.counts.sectors for line in lab.lines) == lab.counts.sectors


def test_lines_name_their_source(lab: attention_steps.Lab) -> None:
    path = str(source_of(TILED).path.relative_to(REPOSITORY))
    lines = source_of(TILED).path.read_text().splitlines()
    own = [line for line in lab.lines if line.file == path]
    assert own and all(lines[line.line - 1].strip() == line.source for line in own)
    assert f"{own[0].file}:{own[0].line}" in str(lab) and lab.verdict() in lab._repr_html_()


def test_tables_and_pictures(lab: attention_steps.Lab) -> None:
    rows = lab.table()
    assert [row["line"] for row in rows] == [line.line for line in lab.lines]
    assert sum(row["global_load_sectors"] for row in rows) == lab.counts["global_load_sectors"]
    import matplotlib

    matplotlib.use("agg")
    left, right = lab.plot().axes
    assert {bar.get_width() for bar in left.patches} >= {line.counts.sectors for line in lab.lines[:12]}


def test_a_report_of_options_in_place_of_arrays() -> None:
    found = attention_steps.step(NAIVE).lab("-n 40 -H 1 -d 16")
    assert found.right and found.record["seqlen"] == 40
    with pytest.raises(StepError, match="--seqlen 0: "):
        attention_steps.step(NAIVE).lab("-n 0")


@pytest.fixture(scope="module")
def racing(tmp_path_factory: pytest.TempPathFactory) -> attention_steps.Step:
    """A kernel of one's own, which lacks the barrier before a tile is overwritten."""
    text = source_of(TILED).path.read_text()
    barrier = "    __syncthreads();  // all warps have read the previous"
    assert text.count(barrier) == 1
    file = tmp_path_factory.mktemp("own") / "racing.cu"
    file.write_text(text.replace(barrier, "    //"))
    return attention_steps.build(file)


def test_findings_of_a_kernel_of_ones_own(racing: attention_steps.Step) -> None:
    found = racing.lab(*INPUTS)
    lines = racing.source.splitlines()
    assert found.right is False and "rows wrong" in found.text and "|" in found.why
    assert {problem.what.partition(":")[0] for problem in found.findings} == {"shared memory race"}
    assert all(0 < problem.line <= len(lines) for problem in found.findings)
    html = found.annotated(racing.source, racing.program.with_suffix(".cu").name)
    assert html.count("<tr") == len(lines) + 1 and "shared memory race" in html
    right = attention_steps.step(TILED).lab(*INPUTS)
    assert found.compare(right)["barriers"][0] > found.compare(right)["barriers"][1]


def test_a_kernel_of_ones_own_is_called_as_others(tmp_path: Path) -> None:
    own = attention_steps.build(source_of(NAIVE).path)
    expected = attention_steps.step(NAIVE)(*INPUTS, mask="causal")
    assert all((a == b).all() for a, b in zip(own(*INPUTS, mask="causal"), expected, strict=True))
    assert own.facts["step"] == NAIVE
    with pytest.raises(StepError, match=r"takes full or causal"):
        own(*INPUTS, mask="window:7")


def test_what_does_not_compile_says_where(tmp_path: Path) -> None:
    (tmp_path / "mine.cu").write_text('#include "attention.h"\nint x = y;\n')
    with pytest.raises(BuildError, match=r"mine_\w+.cu:2:9: error: 'y' was not declared|mine_\w+.cu:2:9: .*error"):
        attention_steps.build(tmp_path / "mine.cu")


def test_the_package_is_small() -> None:
    """It stays a thin layer over the programs and the libraries, which library.py calls for the benchmark, too."""
    files = [path for path in (REPOSITORY / "common/python").rglob("*.py") if path.name != "library.py"]
    assert sum(len(file.read_text().splitlines()) for file in files) <= 1500
