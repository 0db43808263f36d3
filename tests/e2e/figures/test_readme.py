"""The README's results table and the pictures of the docs equal the records."""

import json
import re
import runpy
import shutil
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from plots.figures import pages, readme, waterfall
from plots.figures.decode import DecodeResults
from plots.figures.all import DECODE, FIGURES, data_of_figures
from plots.figures.records import Results, load
from plots.sections import with_lines, with_section
from tests.lib.kinds import MMA_STEPS, NAIVE
from tests.lib.programs import REPOSITORY, STEP_DIR, Program, read_records
from tests.lib.steps import every_step, step_names

README = REPOSITORY / "README.md"
H200 = REPOSITORY / "plots" / "results" / "h200"
PICTURES = REPOSITORY / "docs" / "pictures"
WRITTEN = ("CITATION.cff", "README.md", "docs/index.md", "docs/classroom.ipynb")
FIGURES_PAGE = "docs/figures.md"
MEASURED = [name for name in MMA_STEPS if any(record.get("step") == name for record in load(H200).records)]


def data_of(picture: Path) -> str | None:
    """The data in its description. Its bytes depend on the version of Matplotlib."""
    return ElementTree.parse(picture).getroot().findtext(".//{http://purl.org/dc/elements/1.1/}description")


def test_readme_and_pictures_equal_the_records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Written again, they are the same."""
    pictures = tmp_path / "docs" / "pictures"
    pictures.mkdir(parents=True)
    for name in (*WRITTEN, FIGURES_PAGE):
        shutil.copy(REPOSITORY / name, tmp_path / name)
    monkeypatch.setattr(sys, "argv", ["readme", str(tmp_path), str(H200)])
    assert readme.main() == 0
    for name in (*WRITTEN, FIGURES_PAGE):
        assert (tmp_path / name).read_text() == (REPOSITORY / name).read_text(), f"{name} is out of date: make readme"
    drawn = [name for name, found in data_of_figures(H200).items() if found is not None]
    assert set(drawn) >= set(FIGURES) - set(DECODE) and len(list(pictures.iterdir())) == 2 * len(drawn)
    for picture in pictures.iterdir():
        data = data_of(picture)
        assert data and data == data_of(PICTURES / picture.name), "out of date: make readme"


def test_figures_of_decode_steps_are_on_their_page_once_measured(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    page = tmp_path / FIGURES_PAGE
    shutil.copy(REPOSITORY / FIGURES_PAGE, page)
    for measured in ({}, dict.fromkeys(DECODE, {"some": "data"}), {}):
        readme.write_figures(tmp_path, measured)
        for name in DECODE:
            assert (f'<img src="pictures/{name}_light.svg"' in page.read_text()) == bool(measured)
        assert page.read_text().count("Not measured on a GPU yet") == (0 if measured else len(DECODE))


@pytest.mark.parametrize("address", ["", "https://github.com/example/attention"])
def test_all_public_addresses_follow_from_one(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it there is no badge, and no link that leads nowhere."""
    monkeypatch.syspath_prepend(REPOSITORY / "steps/exercises")  # of the catalogue, for docs/conf.py
    (tmp_path / "docs").mkdir()
    for name in (*WRITTEN, "docs/conf.py", "docs/steps.md"):
        shutil.copy(REPOSITORY / name, tmp_path / name)
    citation = re.sub("^repository-code.*", "", (REPOSITORY / WRITTEN[0]).read_text(), flags=re.MULTILINE)
    (tmp_path / WRITTEN[0]).write_text(citation + f"repository-code: {address}\n" * bool(address))
    results = load(H200)
    found, decode = FIGURES[waterfall.NAME].data(results), DecodeResults(H200.parent / "decode")
    readme.write_pages(tmp_path, results, found, load(H200.parent / "backward"), decode)
    for name in WRITTEN[1:]:
        text = (tmp_path / name).read_text()
        assert re.findall(r"https://github\.com/\w+/\w+", text)[:1] == ([address] if address else []), name
        assert ("https://colab" in text) == (bool(address) and name.endswith(".md"))
    site = runpy.run_path(str(tmp_path / "docs/conf.py"))
    assert site["html_baseurl"] == ("https://example.github.io/attention/" if address else "")
    context = {"title": ""}
    site["describe"](None, "steps", "page.html", context, None)
    assert context.get("theme_source_edit_link", "") == (f"{address}/edit/main/docs/steps.md" if address else "")


