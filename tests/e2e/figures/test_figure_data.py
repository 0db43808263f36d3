"""make plots: figures show what the stored rows say and no more, and what is missing is said."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.e2e.figures.drawing import NAMES, draw, figures, measured, rows_given
from tests.e2e.figures.measured_rows import (STEP_SPEEDS, compare_rows, step_row, sweep_rows,
                                             write_results, write_rows)
from tests.lib.programs import REPOSITORY, read_rows
from tests.lib.source_tree import SourceTree

DESCRIPTION = "{http://purl.org/dc/elements/1.1/}description"
SVG_TEXT = "{http://www.w3.org/2000/svg}text"


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, measured.Results]:
    return rows_given(tmp_path_factory.mktemp("given"))


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All files, of a whole sweep and comparison."""
    root = tmp_path_factory.mktemp("drawn")
    done = draw(write_results(root / "results"), root / "new" / "plots")
    assert (done.returncode, done.stderr) == (0, "")
    return root / "new" / "plots"


def test_all_files_are_there(drawn: Path) -> None:
    assert {path.name for path in drawn.iterdir()} == {
        f"{name}_{theme}.{kind}" for name in NAMES for theme in ("light", "dark")
        for kind in ("svg", "png")}


@pytest.mark.parametrize("name", NAMES)
def test_svg_tells_its_data(drawn: Path, given: dict, name: str) -> None:
    """The same in both themes, and those of the rows; no date, so equal rows give equal bytes."""
    expected = json.loads(json.dumps(figures.FIGURES[name].data(given["whole"])))
    for theme in ("light", "dark"):
        text = (drawn / f"{name}_{theme}.svg").read_text()
        assert json.loads(ElementTree.fromstring(text).findtext(f".//{DESCRIPTION}")) == expected
        assert "dc:date" not in text


def test_same_rows_same_bytes(drawn: Path, tmp_path: Path) -> None:
    """Of a figure with hatches, and so with names that Matplotlib makes up."""
    again = tmp_path / "again"
    assert draw("--only", "waterfall", write_results(tmp_path / "results"), again).returncode == 0
    assert len(list(again.iterdir())) == 4
    for path in again.iterdir():
        assert (drawn / path.name).read_bytes() == path.read_bytes(), path.name


def texts_of(path: Path) -> list[str]:
    return [element.text for element in ElementTree.parse(path).getroot().iter(SVG_TEXT)]


def rows_of(rows: list[dict], **wanted: object) -> list[dict]:
    return [row for row in rows if all(row.get(name) == value for name, value in wanted.items())]


def test_waterfall_tells_speedups_and_regressions(drawn: Path) -> None:
    texts = texts_of(drawn / "waterfall_light.svg")
    for mask in ("full", "causal"):
        rows = rows_of(sweep_rows(), seqlen=4096, head_dim=128, dtype="fp16", mask=mask)
        speeds = [rows_of(rows, step=step)[0]["tflops"] for step in STEP_SPEEDS]
        assert speeds[4] < speeds[3]
        assert f"{speeds[0]:.3g}" in texts
        for before, speed in zip(speeds, speeds[1:]):
            assert (f"{speed:.3g}\N{EM SPACE}×{speed / before:.2f}"
                    + " slower" * (speed < before)) in texts
    svg = (drawn / "waterfall_light.svg").read_text()
    bold = re.findall(r'<text style="[^"]*(?:bold|700)[^"]*"[^>]*>([^<]*)<', svg)
    assert [text[-12:] for text in bold if "×" in text] == ["×0.98 slower"] * 2


def test_two_cards_are_told(tmp_path: Path) -> None:
    """In the figures that take rows of both runs."""
    results = write_results(tmp_path)
    path = results / "h200" / "compare_0123456789ab.jsonl"
    for card, told in (("GPU-1", False), ("GPU-2", True)):
        write_rows(path, [row | {"gpu_uuid": card} for row in compare_rows()])
        found = {name: figure.data(measured.load(results / "h200"))
                 for name, figure in figures.FIGURES.items()}
        assert [name for name, data in found.items() if "two cards" in data["origin"]] == (
            ["tflops", "sparsity"] if told else [])


