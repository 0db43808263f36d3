"""The code of `make mutants` on a few mutants: all of them would take too long."""

import re
import sys
from pathlib import Path

import pytest

from tests.lib.programs import REPOSITORY, RIGHT
from tests.lib.source_tree import SourceTree
from tests.lib.steps import step_names


from tests.mutants.enumerate_mutants import Mutant, assigned_mutants
from tests.mutants.equivalents import read_equivalents
from tests.mutants.judge import ANSWER, FINDING, SURVIVED, Verdict
from tests.mutants.table import report, record_of, score

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


def test_equivalents_are_mutants_and_have_reasons(assigned: dict) -> None:
    names = {mutant.name for mutants in assigned.values() for mutant in mutants}
    reasons = read_equivalents()
    assert reasons and not set(reasons) - names
    assert all(len(reason) > 20 for reason in reasons.values())


def test_score(capsys: pytest.CaptureFixture) -> None:
    """Mutants that do not compile or are equivalent do not count; listed ones must survive."""
    verdicts = {f"mutant {i}": Verdict(FINDING if i % 2 else ANSWER) for i in range(48)}
    verdicts |= {"equal": Verdict(SURVIVED), "broken": Verdict("not compiling")}
    record = record_of("step01", verdicts, {"equal": "why"})
    assert score(record) == 100.0 and report([record], sys.stdout) == 0
    assert "survived" not in capsys.readouterr().out
    record = record_of("step01", verdicts, {})
    assert 97.9 < score(record) < 98 and report([record], sys.stdout) == 1
    assert "survived: equal\n" in capsys.readouterr().out
    record = record_of("step01", verdicts, {"equal": "why", "mutant 3": "wrong"})
    assert report([record], sys.stdout) == 1
    assert "listed as equivalent, but caught: mutant 3\n" in capsys.readouterr().out


@pytest.mark.cpu_only("mutants are examined by the lab")
def test_three_mutants_are_caught(tmp_path: Path) -> None:
    tree = SourceTree(tmp_path, built="cpu")
    only = (r"barrier removed \| __syncthreads \( \) ; \| 1|wait weakened \| 0 \| 1|"
            r"attention_kernel \| index \+ 1 \| first_q \+ warp_row \| 1")
    done = tree.make("mutants", "BACKEND=cpu", "STEP=03", f"ONLY={only}")
    assert done.returncode == RIGHT, done.stdout + done.stderr
    (counts,) = [line.split() for line in done.stdout.splitlines() if re.match("step03  +3 ", line)]
    assert counts[1:3] == ["3", "0"] and counts[6:] == ["0", "0", "100.00", "%"]
    again = tree.make("mutants", "BACKEND=cpu", "STEP=03", f"ONLY={only}")
    assert again.returncode == RIGHT and " of " not in again.stdout  # all verdicts are known
