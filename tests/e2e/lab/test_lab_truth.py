"""The lab counts what Nsight Compute counted on a GPU: the stored table, of steps at its small
shapes and of cp.async alone."""


import pytest

from tests.lib.programs import STEP_DIR, Program, read_rows

from tests.gpu import compare_counts

pytestmark = pytest.mark.cpu_only("the lab is part of the CPU backend")

SMALL = ["-b 1 -H 2 -n 256 -d 64", "-b 2 -H 2 -n 200 -d 128", "-b 1 -H 2 -n 450 -d 64 -m causal"]


def check_counts(stored: list[dict], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare_counts, "PROGRAMS", STEP_DIR / "counts")
    if not stored:
        pytest.skip(f"{compare_counts.TABLE.name} lacks them: run tests/gpu/counts.sh on a GPU, "
                    "then tests/gpu/compare_counts.py")
    table = [line for counted in compare_counts.grouped(stored)
             for line in compare_counts.compare(counted)]
    assert len(table) == len(stored)
    assert [line for line in table if not line["agrees"]] == []


@pytest.mark.parametrize("options", SMALL)
def test_counts_are_those_of_a_gpu(step: Program, options: str,
                                   monkeypatch: pytest.MonkeyPatch) -> None:
    check_counts([row for row in read_rows(compare_counts.TABLE)
                  if row["step"] == step.name and row["options"] == options], monkeypatch)


def test_counts_of_copies_alone_are_those_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = [row for row in read_rows(compare_counts.TABLE) if row["step"] == "copies"]
    assert stored
    check_counts(stored, monkeypatch)


def test_a_wrong_count_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every exact count of one kernel is one too high, every other is beyond its room."""
    monkeypatch.setattr(compare_counts, "PROGRAMS", STEP_DIR / "counts")
    stored = [row for row in read_rows(compare_counts.TABLE) if row["options"] == SMALL[0]]
    for name in (row["count"] for row in stored if row["kernel"] == stored[0]["kernel"]):
        if name in compare_counts.GPU_ALONE:
            continue  # known from the GPU alone
        counted = {row["count"]: dict(row) for row in stored
                   if row["kernel"] == stored[0]["kernel"]}
        counted[name]["ncu"] += 1 + 2 * counted[name]["allowed"]
        wrong = [line["count"] for line in compare_counts.compare(counted) if not line["agrees"]]
        assert name in wrong