def test_tflops_keeps_two_runs_apart(given: dict) -> None:
    """A step's points are of the comparison where it has them, and of the sweep elsewhere."""
    data = figures.FIGURES["tflops"].data(given["whole"])
    assert [(panel["head_dim"], panel["mask"]) for panel in data["panels"]] == [
        (head_dim, mask) for head_dim in (64, 128, 256) for mask in ("full", "causal")]
    for panel in data["panels"]:
        problem = {"head_dim": panel["head_dim"], "mask": panel["mask"], "dtype": "fp16"}
        curves = {curve["name"]: curve for curve in panel["curves"]}
        assert list(curves) == ["01", "02", "03", "04", "05", "FA2", "FA3", "Flex", "cuDNN", "math"]
        beside = rows_of(compare_rows(), step="step04", **problem)
        alone = rows_of(sweep_rows(), step="step04", **problem)
        assert curves["04"]["beside"] == [[row["seqlen"], row["tflops"]] for row in beside]
        assert curves["04"]["alone"] == [[row["seqlen"], row["tflops"]] for row in alone
                                         if row["seqlen"] < 4096]
        assert curves["FA2"]["alone"] == [] and not curves["04"]["peer"]


def test_roofline_has_every_step_at_its_intensity(given: dict) -> None:
    data = figures.FIGURES["roofline"].data(given["whole"])
    assert list(data["steps"]) == ["01", "02", "03", "04", "05"]
    for name, factor in (("01", 61), ("04", 1)):
        for point in data["steps"][name]:
            # 4 N N D operations, and Q, K, V and O of 2 N D bytes each.
            assert point["intensity"] == pytest.approx(point["n"] / 2 / factor, rel=1e-6)
    assert data["ceilings"] == {"ceiling_mma_tflops": 640.0, "ceiling_ffma_tflops": 62.0,
                                "ceiling_copy_gb_per_s": 4150.0}


def test_roofline_says_what_its_axis_is(drawn: Path) -> None:
    assert "FLOP for each byte that must pass device memory" in texts_of(
        drawn / "roofline_dark.svg")


def test_sparsity_is_of_the_sweep(given: dict) -> None:
    """Times over the full mask's; FlexAttention by its ratio to the step, of their turns."""
    data = figures.FIGURES["sparsity"].data(given["whole"])
    assert [(panel["head_dim"], panel["seqlen"]) for panel in data["panels"]] == [
        (64, 4096), (64, 16384), (128, 4096), (128, 16384)]
    assert data["blocks"] == [(128, 128)]
    for panel in data["panels"]:
        problem = {"head_dim": panel["head_dim"], "seqlen": panel["seqlen"], "dtype": "fp16"}
        (full,) = rows_of(sweep_rows(), step="step05", mask="full", **problem)
        assert panel["full_ms"] == full["median_ms"]
        for mask, density in (("blocks:0.3", 0.3), ("random:0.5", 0.5), ("window:1024", 0.22)):
            (row,) = rows_of(sweep_rows(), mask=mask, **problem)
            assert panel["masks"][mask] == pytest.approx(
                [1 - density, row["median_ms"] / full["median_ms"]], rel=1e-6)
        assert panel["masks"]["random:0.5"][1] > 1
        assert panel["flex"].keys() == {"causal", "window:1024", "document:8"}
        for mask, (share, time) in panel["flex"].items():
            (ours,) = rows_of(compare_rows(), step="step05", mask=mask, **problem)
            assert [share, time] == pytest.approx([
                panel["masks"][mask][0], panel["masks"][mask][1] * ours["speed_over_flex"]])


def test_sparsity_tells_the_time_of_a_block(given: dict) -> None:
    """By counts of blocks, not of entries: of random entries none can be left out."""
    found = figures.FIGURES["sparsity"].data(given["whole"])
    for panel in found["panels"]:
        for mask, share in (("blocks:0.1", 0.1), ("random:0.5", 1)):
            time = panel["masks"][mask][1]
            assert panel["per_block"][mask] == pytest.approx(time / share, rel=1e-2)
            percent = 100 * (panel["per_block"][mask] - 1)
            assert f"{mask} {percent:+.0f} %" in figures.figure_sparsity.labels(found)
    panel = {"per_block": {"window:9": 1.344, "causal": 0.98}}
    for mask, said in (("window:9", "window:9 +34 %"), ("causal", "causal -2 %"),
                       ("document:3", "document:3")):
        assert figures.figure_sparsity.label_of(mask, panel) == said


@pytest.mark.parametrize("p10, p90, told", [
    (1.03, 1.04, True), (1.01, 1.04, False), (0.9, 0.94, True), (0.9, 0.99, False)])
