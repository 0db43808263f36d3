"""The code of `make mutants` on a few mutants: all of them would take too long."""

import re
import sys
from pathlib import Path

import pytest

from tests.lib.programs import REPOSITORY, RIGHT
from tests.lib.source_tree import SourceTree
from tests.lib.steps import step_names


from tests.mutants.enumerate_mutants import Mutant, assigned_mutants
from tests.mutants.judge import ANSWER, FINDING, SURVIVED, Verdict
from tests.mutants.score import possible, record_of, report

KERNEL = "steps/step03_mma_shared_kv.cu | attention_kernel"


@pytest.fixture(scope="module")
def assigned() -> dict[str, list[Mutant]]:
    return assigned_mutants(REPOSITORY)


def test_mutants_are_the_same_every_time(assigned: dict) -> None:
    assert list(assigned) == step_names()
    assert assigned_mutants(REPOSITORY) == assigned
    names = [mutant.name for mutants in assigned.values() for mutant in mutants]
    assert len(set(names)) == len(names)
    assert all(len(mutants) > 100 for mutants in assigned.values())


@pytest.mark.parametrize("operator, original, text", [
    ("barrier removed", "__syncthreads ( ) ;", ";"),
    ("wait weakened", "0", "(0) + 1"),
    ("wait removed", "cp_async_wait < 0 > ( ) ;", ";"),
    ("buffer swapped", "v_global", "k_global"),
    ("condition never holds", "problem . mask == MASK_CAUSAL", "false"),
    ("bound off by one", "first_key < key_end", "first_key <= key_end"),
    ("index + 1", "first_q + warp_row", "(first_q + warp_row) + 1"),
])
def test_operators_make_these_mutants(assigned: dict, operator: str, original: str,
                                      text: str) -> None:
    (mutant,) = [m for m in assigned["step03"]
                 if m.name == f"{KERNEL} | {operator} | {original} | 1"]
    assert mutant.text == text


@pytest.mark.parametrize("found, sample, population, fewest, most", [
    (0, 50, 50, 0, 0), (7, 50, 50, 7, 7),  # nothing is left to chance
    (0, 50, 10**4, 0, 709), (5, 50, 10**4, 334, 2178)])  # of endless ones 7.11 %, 3.33 to 21.81 %
def test_interval_of_a_sample(found: int, sample: int, population: int, fewest: int,
                              most: int) -> None:
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


@pytest.mark.cpu_only("mutants are examined by the lab")
def test_three_mutants_are_caught(tmp_path: Path) -> None:
    tree = SourceTree(tmp_path, built="cpu")
    only = (r"barrier removed \| __syncthreads \( \) ; \| 1|wait weakened \| 0 \| 1|"
            r"attention_kernel \| index \+ 1 \| first_q \+ warp_row \| 1")
    words = ("mutants", "BACKEND=cpu", "STEP=03", f"ONLY={only}", f"PYTHON={sys.executable}")
    done = tree.made(*words)
    (counts,) = [line.split() for line in done.stdout.splitlines() if re.match("step03  +3 ", line)]
    assert counts[1:3] == ["3", "0"] and counts[6:11] == ["0", "0", "0", "100.00", "%"]
    again = tree.make(*words)
    assert again.returncode == RIGHT and " of " not in again.stdout  # all verdicts are known
