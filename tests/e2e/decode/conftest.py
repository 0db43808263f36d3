"""The steps that the tests of this folder are about."""

import shutil

import pytest

from tests.lib.programs import Program
from tests.lib.source_tree import SourceTree
from tests.lib.steps import REPOSITORY, source_of, step_names

DECODE_STEPS = step_names("decode")


def taking(what: str) -> list[str]:
    """The steps whose descriptor names this form of the cache."""
    return [name for name in DECODE_STEPS if what in source_of(name).path.read_text(encoding="utf-8")]


@pytest.fixture(scope="session", params=DECODE_STEPS)
def step(request: pytest.FixtureRequest) -> Program:
    """Each decode step."""
    return Program(request.param)


@pytest.fixture(scope="session")
def one() -> Program:
    """One of them, for what all share."""
    return Program(DECODE_STEPS[0])


@pytest.fixture(scope="session", params=taking("CACHE_PAGES"))
def paged_step(request: pytest.FixtureRequest) -> Program:
    """Each that takes pages."""
    return Program(request.param)


@pytest.fixture(scope="session", params=taking("CACHE_E4M3"))
def e4m3_step(request: pytest.FixtureRequest) -> Program:
    """Each that takes a cache in e4m3."""
    return Program(request.param)


@pytest.fixture(scope="session")
def faulty_decode(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """The program built from faulty_decode.cu, which takes any cache; all other sources are unchanged."""
    tree = SourceTree(tmp_path_factory.mktemp("faulty"), built="cpu")
    shutil.copy2(REPOSITORY / "tests/lib/faulty_decode.cu", tree.root / "steps/step98_faulty.cu")
    tree.made("step98", "BACKEND=cpu")
    return Program("step98", tree.root)