def test_the_table_has_the_measured_numbers() -> None:
    path = max(H200.glob("bench_*.jsonl"), key=lambda path: read_records(path)[0]["date"])
    lines = README.read_text().splitlines()
    for record in read_records(path):
        if (
            "step" in record
            and "median_ms" in record
            and [record[name] for name in ("seqlen", "head_dim", "dtype", "mask")] == [4096, 128, "fp16", "full"]
        ):
            (line,) = [line for line in lines if line.startswith(f"| [{record['step'].removeprefix('step')}](")]
            for number in (
                f"{record['tflops']:.1f}",
                f"{record['speed_over_fa2']:#.3g}",
                f"{record['speed_over_cudnn']:#.3g}",
            ):
                assert f"| {number} |" in line


def test_the_claim_on_decode_is_of_one_step(tmp_path: Path) -> None:
    assert readme.decode_claim(DecodeResults(tmp_path)) == ""
    slower, faster = step_names("decode")[-2:]
    ratios = {slower: (0.9, 1.4), faster: (1.01, 1.3)}
    records = [
        {"step": step, "speed_over_cudnn": ratio, "speed_over_fa2": 2 * ratio, "cache_bytes": 2e6 * ratio}
        for step, own in ratios.items()
        for ratio in own
    ]
    more = {"device": "NVIDIA H200", "date": "2026-11-27"}
    (tmp_path / "bench_0.jsonl").write_text("".join(f"{json.dumps(more | record)}\n" for record in records))
    told = readme.decode_claim(DecodeResults(tmp_path))
    assert f"step {faster[4:]} is 1.01 to 1.30 times as fast as cuDNN and 2.02 to 2.60 times" in told
    assert "in 2 cases with 2 to 3 MB" in told and told.endswith("NVIDIA H200).")


def test_tables_have_fa3_where_the_records_have_it() -> None:
    """One step has a speedup over FA3 without a mask only, the one before it has none."""
    results = Results(
        [
            {name: value for name, value in record.items() if "over_fa3" not in name}
            for record in load(H200).records
            if record.get("short") != "fa3"
        ]
    )
    more = {"speed_over_fa3": 0.6123, "speed_over_fa3_p10": 0.6, "speed_over_fa3_p90": 0.625}
    some = Results(
        [
            record | more if (record.get("step"), record["mask"]) == (MEASURED[-1], "full") else record
            for record in results.records
        ]
    )
    told = readme.table(some, Results([]))
    lines = {line.split("]")[0]: line for line in told.splitlines() if line.startswith("| [")}
    assert lines[f"| [{MEASURED[-1][4:]}"].endswith(" | 0.612 |")
    assert lines[f"| [{MEASURED[-2][4:]}"].endswith(" | – |")
    assert len({line.count("|") for line in told.splitlines() if line.startswith("|")}) == 1
    row = "| speedup over FlashAttention-3 | 0.612 | – | 0.612 | – | 0.612 | – |"
    earlier, before, step = MEASURED[-3:]
    assert row in pages.speed(some, step, before)
    for page in (pages.speed(some, before, earlier), pages.speed(results, step, before)):
        assert "FlashAttention-3 |" not in "\n".join(page)


def test_steps_without_records_have_no_numbers() -> None:
    left = Results([record for record in load(H200).records if record.get("step") != NAIVE])
    (row,) = [
        row
        for row in readme.table(left, Results([])).splitlines()
        if row.startswith(f"| [{NAIVE[4:]}](docs/{NAIVE}.md) [")
    ]
    assert row.endswith(" | – | – | – | – |")


