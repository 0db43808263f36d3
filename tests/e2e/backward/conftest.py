"""The steps that the tests of this folder are about."""

import pytest

from tests.lib.programs import Program
from tests.lib.steps import step_names


@pytest.fixture(scope="session", params=step_names("backward"))
def step(request: pytest.FixtureRequest) -> Program:
    """Each backward step."""
    return Program(request.param)


@pytest.fixture(scope="session")
def one() -> Program:
    """One of them, for what all share."""
    return Program(step_names("backward")[0])
