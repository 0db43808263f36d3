"""The package calls what was built for the tests, and builds nothing of its own but files of its users."""

import pytest

from tests.lib.programs import BACKEND, STEP_DIR


@pytest.fixture(autouse=True, scope="session")
def _built() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTENTION_STEPS_BUILD", str(STEP_DIR))
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if BACKEND != "cpu" and "/e2e/python/" in item.nodeid:
            item.add_marker(pytest.mark.skip(reason="the package runs and examines steps on the CPU backend"))
