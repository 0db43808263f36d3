"""What the lab counts and finds, as objects."""

import json
import re
from pathlib import Path

import matplotlib
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
    assert sum(row.get("global_load_sectors", 0) for row in rows) == lab.counts["global_load_sectors"]
    matplotlib.use("agg")
    left, right = lab.plot().axes
    assert {bar.get_width() for bar in left.patches} >= {line.counts.sectors for line in lab.lines[:12]}


def test_frames(lab: attention_steps.Lab) -> None:
    pytest.importorskip("pandas", reason="no pandas")
    frame = lab.frame()
    assert len(frame) == len(lab.lines) and frame["global_load_sectors"].sum() == lab.counts["global_load_sectors"]
    assert not frame.isna().any().any()


def test_a_report_of_options_in_place_of_arrays() -> None:
    found = attention_steps.step(NAIVE).lab("-n 40 -H 1 -d 16")
    assert found.right and found.record["seqlen"] == 40
    with pytest.raises(StepError, match="--seqlen 0: "):
        attention_steps.step(NAIVE).lab("-n 0")
    with pytest.raises(TypeError, match="missing a required argument"):
        attention_steps.step(NAIVE).lab("-n 40", mask="causal")
    with pytest.raises(TypeError, match="unexpected keyword argument 'msk'"):
        attention_steps.step(NAIVE).lab(*INPUTS, msk="causal")


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
    assert found.right is False and "rows wrong" in found.text and "Map:" in found.why
    assert {problem.what.partition(":")[0] for problem in found.findings} == {"shared memory race"}
    assert all(problem.place.startswith(f"{racing.path}:") for problem in found.findings)
    html = found.annotated(racing.source, racing.path.name)
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
    (tmp_path / "my step.cu").write_text('#include "attention.h"\nint x = y;\n')
    with pytest.raises(BuildError, match=r"/my step.cu:2:9: error: ") as refused:
        attention_steps.build(tmp_path / "my step.cu")
    assert "int x = y;" in str(refused.value)
    (tmp_path / "none.cu").write_text("int x;\n")
    with pytest.raises(BuildError, match="undefined symbol `step'"):
        attention_steps.build(tmp_path / "none.cu")


def test_where_nothing_can_be_compiled_one_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.cu").write_text("int x;")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(
        BuildError, match="no-such-compiler not found. Install it: sudo apt-get install g[+][+]"
    ) as refused:
        attention_steps.build(tmp_path / "mine.cu")
    assert "\n" not in str(refused.value)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match="^make not found. Install it: sudo apt-get install make g[+][+]$"):
        attention_steps.build(tmp_path / "mine.cu")


def test_the_page_says_what_works() -> None:
    numpy_part = (REPOSITORY / "docs/python.md").read_text().partition("## With PyTorch")[0]
    blocks = re.findall(r"^```python\n(.*?)^```", numpy_part, re.MULTILINE | re.DOTALL)
    code = "\n".join(blocks).replace("report.frame()", "").replace("import attention_steps", "")
    names = {"attention_steps": attention_steps}
    exec(code, names)  # pylint: disable=exec-used
    assert len(blocks) == 2 and names["o"].shape == (2, 200, 64) and names["report"].right


def test_the_package_is_small() -> None:
    """It stays a thin layer over the programs and the libraries."""
    files = (REPOSITORY / "common/python").rglob("*.py")
    assert sum(len(file.read_text().splitlines()) for file in files) <= 1500
