"""Every variant of a step has a patch that fits, and computes what the step does."""

import sys
from pathlib import Path

import pytest

from plots.bench.variants import PATCHES, read_variants, step_of
from tests.lib.programs import REPOSITORY, Program
from tests.lib.source_tree import SourceTree
from tests.lib.steps import source_of

sys.path.insert(0, str(REPOSITORY / "steps/exercises"))
from patches import patched, step_source  # noqa: E402

NAMES = list(read_variants())
FIRST = {source_of(step_of(name)).kind: name for name in reversed(NAMES)}.values()  # of each kind


@pytest.mark.parametrize("name", NAMES)
def test_the_patch_fits_and_names_its_row(name: str) -> None:
    source = step_source(step_of(name))
    assert patched(source, PATCHES / f"{name}.patch") != source
    assert read_variants()[name].keys() <= {"Row", "Page", "Head dimensions"}


@pytest.mark.cpu_only("compiled for the CPU backend")
@pytest.mark.parametrize(
    "name", [name if name in FIRST else pytest.param(name, marks=pytest.mark.exhaustive) for name in NAMES]
)
def test_the_variant_is_right(name: str, tmp_path: Path) -> None:
    tree = SourceTree(tmp_path, built="cpu")
    tree.made("BACKEND=cpu", f"PYTHON={sys.executable}", f"build/cpu/variants/{name}")
    for head_dim in (64, 256):
        Program(name, tree.root / "build/cpu/variants").run_right(
            "-n", 133, "-k", 150, "-d", head_dim, "-m", "causal", "--report=races,bounds,init"
        )
