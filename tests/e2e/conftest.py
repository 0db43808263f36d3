"""Fixtures and marks of the end-to-end tests.

`make test-e2e` sets BACKEND (cpu or cuda) and STEP_DIR (the directory of the built programs).
"""

import re
import shutil
from pathlib import Path

import pytest

from tests.lib.kinds import EACH_KIND, MASK_STEPS
from tests.lib.programs import BACKEND, DECODE_SEED, GRADIENT_SEED, MASK_SEED, PAIRWISE_SEED, REPOSITORY, Program
from tests.lib.source_tree import SourceTree
from tests.lib.steps import step_names


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "cpu_only(why): needs the CPU backend")
    config.addinivalue_line("markers", "gpu_only(why): needs a GPU")
    if BACKEND == "cuda" and not hasattr(config, "workerinput"):  # once, not in xdist's workers
        Program(step_names()[0]).run("--ceilings")  # timed runs compare with the saved ceilings


def pytest_report_header() -> str:
    return (
        f"backend {BACKEND}, combinations drawn with PAIRWISE_SEED={PAIRWISE_SEED}, "
        f"masks with MASK_SEED={MASK_SEED}, gradients with GRADIENT_SEED={GRADIENT_SEED}, "
        f"decode problems with DECODE_SEED={DECODE_SEED}"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for mark, backend in (("cpu_only", "cpu"), ("gpu_only", "cuda")):
            marked = item.get_closest_marker(mark)
            if marked and BACKEND != backend:
                reason = f"BACKEND={BACKEND}: {marked.args[0]}"
                item.add_marker(pytest.mark.skip(reason=reason))
    # Many short tests that share nothing come last, so that workers end together.
    items.sort(key=lambda item: "/exercises/" in item.nodeid and "[" in item.nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Tests of a file, or of a step in it, share what fixtures build and solve, so they go to the same worker."""
    from xdist.scheduler import LoadScopeScheduling

    class LoadFileAndStep(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file, _, test = nodeid.partition("::")
            step = re.search(r"\[.*?(step\d\d[a-z]?)\b", test)
            return nodeid if "/exercises/" in file else f"{file} {step[1] if step else ''}"

    config.option.loadscopereorder = False  # keeps the order, in which single tests need not be short
    return LoadFileAndStep(config, log)


@pytest.fixture(scope="session", params=step_names())
def step(request: pytest.FixtureRequest) -> Program:
    """Each step."""
    return Program(request.param)


@pytest.fixture(scope="session", params=MASK_STEPS)
def mask_step(request: pytest.FixtureRequest) -> Program:
    """Each step that takes block masks."""
    return Program(request.param)


@pytest.fixture(scope="session", params=EACH_KIND)
def kind_step(request: pytest.FixtureRequest) -> Program:
    """A step of each kind."""
    return Program(request.param)


@pytest.fixture(scope="session")
def any_step() -> Program:
    """One step, to test what all steps share: main and everything it calls."""
    return Program(step_names()[0])


@pytest.fixture(scope="session")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program built from faulty_step.cu; all other sources are unchanged."""
    tree = SourceTree(tmp_path_factory.mktemp("faulty"), built="cpu")
    shutil.copy2(REPOSITORY / "tests/lib/faulty_step.cu", tree.root / "steps/step99_faulty.cu")
    tree.made("step99", "BACKEND=cpu")
    return tree.root / "step99"
