"""Cells of a notebook that hold a changed kernel."""

import os
import re
from pathlib import Path

import pytest

from common.python.attention_steps import BuildError, StepError, magic, names
from tests.lib.programs import REPOSITORY
from tests.lib.steps import source_of, step_names

# The second step of the gallery, which has a barrier in its loop.
TILED = step_names()[1].removeprefix("step")
BARRIER = "    __syncthreads();  // all warps have read the previous"


def part(step: str, name: str) -> str:
    text = magic.source_of(step)
    (item,) = (item for item in magic.definitions(text) if item.name == name)
    return "\n".join(text.splitlines()[item.first : item.end]) + "\n"


@pytest.mark.parametrize("step", names())
def test_each_definition_can_take_its_own_place(step: str) -> None:
    text = magic.source_of(step)
    known = magic.definitions(text)
    assert known[-1].name == "step" and all(item.name for item in known)
    for item in known[:-1]:
        cell = "\n".join(text.split("\n")[item.first : item.end])
        found = placed(magic.spliced(text, cell, "step.cu"))
        assert "\n".join(line for _, _, line in found) == text
        of_cell = [number for file, number, _ in found if file == magic.CELL]
        assert of_cell == list(range(1, item.end - item.first + 1))
        assert all(number == i for i, (file, number, _) in enumerate(found, 1) if file == "step.cu")


def placed(text: str) -> list[tuple[str, int, str]]:
    """The lines of a text, each with the file and the number that the compiler gives it."""
    found, file, number = [], "", 0
    for line in text.split("\n"):
        if place := re.fullmatch(r'#line (\d+) "(.*)"', line):
            number, file = int(place[1]), place[2]
        else:
            found.append((file, number, line))
            number += 1
    return found


def test_braces_in_texts_are_none() -> None:
    cell = """int f() {\n  const char c = '{', d = '\\\\';  // }\n  return c == "}\\"{"[0] ? 1'000 : d;  /* { */\n}\nint g;\n"""
    assert [(item.name, item.first, item.end) for item in magic.definitions(cell)] == [("f", 0, 4), ("g", 4, 5)]


def test_what_is_new_comes_before_what_uses_it() -> None:
    cell = '#include "new.cuh"\n\n__device__ int fresh() { return 1; }\n\n' + part(TILED, "multiply_pv")
    whole = magic.spliced(magic.source_of(TILED), cell, "step.cu")
    assert 0 < whole.index("new.cuh") < whole.index("int fresh()") < whole.index("multiply_pv(")
    with pytest.raises(StepError, match="the cell defines nothing that the step has: "):
        magic.spliced(magic.source_of(TILED), "int y = 1;", "step.cu")


def test_a_changed_kernel_is_checked_examined_and_compared() -> None:
    kernel = part(TILED, "attention_kernel")
    right = magic.cell_magic(f"after={TILED}", kernel)
    assert "RIGHT, 0 findings" in str(right) and "all counts are those of" in str(right)
    wrong = magic.cell_magic(f"after={TILED} -n 100", kernel.replace(BARRIER, "    //"))
    read = kernel[: kernel.index("multiply_qk")].count("\n") + 1
    assert "WRONG" in str(wrong) and "Map:" in str(wrong) and "shared memory race" in str(wrong)
    assert f"called at {magic.CELL}:{read}" in str(wrong)
    lines = kernel.splitlines()
    assert all(lines[line.line - 1].strip() == line.source for line in wrong.lab.lines if line.file == magic.CELL)
    assert {line.file for line in wrong.lab.lines} > {
        magic.CELL,
        str(source_of(f"step{TILED}").path.relative_to(REPOSITORY)),
    }
    html = wrong._repr_html_()
    assert html.count("<tr") == kernel.count("\n") + 1 and html.count("background") >= 1
    assert re.search(r"barriers +\d+ -> \d+", str(wrong))


@pytest.mark.parametrize("kind", ["backward", "decode"])
def test_cells_of_each_kind_have_cases_of_their_own(kind: str) -> None:
    step = step_names(kind)[1].removeprefix("step")  # the first backward step is slow
    assert "RIGHT, 0 findings" in str(magic.cell_magic(f"after={step}", magic.source_of(step)))


def test_a_cell_of_an_exercise_is_examined(capsys: pytest.CaptureFixture) -> None:
    shown = magic.cell_magic("exercise=broken18", magic._classroom("start", "broken18"))
    assert "points: broken18" in capsys.readouterr().out
    assert "the launch ended early" in str(shown) and "background" in shown._repr_html_()
    shown = magic.cell_magic("exercise=broken18 -n 64", magic._classroom("start", "broken18"))
    assert shown.options == "-n 64"


def test_a_stopped_kernel_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(magic, "LIMIT", "--time-limit=0.2")
    endless = part(TILED, "multiply_pv").replace("{\n", "{\n  for (;;) __syncwarp();\n", 1)
    shown = magic.cell_magic(f"after={TILED}", endless)
    assert "time limit of 0.2 s reached" in str(shown) and shown.base is None and " -> " not in str(shown)


def test_what_does_not_compile_names_the_line_of_the_cell() -> None:
    kernel = part(TILED, "attention_kernel").replace(BARRIER, BARRIER.replace(";", "", 1))
    line = kernel[: kernel.index("__syncthreads()  //")].count("\n") + 1
    with pytest.raises(BuildError, match=rf"{magic.CELL}:{line}:\d+: error") as refused:
        magic.cell_magic(f"after={TILED}", kernel)
    assert "__syncthreads()" in str(refused.value).splitlines()[-1]
    other = part(TILED, "multiply_pv")
    for wrong in (other + kernel.rstrip().removesuffix("}"), other.rstrip() + "}"):
        with pytest.raises(StepError, match="what begins here does not end") as refused:
            magic.cell_magic(f"after={TILED}", wrong)
        at = int(re.match(rf"{magic.CELL}:(\d+):", str(refused.value))[1])
        assert wrong.splitlines()[at - 1].startswith("template") and at > wrong[: wrong.rindex("template")].count("\n")
    with pytest.raises(BuildError, match=rf'{magic.CELL}:2:\d+: .*not_there.cuh(.*\n)+#include "not_there.cuh"'):
        magic.cell_magic(f"after={TILED}", '\n#include "not_there.cuh"\n' + other)
    with pytest.raises(StepError, match="must begin with after=NN"):
        magic.cell_magic(TILED, kernel)


def test_a_notebook(tmp_path: Path) -> None:
    """Both magics, as a notebook runs them."""
    cells = [
        "%load_ext common.python.attention_steps",
        f"%step_source {TILED} multiply_pv",
        f"%%step after={TILED} -n 64\n" + part(TILED, "multiply_pv"),
        "%%step exercise=ex00\n" + magic._classroom("start", "ex00"),
    ]
    cells.append("%%step after=99\nint x;")
    import nbformat  # here: a GPU machine without notebooks collects the other tests
    from nbclient import NotebookClient

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.cells[-1].metadata["tags"] = ["raises-exception"]
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(REPOSITORY)}}).execute(
        env=dict(os.environ)
    )
    outputs = [cell.outputs for cell in notebook.cells]
    assert outputs[0] == []
    assert "RIGHT, 0 findings" in outputs[2][0].data["text/plain"] and "<table>" in outputs[2][0].data["text/html"]
    assert "points" in outputs[3][0].text
    (said,) = outputs[4][0].traceback
    assert said.startswith("StepError: step '99': there is none of this name, must be one of 01, ")
