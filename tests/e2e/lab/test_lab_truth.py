"""The lab's counts agree with those of Nsight Compute on a GPU: the stored table, for steps at
small shapes and for cp.async alone."""

import pytest

from tests.lib.kinds import NAIVE
from tests.lib.programs import STEP_DIR, read_records
from tests.lib.steps import step_names

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


# Whole tiles and a full mask show nothing that the other two do not; nor does D = 128 in the naive step, for
# which the CPU backend takes long.
@pytest.mark.parametrize("name, options", [
    pytest.param(name, options, marks=[pytest.mark.exhaustive] * (
        options == SMALL[0] or (name, options) == (NAIVE, SMALL[1])))
    for name in step_names() for options in SMALL])
def test_counts_are_those_of_a_gpu(name: str, options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_counts([record for record in read_records(compare_counts.TABLE)
                  if record["step"] == name and record["options"] == options], monkeypatch)


def test_counts_of_copies_alone_are_those_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = [record for record in read_records(compare_counts.TABLE) if record["step"] == "copies"]
    assert stored
    check_counts(stored, monkeypatch)


def test_sectors_where_rows_begin_in_the_middle_of_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """An H200 counted 19,676 in steps 03 and 04."""
    monkeypatch.setattr(compare_counts, "PROGRAMS", STEP_DIR / "counts")
    for name in ("step03", "step04"):
        lab = compare_counts.expected_counts(name, "-b 2 -H 2 -G 1 -n 95 -k 301 -d 96")[
            "attention_kernel"]
        assert lab["l1_load_sectors"] == 19676


MORE = {"a way of each conflict": ("shared_load_requests", ("shared_load_wavefronts", "shared_conflicts")),
        "a sector of each load": ("global_load_requests", ("global_load_sectors", "l1_load_sectors")),
        "a sector of each store": ("global_store_requests", ("global_store_sectors",)),
        "a sector of each copy": ("copies", ("copy_sectors",))}


@pytest.mark.parametrize("options", SMALL[::2])
def test_a_wrong_count_is_noticed(options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every kernel: equal counts are off by one, and where nvcc's may differ, too, requests have a
    way or a sector more than the lab says."""
    monkeypatch.setattr(compare_counts, "PROGRAMS", STEP_DIR / "counts")
    for kernel in compare_counts.grouped([record for record in read_records(compare_counts.TABLE)
                                          if record["options"] == options]):
        line = next(iter(kernel.values()))
        lab = compare_counts.expected_counts(line["step"], options)[line["kernel"]]

        def wrong_with(more: dict[str, int]) -> set[str]:
            counted = {count: record | {"ncu": record["ncu"] + more.get(count, 0)}
                       for count, record in kernel.items()}
            return {line["count"] for line in compare_counts.compare(counted) if not line["agrees"]}

        for count, record in kernel.items():
            if record["least"] == record["lab"] == record["most"]:
                assert count in wrong_with({count: 1})
        for requests, counts in MORE.values():
            many = kernel[requests]["ncu"] if requests in kernel else 0
            if requests == "global_load_requests":
                many -= lab["copy_requests"]
            if many > 0:
                assert wrong_with(dict.fromkeys(counts, many)) & set(counts), (requests, kernel)