def test_no_more_is_told_of_a_block_than_samples_allow(tmp_path: Path, p10: float, p90: float,
                                                       told: bool) -> None:
    """The full mask's are from 0.98 to 1.02."""
    problem = {"step": "step05", "seqlen": 4096, "head_dim": 64, "dtype": "fp16"}
    (full,) = rows_of(sweep_rows(), mask="full", **problem)
    time = full["median_ms"]
    rows = [row | {"p10_ms": 0.98 * time, "p90_ms": 1.02 * time} if row == full else
            row | {"p10_ms": p10 * time, "p90_ms": p90 * time}
            if rows_of([row], mask="random:0.5", **problem) else row for row in sweep_rows()]
    write_rows(tmp_path / "sweep_a.jsonl", rows)
    panel = figures.FIGURES["sparsity"].data(measured.load(tmp_path))["panels"][0]
    assert ("random:0.5" in panel["per_block"]) == told


def test_explanations_fit_what_is_shown(given: dict) -> None:
    """FlexAttention and peers are spoken of where they are."""
    explained = figures.figure_sparsity.explanation
    for which, flex in (("whole", True), ("alone", False)):
        text = explained(figures.FIGURES["sparsity"].data(given[which]))
        assert ("FlexAttention" in text) == flex and "mask blocks of 128 x 128.\nNVIDIA" in text
    found = figures.FIGURES["sparsity"].data(given["whole"])
    assert "Step 05, forward pass, fp16.\nNVIDIA H200" in explained(found | {"blocks": []})


def test_error_of_every_row_is_shown(given: dict) -> None:
    for panel in figures.FIGURES["error"].data(given["whole"])["panels"]:
        rows = rows_of(sweep_rows(), dtype=panel["dtype"])
        assert sum(map(len, panel["worst"].values())) == len(rows)
        for step, pairs in panel["worst"].items():
            assert sorted(pairs) == sorted([row["max_error"], row["allowed_error"]] for row
                                           in rows_of(rows, step=f"step{step}"))
        assert [trail["names"] for trail in panel["trails"]] == [["01", "02"], ["03", "04", "05"]]


# --- What is said ---------------------------------------------------------------------------------

def test_what_is_missing_is_said(tmp_path: Path) -> None:
    """One dtype, no peers, no block masks, no shape of the README's table."""
    base = [row for row in sweep_rows() if row["mask"] == "full" and row["dtype"] == "fp16"]
    write_rows(tmp_path / "results/h200/sweep_a.jsonl",
               [row for row in base if row["seqlen"] < 4096])
    done = draw(tmp_path / "results", tmp_path / "out")
    assert (done.returncode, done.stderr) == (0, "")
    for line in ("figures: waterfall left out, as its rows are missing: make sweep",
                 "figures: sparsity left out, as its rows are missing: make sweep",
                 "figures: no peers are shown, as their rows are missing: make compare"):
        assert done.stdout.splitlines().count(line) == 1
    assert {path.stem for path in (tmp_path / "out").iterdir()} == {
        f"{name}_{theme}" for name in ("tflops", "roofline", "error")
        for theme in ("light", "dark")}


def test_peers_alone_are_no_sweep(tmp_path: Path) -> None:
    write_rows(tmp_path / "results/h200/compare_a.jsonl", compare_rows())
    done = draw(tmp_path / "results", tmp_path / "out")
    assert done.returncode == 1 and done.stdout.count("make sweep") == len(NAMES)
    assert not (tmp_path / "out").exists()


def test_steps_in_a_row_are_told_in_short() -> None:
    order = [f"{number:02}" for number in range(1, 13)]
    short = figures.figure_error.in_short
    assert short(["03", "04", "05"], order) == "03–05" and short(["01", "02"], order) == "01, 02"
    assert short(["01", "04", "05", "06", "07", "12"], order) == "01, 04–07, 12"


def test_one_step_alone_is_drawn(tmp_path: Path) -> None:
    rows = rows_of(sweep_rows(), step="step04", seqlen=4096, head_dim=128)
    write_rows(tmp_path / "results/h200/sweep_a.jsonl", rows)
    done = draw(tmp_path / "results", tmp_path / "out")
    assert done.returncode == 0 and done.stdout.count("wrote ") == 4


def test_only_one_figure(tmp_path: Path) -> None:
    done = draw("--only", "error", write_results(tmp_path / "results"), tmp_path / "out")
    assert done.returncode == 0 and len(list((tmp_path / "out").iterdir())) == 4


