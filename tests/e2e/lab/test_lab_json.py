"""--report=json:FILE and the totals in the records of --json: fields, sums, reproducibility."""

import re
from pathlib import Path

import pytest

from tests.lib.kinds import HOPPER_STEPS
from tests.lib.programs import REPOSITORY, WRONG, Program, read_records

pytestmark = pytest.mark.cpu_only("a GPU build refuses --report")

PROBLEM = ("-n", 100, "-k", 150, "-m", "causal")
SUMMED = ("requests", "bytes", "sectors", "wavefronts", "conflicts")
ISSUED = (
    "mma",
    "mma_flop",
    "mma_under_copy",
    "wgmma",
    "wgmma_flop",
    "shuffles",
    "shuffles_under_wgmma",
    "votes",
    "reductions",
    "barriers",
    "warp_barriers",
    "atomics",
    "partial",
)


def report(program: Program, directory: Path, *options: object, **more) -> list[dict]:
    path = directory / "report.jsonl"
    path.unlink(missing_ok=True)
    program.run_right(*options, f"--report=json:{path}", cwd=REPOSITORY, **more)
    return read_records(path)


def of(records: list[dict], kind: str) -> list[dict]:
    return [record for record in records if record["record"] == kind]


def counts_in(record: dict) -> dict[str, int]:
    """The counts that lines of a kernel, and kernels of a run, add up to."""
    return {
        field: value
        for field, value in record.items()
        if field in ISSUED
        or field.endswith(SUMMED)
        and "_most_" not in field
        and field not in ("least_bytes", "must_move_bytes")
    }


def added(records: list[dict]) -> dict[str, int]:
    fields = counts_in(records[0])
    return {field: sum(record[field] for record in records) for field in fields}


def test_lines_add_up_to_kernels_and_these_to_the_run(kind_step: Program, tmp_path: Path) -> None:
    records = report(kind_step, tmp_path, *PROBLEM)
    (run,) = of(records, "run")
    kernels, lines = of(records, "kernel"), of(records, "line")
    for kernel in kernels:
        own = [line for line in lines if line["kernel"] == kernel["kernel"]]
        assert added(own) == counts_in(kernel)
    assert added([kernel for kernel in kernels if kernel["forward"]]) == counts_in(run)
    assert run["mma_flop"] == 4096 * run["mma"]
    assert (run["wgmma"] > 0) == (run["wgmma_flop"] > 0) == (kind_step.name in HOPPER_STEPS)
    assert run["findings"] == len(of(records, "finding")) == 0


def test_fields_are_documented(kind_step: Program, tmp_path: Path) -> None:
    """All fields of each kind of record, and of a record of --json, are in docs/json-records.md."""
    text = (REPOSITORY / "docs/json-records.md").read_text()
    documented = set(re.findall(r"`([a-z_0-9]+)`", text))
    for kind in (
        "global_load",
        "global_store",
        "copy_global",
        "tensor_load",
        "tensor_store",
        "remote_load",
        "remote_store",
    ):
        documented |= {f"{kind}_{field}" for field in ("requests", "bytes", "sectors", "used_bytes", "most_sectors")}
    for kind in ("shared_load", "shared_store", "ldmatrix", "copy_shared", "wgmma_read"):
        documented |= {f"{kind}_{field}" for field in ("requests", "bytes", "wavefronts", "conflicts", "most_ways")}
    path = tmp_path / "records"
    records = report(kind_step, tmp_path, "-n", 64, "-j", path)
    (record,) = read_records(path)
    lab = {field.removeprefix("lab_") for field in record if field.startswith("lab_")}
    assert lab == {"findings", "notes", *counts_in(records[0])} | {f for f in records[0] if "most_" in f}
    assert set().union(*records) | lab <= documented


def test_a_record_has_the_totals_only_with_a_report(any_step: Program, tmp_path: Path) -> None:
    path = tmp_path / "records"
    any_step.run_right("-n", 64, "-j", path)
    any_step.run_right("-n", 64, "-j", path, "--report=traffic")
    without, with_report = read_records(path)
    assert not [field for field in without if field.startswith("lab_")]
    assert with_report["lab_findings"] == 0 and with_report["lab_global_load_sectors"] > 0
    assert set(with_report) - set(without) == {f for f in with_report if f.startswith("lab_")}


def test_reports_of_several_cases_follow_each_other(any_step: Program, tmp_path: Path) -> None:
    cases, path = tmp_path / "cases", tmp_path / "report"
    cases.write_text(f"-n 32 --report=json:{path}\n-n 64 --report=json:{path}\n")
    any_step.run_right("--cases", cases)
    assert [record["seqlen"] for record in of(read_records(path), "run")] == [32, 64]


@pytest.mark.parametrize("order", ["forward", pytest.param("reverse", marks=pytest.mark.exhaustive)])
def test_same_bytes_for_any_number_of_threads(kind_step: Program, tmp_path: Path, order: str) -> None:
    """The same JSON, and the same text after the report of the run."""
    seen = set()
    lines = of(report(kind_step, tmp_path, *PROBLEM), "line")
    places = [f"{record['file']}:{record['line']}" for record in lines if record["global_store_requests"] > 0]
    for threads in ("1", "5"):
        path = tmp_path / "report"
        path.unlink(missing_ok=True)
        parts = f"traffic,banks,annotate,roofline:a100,access:{places[0]},json:{path}"
        stdout = kind_step.run_right(
            *PROBLEM, f"--report={parts}", cwd=REPOSITORY, env={"SIMT_THREADS": threads, "SIMT_ORDER": order}
        ).stdout
        seen.add((stdout[stdout.index("\nlab ") :], path.read_bytes()))
    assert len(seen) == 1


def test_a_refused_case_repeats_no_report(any_step: Program, tmp_path: Path) -> None:
    cases = tmp_path / "cases"
    cases.write_text("-n 32 --report\n-n 64 --report -j /no/such/folder/rows\n")
    done = any_step.run("--cases", cases)
    assert done.returncode == 2 and done.stdout.count("findings ") == 1


def test_a_full_disk_is_reported(any_step: Program) -> None:
    done = any_step.run("-n", 32, "--report=json:/dev/full")
    assert done.returncode == 3 and "/dev/full: cannot write" in done.stderr


def test_standard_output_holds_the_records_alone(any_step: Program) -> None:
    done = any_step.run("-n", 32, "--report=json:-")
    assert done.stdout.startswith('{"record": "run"') and "\nfindings   0\n" in done.stderr


def test_wrong_answers_have_a_report_too(faulty: Path, tmp_path: Path) -> None:
    path = tmp_path / "report"
    done = Program(faulty.name, faulty.parent).run("-n", 32, "--report", env={"FAULT": "NaN row"})
    assert done.returncode == WRONG and "\nfindings   0\n" in done.stdout
    done = Program(faulty.name, faulty.parent).run("-n", 32, f"--report=json:{path}", env={"FAULT": "NaN row"})
    assert done.returncode == WRONG and of(read_records(path), "run")[0]["findings"] == 0