def test_pages_have_the_measured_numbers() -> None:
    results = load(H200)
    for name, section in (
        ("roofline", pages.example(results)),
        ("roofline", pages.exponentials(results)),
        ("measuring", pages.clocks(results)),
        ("mutants", pages.scores(pages.MUTANTS)),
        ("exercises", pages.exercises("course")),
        ("wrong-answers", pages.exercises("wrong")),
    ):
        page = (REPOSITORY / f"docs/{name}.md").read_text()
        assert section in page, f"docs/{name}.md is out of date: make pages"


def test_pages_of_chapter_0_have_the_measured_times() -> None:
    for page in (REPOSITORY / "docs").glob("f[0-9]*.md"):
        assert page.read_text() == pages.with_times(page, pages.foundation_records()), (
            f"{page} is out of date: make pages"
        )
    record = {
        "program": "f05",
        "stage": "tree",
        "commit": "c0ffee",
        "device": "NVIDIA H200",
        "n": 1000,
        "samples": 20,
        "ms": 0.5,
        "bytes": 1e9,
        "flops": 0,
        "copy_gb_per_s": 4000,
        "mma_tflops": 600,
        "library": "CUB",
        "library_ms": 0.4,
    }
    told = pages.times("f05", [record, {**record, "program": "f04"}, {"program": "f05", "n": 1000}])
    assert told.endswith("| `tree` | 0.5 | 2000 GB/s | 0.50 of a copy | 0.80 |") and told.count("tree") == 1
    assert pages.times("f05", []) == ""


def test_the_share_of_attention_is_that_of_its_pass() -> None:
    def run(n: int, step: str, ms: float) -> list[dict]:
        common = {"program": "f12", "n": n, "device": "NVIDIA H200", "samples": 20, "commit": "c0ffee"}
        names = {"forward": {"in": 1.0, step: ms}, "backward": {"out": 3.0, "step95": 9.0}}
        return [
            {**common, "stage": stage, "pass": name, "ms": took}
            for name in names
            for stage, took in names[name].items()
        ]

    records = [
        *run(2048, "step94", 3.0),
        *run(512, "step94", 1.0),
        *run(512, "step93", 7.0),
        {"program": "f05", "n": 1},
    ]
    told = [line for line in pages.shares("f12", records).splitlines() if line.startswith("| ")]
    assert told == [
        "| N | `in` | `step94` | share of `step94` | `out` | `step95` | share of `step95` |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| 512 | 1 | 1 | **50 %** | 3 | 9 | **75 %** |",
        "| 2,048 | 1 | 3 | **75 %** | 3 | 9 | **75 %** |",
        "| N | `in` | `step93` | share of `step93` | `out` | `step95` | share of `step95` |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| 512 | 1 | 7 | **88 %** | 3 | 9 | **75 %** |",
    ]


def test_links_to_regions_have_their_lines() -> None:
    for page in (REPOSITORY / "docs").rglob("*.md"):
        assert page.read_text() == with_lines(page), f"{page} is out of date: make pages"


def test_a_missing_marker_is_named() -> None:
    with pytest.raises(SystemExit, match="must hold once each: .* and <!-- /results -->"):
        with_section("<!-- results: written by hand -->\n", "results", "hand", "")


@pytest.mark.cpu_only("the defaults of a GPU build are larger")
def test_the_page_of_options_is_what_the_programs_print() -> None:
    page = (REPOSITORY / "docs/options.md").read_text()
    assert pages.options(STEP_DIR) in page, "docs/options.md is out of date: make pages"
    assert pages.taken(STEP_DIR) in (REPOSITORY / "docs/specification.md").read_text(), "make pages"
    for step in every_step():
        for line in Program(step).run("--help").stdout.splitlines()[1:]:
            assert f"{line}\n" in page, step