def test_a_file_in_the_place_of_the_directory_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    done = draw("--only", "error", write_results(tmp_path / "results"), tmp_path / "out")
    assert (done.returncode, "wrote" in done.stdout) == (2, False)
    assert done.stderr == f"figures: {tmp_path}/out: File exists\n"


@pytest.mark.parametrize("line, said", [("{", "line 2: no JSON"), ("{}", "line 2: must have")])
def test_broken_rows_are_said_in_one_line(tmp_path: Path, line: str, said: str) -> None:
    path = write_rows(tmp_path / "results/h200/sweep_a.jsonl", sweep_rows()[:1])
    path.write_text(f"{path.read_text()}{line}\n")
    done = draw(tmp_path / "results", tmp_path / "out")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"figures: {path}, {said}")
    assert not (tmp_path / "out").exists()


def test_blocks_without_the_full_mask_are_not_drawn(tmp_path: Path) -> None:
    """Their time would be a share of nothing."""
    rows = [row for row in sweep_rows() if row["step"] == "step05" and row["mask"] != "full"]
    write_rows(tmp_path / "results/h200/sweep_a.jsonl", rows)
    done = draw("--only", "sparsity", tmp_path / "results", tmp_path / "out")
    assert done.returncode == 1 and "figures: sparsity left out" in done.stdout


@pytest.mark.parametrize("program", ["figures", "ladder"])
def test_missing_matplotlib_is_said_in_one_line(tmp_path: Path, program: str) -> None:
    stand_in = tmp_path / "matplotlib"
    stand_in.mkdir()
    (stand_in / "__init__.py").write_text("raise ModuleNotFoundError(name='matplotlib')\n")
    done = subprocess.run([sys.executable, REPOSITORY / "plots" / f"{program}.py", "a", "b", "c"],
                          env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True,
                          text=True, timeout=60, check=False)
    assert done.returncode != 0 and done.stdout == ""
    assert done.stderr.endswith(": Python needs matplotlib. Install it: make deps\n")
    assert done.stderr.count("\n") == 1


def test_make_plots(tmp_path: Path) -> None:
    """Without results, of an unknown GPU, and into a directory that is given."""
    tree, python = SourceTree(tmp_path), f"PYTHON={sys.executable}"
    done = tree.make("plots", python)
    assert done.returncode != 0 and done.stdout == ""
    said = done.stderr.splitlines()[0]
    assert said.startswith("figures: no results in plots/results: make sweep and make compare")
    write_rows(tree.root / "plots/results/h200/sweep_a.jsonl",
               [step_row("step04", read_base) for read_base in headline_bases()])
    assert "GPU=a100: no results" in tree.make("plots", python, "GPU=a100").stderr
    done = tree.make("plots", python, "GPU=h200", "PLOTS=elsewhere/plots")
    assert done.returncode == 0, done.stderr
    assert (tree.root / "elsewhere/plots/waterfall_dark.png").exists()
    assert not (tree.root / "build").exists()


def headline_bases() -> list[dict]:
    """The problems of the README's table."""
    fields = ("commit date backend device cuda_runtime batch heads kv_heads seqlen seqlen_kv "
              "head_dim dtype mask layout scale input flops").split()
    rows = rows_of(sweep_rows(), step="step04", seqlen=4096, head_dim=128, dtype="fp16")
    return [{name: row[name] for name in fields} for row in rows]


def test_make_readme_in_a_copy(tmp_path: Path) -> None:
    """It writes the table and the pictures from the rows of the README's GPU."""
    tree = SourceTree(tmp_path)
    shutil.copy(REPOSITORY / "README.md", tree.root)
    write_results(tree.root / "plots/results")
    done = tree.make("readme", f"PYTHON={sys.executable}")
    assert done.returncode == 0, done.stderr
    assert "commit 0123456789ab" in (tree.root / "README.md").read_text()
    assert sorted(path.name for path in (tree.root / "docs/pictures").iterdir()) == sorted(
        f"{name}_{theme}.svg" for name in NAMES for theme in ("light", "dark"))
    row = rows_of(read_rows(next((tree.root / "plots/results/h200").glob("sweep_*"))),
                  step="step03", seqlen=4096, head_dim=128, dtype="fp16", mask="full")[0]
    assert f"| {row['tflops']:.1f} |" in (tree.root / "README.md").read_text()
