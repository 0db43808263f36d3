"""The score of mutants. `make mutants` itself is called in make/test_new_step.py."""

import sys

import pytest

from tests.mutants.judge import ANSWER, FINDING, SURVIVED, Verdict
from tests.mutants.score import possible, record_of, report


@pytest.mark.parametrize(
    "found, sample, population, fewest, most",
    [
        (0, 50, 50, 0, 0),
        (7, 50, 50, 7, 7),  # nothing is left to chance
        (0, 50, 10**4, 0, 709),
        (5, 50, 10**4, 334, 2178),
    ],
)  # of endless ones 7.11 %, 3.33 to 21.81 %
def test_interval_of_a_sample(found: int, sample: int, population: int, fewest: int, most: int) -> None:
    assert possible(found, sample, population) == (fewest, most)


def test_score(capsys: pytest.CaptureFixture) -> None:
    """Mutants that do not compile or are equivalent do not count."""
    verdicts = {f"mutant {i}": Verdict(FINDING if i % 2 else ANSWER) for i in range(48)}
    verdicts |= {"alike": Verdict(SURVIVED), "broken": Verdict("not compiling")}
    record = record_of("step98", verdicts, {"alike": {"verdict": "equivalent"}}, 50)
    assert record["least_percent"] == record["percent"] == 100 and report([record], sys.stdout) == 0
    assert ": alike" not in capsys.readouterr().out
    record = record_of("step98", verdicts, {"alike": {"verdict": "missed"}}, 50)
    assert record["percent"] == record["most_percent"] == 97.96 and report([record], sys.stdout) == 1
    assert "missed: alike\n" in capsys.readouterr().out
    record = record_of("step98", verdicts, {"alike": {"verdict": "missed"}}, 500)  # a tenth was tried
    assert record["least_percent"] < 90 and record["percent"] == 97.96 < record["most_percent"]
    record = record_of("step98", verdicts, {}, 50)
    assert record["percent"] is None and report([record], sys.stdout) == 1
    assert "survived: alike\n" in capsys.readouterr().out
