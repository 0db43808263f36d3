"""The pictures of the steps' pages: the committed files are what the generator writes, and
what they say is what the programs do. tests/docs looks at them in a browser."""

import sys
from pathlib import Path

import pytest

from plots.figures import pictures_order, recorded
from plots.figures.pictures import writers
from plots.figures.pictures_loops import PROBLEM, shape_of
from tests.lib.programs import REPOSITORY, STEP_DIR, Program, read_records
from tests.lib.source_tree import SourceTree
from tests.lib.steps import drawn_in, having

PICTURES = REPOSITORY / "docs" / "pictures"
NAMES = sorted(path.stem for path in PICTURES.glob("*.svg") if not path.stem.endswith(("_light", "_dark")))
GROUPS = [name for name in writers(Path(), Path()) if name != "errors"]
cpu_only = pytest.mark.cpu_only("the pictures show the programs of the CPU backend")


def compare(directory: Path) -> list[str]:
    """The names of the pictures in the directory; they must equal the committed ones."""
    written = sorted(directory.glob("*.svg"))
    outdated = [
        path.name
        for path in written
        if not (PICTURES / path.name).exists() or (PICTURES / path.name).read_bytes() != path.read_bytes()
    ]
    assert outdated == [], "docs/pictures is out of date: make pictures"
    return [path.stem for path in written]


@cpu_only
def test_committed_pictures_are_up_to_date(tmp_path: Path) -> None:
    for group in GROUPS:
        writers(STEP_DIR, Path())[group](tmp_path)
    assert compare(tmp_path) == [name for name in NAMES if not name.startswith("error_")]


@cpu_only
def test_committed_maps_of_errors_are_up_to_date(tmp_path: Path) -> None:
    tree = SourceTree(tmp_path, built="cpu")
    step = drawn_in("errors")
    tree.compile_only(step, 64)
    tree.made(f"build/pictures/{step}_broken", "BACKEND=cpu", f"PYTHON={sys.executable}")
    writers(STEP_DIR, tree.root / "build" / "pictures" / f"{step}_broken")["errors"](tmp_path)
    assert compare(tmp_path) == ["error_broken", "error_right"]


@cpu_only
@pytest.mark.parametrize("step", having("pipeline"))
def test_overlap_is_what_the_backend_counts(step: str, tmp_path: Path) -> None:
    """With as many keys as the chart has tiles, the same share of the mma has a copy in flight."""
    program = Program(step)
    chart = pictures_order.chart_of(step, program.path)
    keys = pictures_order.TILES * shape_of(program.path).block_n
    program.run_right(*PROBLEM, "--seqlen-kv", keys, "--json", tmp_path / "record.json")
    (record,) = read_records(tmp_path / "record.json")
    assert chart.in_flight() / (2 * pictures_order.TILES) == pytest.approx(
        record["count_mma_under_copy"] / record["count_mma"]
    )
    barriers = sum(mark == "b" for _, mark in chart.marks)
    assert barriers * record["kernel1_blocks"] == record["count_barriers"]


@cpu_only
@pytest.mark.parametrize("step", having("roles"))
def test_recorded_events_are_what_the_backend_counts(step: str, tmp_path: Path) -> None:
    """For each tile of queries as many wgmma and tensor copies; all products have been executed."""
    machine = recorded.Machine(step, STEP_DIR / "events" / step)
    shape, problem = recorded.shape_and_problem(step, STEP_DIR / step)
    Program(step).run_right(*problem, "--json", tmp_path / "record.json")
    (record,) = read_records(tmp_path / "record.json")
    share = machine.kind.query_tiles * shape.block_m / int(problem[problem.index("-n") + 1])
    events = [event for thread in machine.threads.values() for event in thread]
    wgmma = sum(int(rest[-1]) for action, rest in events if action in ("qk", "pv"))
    assert wgmma / 32 == record["count_wgmma"] * share
    copies = sum(action in ("load", "store") for action, _ in events)
    assert copies == record["count_tensor_copies"] * share
    computing = sum(bool(role.products) for role in machine.roles)
    tiles = machine.kind.query_tiles * recorded.TILES
    assert len(machine.products()) == 2 * tiles * computing
