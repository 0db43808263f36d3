"""What step_under_test.c tries."""

import pytest

PROBLEMS = 8  # 2 lengths x 2 head dimensions x 2 types, with two masks

# Trials with half of the problems. In `make test`, a step tries each problem in one of the two ways.
HALVES = [
    ("padded 0", PROBLEMS // 2),
    ("poisoned 1", PROBLEMS // 2),
    pytest.param("padded 1", PROBLEMS // 2, marks=pytest.mark.exhaustive),
    pytest.param("poisoned 0", PROBLEMS // 2, marks=pytest.mark.exhaustive),
]
