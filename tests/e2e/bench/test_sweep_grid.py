"""Which problems a sweep has, and that the steps take them."""

from collections import Counter
from pathlib import Path

import pytest

from tests.lib.programs import Program, read_rows, step_names

import sweep_grid
from sweep_grid import Case, full_grid, identity_of, quick_grid

FIVE = [f"step0{number}" for number in range(1, 6)]


def cases_of(groups: list) -> list[Case]:
    return [case for group in groups for case in group.cases]


def test_full_grid_is_the_standard_one() -> None:
    cases = cases_of(full_grid(FIVE))
    assert len({case.identity() for case in cases}) == len(cases) == 390
    dense = [case for case in cases if case.mask in ("full", "causal") and not case.one_stage]
    # Three head dimensions, six lengths, two dtypes, two masks; the slow steps have four lengths.
    assert Counter(case.step for case in dense) == {
        "step01": 3 * 4 * 2 * 2 + 1, "step02": 3 * 4 * 2 * 2 + 1,
        "step03": 3 * 6 * 2 * 2, "step04": 3 * 6 * 2 * 2, "step05": 3 * 6 * 2 * 2}
    for case in dense:
        assert case.batch * case.seqlen == 16384 and case.heads * case.head_dim == 2048
    beyond = [case for case in dense if case.step in ("step01", "step02") and case.seqlen > 4096]
    assert {case.identity()[1:] for case in beyond} == {
        (1, 16, 16, 16384, 16384, 128, "fp16", "full", False)}


def test_block_masks_are_of_step05() -> None:
    masks = [case for case in cases_of(full_grid(FIVE))
             if case.one_stage or case.mask not in ("full", "causal")]
    assert {(case.step, case.dtype) for case in masks} == {("step05", "fp16")}
    usual = [case for case in masks if case.seqlen <= 16384]
    assert Counter((case.head_dim, case.seqlen) for case in usual) == {
        (head_dim, seqlen): 17 for head_dim in (64, 128) for seqlen in (4096, 16384)}
    assert {case.mask for case in usual if case.seqlen == 16384 and not case.one_stage} == {
        "window:1024", "document:8", "prefix:4096", "random:0.5",
        *(f"blocks:0.{tenth}" for tenth in range(1, 10))}
    assert {case.mask for case in usual if case.one_stage} == {"full", "causal", "window:1024",
                                                               "document:8"}
    long = [case for case in masks if case.seqlen > 16384]
    assert len(long) == 8 and all("-c rows:500" in case.options() for case in long)


def test_steps_of_a_group_stand_together() -> None:
    """So that a program is called once in it, and the next step comes at once."""
    for group in full_grid(FIVE):
        steps = [case.step for case in group.cases]
        assert steps == sorted(steps) or group.name.startswith("masks"), group.name
        assert len({(case.head_dim, case.dtype) for case in group.cases}) == 1
        assert group.name.endswith("long") or len({case.seqlen for case in group.cases}) == 1


def test_quick_grid_is_part_of_the_full_one() -> None:
    quick = {case.identity() for case in cases_of(quick_grid(FIVE))}
    full = {case.identity() for case in cases_of(full_grid(FIVE))}
    assert quick < full and len(quick) < 35
    assert {identity[0] for identity in quick} == set(FIVE)


def test_steps_that_are_not_there_are_not_wanted() -> None:
    assert {case.step for case in cases_of(full_grid(["step03"]))} == {"step03"}


def test_every_step_takes_its_cases(step: Program, tmp_path: Path) -> None:
    """All it refuses would be missing from the figures."""
    cases = [case for case in cases_of(full_grid(step_names())) if case.step == step.name
             and (case.mask != "random:0.5" or case.seqlen == 4096)]  # drawn entry by entry
    file = tmp_path / "cases"
    file.write_text("".join(case.options() + "\n" for case in cases))
    done = step.run_right("--info", "--cases", file)
    assert done.stdout.count(": not checked: ") == len(cases) >= 49


@pytest.mark.parametrize("more", [{}, {"mask": "causal", "dtype": "bf16"}, {"check_rows": 9}])
def test_row_is_known_by_its_case(step: Program, tmp_path: Path, more: dict,
                                  monkeypatch: pytest.MonkeyPatch) -> None:
    check_identity(Case(step.name, 64, 32, **more), tmp_path, monkeypatch)


@pytest.mark.parametrize("mask", ["window:1024", "document:8", "prefix:64", "blocks:0.1",
                                  "random:0.5", "full"])
@pytest.mark.parametrize("one_stage", [False, True])
def test_row_of_a_mask_is_known_by_its_case(tmp_path: Path, mask: str, one_stage: bool,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    check_identity(Case("step05", 64, 32, mask=mask, one_stage=one_stage), tmp_path, monkeypatch)


def check_identity(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_grid, "TOKENS", 128)
    monkeypatch.setattr(sweep_grid, "WIDTH", 96)
    path = tmp_path / "rows"
    Program(case.step).run_right(*case.options().split(), "--json", path)
    (row,) = read_rows(path)
    assert identity_of(row) == case.identity() and (row["batch"], row["heads"]) == (2, 3)
