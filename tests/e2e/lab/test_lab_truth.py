"""The lab's counts agree with those of Nsight Compute on a GPU: the stored table, for steps at
small shapes and for cp.async alone."""

import pytest

from tests.lib.kinds import NAIVE
from tests.lib.programs import STEP_DIR, read_records
from tests.lib.steps import inherited, source_of, step_names

from tests.gpu import compare_counts

pytestmark = pytest.mark.cpu_only("the lab is part of the CPU backend")

SMALL = ["-b 1 -H 2 -n 256 -d 64", "-b 2 -H 2 -n 200 -d 128", "-b 1 -H 2 -n 450 -d 64 -m causal"]
OF_BACKWARD = ["-b 1 -H 2 -n 256 -d 64", "-b 1 -H 4 -G 2 -n 333 -k 500 -d 128 -m causal", "-b 1 -H 2 -n 150 -d 256"]
# As tests/gpu/counts.sh has them: a sequence without a key, one in many parts, two queries; the last two are slow or like
# the first.
OF_DECODE = [
    "-d 64 -b 3 --lengths 0,65,300 -H 8 -G 2 -t bf16",
    "-d 256 -n 2 -b 2 --lengths 64,127 -H 4 -G 2 -m window:64",
    "-d 128 -b 1 --lengths 4000 -H 8 -G 2",
]
IN_PAGES = "-d 128 -n 4 -b 2 --lengths 3,150 -H 8 -G 2 --page-size 16"
MANY_PARTS = "-d 64 -b 1 --lengths 9000 -H 4 -G 1"
DECODE_STEPS = step_names("decode")
# Backward passes on CUDA cores, for which the CPU backend takes long, where they show what the other shapes do, too.
NAIVE_BACKWARD, RECOMPUTING = step_names("backward")[:2]
LONG_BACKWARD = [(NAIVE_BACKWARD, OF_BACKWARD[1]), (NAIVE_BACKWARD, OF_BACKWARD[2]), (RECOMPUTING, OF_BACKWARD[1])]


def check_counts(stored: list[dict], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare_counts, "PROGRAMS", STEP_DIR / "counts")
    if not stored:
        pytest.skip(
            f"{compare_counts.TABLE.name} lacks them: run tests/gpu/counts.sh on a GPU, "
            "then tests/gpu/compare_counts.py"
        )
    table = [line for counted in compare_counts.grouped(stored) for line in compare_counts.compare(counted)]
    assert len(table) == len(stored)
    assert [line for line in table if not line["agrees"]] == []


# Whole tiles and a full mask show nothing that the other two shapes do not; nor does D = 128 in the naive steps,
# for which the CPU backend takes long.
@pytest.mark.parametrize(
    "name, options",
    [
        pytest.param(
            name,
            options,
            marks=[pytest.mark.exhaustive] * (options == SMALL[0] or (name, options) == (NAIVE, SMALL[1])),
        )
        for name in step_names("forward")
        for options in SMALL
    ]
    + [
        pytest.param(name, options, marks=[pytest.mark.exhaustive] * ((name, options) in LONG_BACKWARD))
        for name in step_names("backward")
        for options in OF_BACKWARD
    ]
    + [
        pytest.param(name, options, marks=[pytest.mark.exhaustive] * (options == OF_DECODE[2]))
        for name in DECODE_STEPS
        for options in OF_DECODE
    ]
    + [(name, IN_PAGES) for name in DECODE_STEPS if "CACHE_PAGES" in source_of(name).path.read_text()]
    + [(name, MANY_PARTS) for name in DECODE_STEPS if inherited(name, "counts").get("waits_for_blocks")],
)
def test_counts_are_those_of_a_gpu(name: str, options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_counts(
        [
            record
            for record in read_records(compare_counts.TABLE)
            if record["step"] == name and record["options"] == options
        ],
        monkeypatch,
    )


def test_counts_of_copies_alone_are_those_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = [record for record in read_records(compare_counts.TABLE) if record["step"] == "copies"]
    assert stored
    check_counts(stored, monkeypatch)


def test_sectors_where_rows_begin_in_the_middle_of_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """An H200 counted 19,676 in steps 03 and 04."""
    monkeypatch.setattr(compare_counts, "PROGRAMS", STEP_DIR / "counts")
    for name in ("step03", "step04"):
        lab = compare_counts.expected_counts(name, "-b 2 -H 2 -G 1 -n 95 -k 301 -d 96")["attention_kernel"]
        assert lab["l1_load_sectors"] == 19676
