"""Output for people and for scripts: the report, the JSON records, the exit codes."""

import json
import re
from datetime import datetime, timezone
from pathlib import Path

import pytest

from tests.e2e.cli.test_bad_input import files_in
from tests.lib.kinds import FP8_STEPS, HOPPER_STEPS, MASK_STEPS, NAIVE, SPAN_STEPS
from tests.lib.programs import BACKEND, REPOSITORY, RIGHT, Program, read_records


@pytest.mark.parametrize("name, check", [("ex05", "ex05"), ("step98_mine", "check STEP=98_mine")])
def test_a_report_names_the_check_of_its_file(any_step: Program, tmp_path: Path, name: str, check: str) -> None:
    (tmp_path / name).symlink_to(any_step.path)
    said = Program(name, tmp_path).run_right("-n", 32).stdout
    assert re.search(f"not covered: .*: make {check}$", said, re.MULTILINE)


# --- JSON records --------------------------------------------------------------------------------

NUMBER = (int, float)  # JSON does not distinguish 1 from 1.0

ROW = {
    "step": str,
    "commit": str,
    "date": str,
    "backend": str,
    "device": str,
    "multiprocessors": int,
    "compute_capability": int,
    "cuda_runtime": str,
    "batch": int,
    "heads": int,
    "kv_heads": int,
    "seqlen": int,
    "seqlen_kv": int,
    "head_dim": int,
    "dtype": str,
    "o_dtype": str,
    "mask": str,
    "layout": str,
    "scale": NUMBER,
    "input": str,
    "seed": str,
    "nan_inputs": int,
    "right": bool,
    "rows": int,
    "rows_checked": int,
    "rows_not_compared": int,
    "rows_not_judged": int,
    "rows_nan_expected": int,
    "rows_wrong": int,
    "values_unwritten": int,
    "values_nan": int,
    "values_inf": int,
    "guard_bytes_touched": int,
    "workspace_left": int,
    "lse_wrong": int,
    "max_error": NUMBER,
    "mean_error": NUMBER,
    "allowed_error": NUMBER,
    "max_error_share": NUMBER,
    "max_lse_error": NUMBER,
    "mean_error_share": NUMBER,
    "mean_gain_share": NUMBER,
    "flops": NUMBER,
    "least_bytes": NUMBER,
    "must_move_bytes": NUMBER,
    "workspace_bytes": int,
    "extra_bytes": int,
    "ceiling": str,
    "block_m": int,
    "block_n": int,
}
# Fields of steps that take block masks.
MASK = {
    "mask_form": str,
    "mask_bytes": int,
    "mask_prepared_bytes": int,
    "mask_build_ms": NUMBER,
    "mask_upload_ms": NUMBER,
    "mask_prepare_ms": NUMBER,
}
# And of those whose mask is in blocks.
BLOCKS = {
    "mask_block_q": int,
    "mask_block_kv": int,
    "mask_blocks": int,
    "mask_blocks_active": int,
    "mask_blocks_full": int,
    "mask_blocks_causal": int,
    "mask_blocks_partial": int,
}
KERNEL = {
    "name": str,
    "blocks": int,
    "threads": int,
    "shared_bytes": int,
    "registers": int,
    "local_bytes": int,
    "blocks_per_multiprocessor": int,
}
COUNTS = {
    "count_launches": int,
    "count_blocks": int,
    "count_threads": int,
    "count_barriers": int,
    "count_shuffles": int,
    "count_votes": int,
    "count_warp_barriers": int,
    "count_ldmatrix": int,
    "count_mma": int,
    "count_mma_under_copy": int,
    "count_wgmma": int,
    "count_tensor_copies": int,
    "count_atomics": int,
    "simulation_ms": NUMBER,
}
TIMES = {
    "samples": int,
    "median_ms": NUMBER,
    "p10_ms": NUMBER,
    "p90_ms": NUMBER,
    "bound_ms": NUMBER,
    "bound_by": str,
    "tflops": NUMBER,
    "dense_tflops": NUMBER,
    "gb_per_s": NUMBER,
    "ceiling_percent": NUMBER,
    "ceiling_ffma_tflops": NUMBER,
    "ceiling_mma_tflops": NUMBER,
    "ceiling_wgmma_tflops": NUMBER,
    "ceiling_wgmma_e4m3_tflops": NUMBER,
    "ceiling_exp_g_per_s": NUMBER,
    "ceiling_copy_gb_per_s": NUMBER,
    "ceiling_date": str,
}
# Left out on the CPU backend, where they would say nothing about a GPU.
GPU_ONLY = (
    "multiprocessors",
    "compute_capability",
    "cuda_runtime",
    "registers",
    "local_bytes",
    "blocks_per_multiprocessor",
)
GPU_STATE = {"driver": str, "sm_clock_mhz": int, "memory_clock_mhz": int}


def schema(step: Program, kernels: int, timed: bool = False) -> dict:
    """The fields in the record of a step with this number of kernels."""
    fields = ROW | (MASK if step.name in MASK_STEPS + SPAN_STEPS else {})
    fields |= BLOCKS if step.name in MASK_STEPS else {}
    for i in range(1, kernels + 1):
        fields |= {f"kernel{i}_{name}": kind for name, kind in KERNEL.items()}
    if BACKEND == "cpu":
        fields |= COUNTS
        fields |= {name: type(None) for name in fields if re.sub(r"^kernel\d_", "", name) in GPU_ONLY}
    return fields | TIMES | GPU_STATE if timed else fields


def assert_fits(record: dict, fields: dict) -> None:
    assert sorted(record) == sorted(fields)
    for name, kind in fields.items():
        assert isinstance(record[name], kind), f"{name}: {record[name]!r} is no {kind}"
        assert kind is bool or not isinstance(record[name], bool), name


def kernel_count(record: dict) -> int:
    return sum(re.fullmatch(r"kernel\d_name", name) is not None for name in record)


def test_record_has_every_field_and_no_other(kind_step: Program, tmp_path: Path) -> None:
    _, record = kind_step.solve(
        tmp_path / "out",
        "-b",
        2,
        "-H",
        4,
        "-G",
        2,
        "-n",
        100,
        "-k",
        50,
        "-m",
        "causal",
        kind_step.dtype_option,
        "bf16",
        "-s",
        9,
        "--layout",
        "bnhd",
    )
    kernels = kernel_count(record)
    assert kernels == len(kind_step.facts["launches"])
    assert_fits(record, schema(kind_step, kernels))
    assert (record["step"], record["backend"]) == (kind_step.name, BACKEND)
    assert (record["batch"], record["heads"], record["kv_heads"]) == (2, 4, 2)
    assert (record["seqlen"], record["seqlen_kv"], record["mask"]) == (100, 50, "causal")
    assert (record["o_dtype"], record["layout"], record["seed"]) == ("bf16", "bnhd", "9")
    assert record["dtype"] == ("e4m3" if kind_step.name in FP8_STEPS else "bf16")
    age = datetime.now(timezone.utc) - datetime.fromisoformat(record["date"])
    assert -5 < age.total_seconds() < 60


def test_record_counts_work_of_the_unmasked_entries(kind_step: Program, tmp_path: Path) -> None:
    """2 x 4 heads; causal 100 x 50: rows 50..99 attend 1, 2, ..., 50 keys."""
    d = 64 if kind_step.takes(64) else 256
    _, record = kind_step.solve(
        tmp_path / "out", "-b", 2, "-H", 4, "-G", 2, "-n", 100, "-k", 50, "-m", "causal", "-d", d
    )
    assert record["flops"] == 4 * d * 8 * (50 * 51 // 2)
    q_bytes, kv_bytes, lse_bytes = 2 * 8 * 100 * d, 2 * 4 * 50 * d, 4 * 8 * 100
    inputs = q_bytes + 2 * kv_bytes
    assert record["least_bytes"] == (inputs // (1 + (record["dtype"] == "e4m3")) + q_bytes + lse_bytes)


@pytest.mark.cpu_only("it counts what the kernels do")
def test_record_counts_what_ran(step: Program, tmp_path: Path) -> None:
    """The kernels, blocks and threads in the step's description are those that were launched."""
    _, record = step.solve(tmp_path / "out", "-H", 3, "-n", 70)
    kernels = range(1, kernel_count(record) + 1)
    assert record["count_launches"] == len(kernels)
    assert record["count_blocks"] == sum(record[f"kernel{i}_blocks"] for i in kernels)
    assert record["count_threads"] == sum(record[f"kernel{i}_blocks"] * record[f"kernel{i}_threads"] for i in kernels)
    assert record["count_barriers"] > 0 and record["count_shuffles"] > 0


def test_records_are_appended_one_a_line(any_step: Program, tmp_path: Path) -> None:
    path = tmp_path / "records.json"
    for seqlen in (3, 4, 5):
        any_step.run_right("-j", path, "-n", seqlen)
    assert [record["seqlen"] for record in read_records(path)] == [3, 4, 5]
    assert path.read_text().count("\n") == 3


def test_record_on_standard_output(any_step: Program) -> None:
    """Standard output has only the record; the report goes to standard error."""
    done = any_step.run("-j", "-", "-n", 3)
    assert json.loads(done.stdout)["seqlen"] == 3
    assert done.stderr.startswith(any_step.name)


@pytest.mark.gpu_only("only a GPU is timed")
def test_record_of_a_timed_run(step: Program, tmp_path: Path) -> None:
    path = tmp_path / "records.json"
    done = step.run("-n", 512, "--min-time", 0.05, "--repeat", 12, "-j", path, timeout=300)
    assert (done.returncode, done.stderr) == (RIGHT, "")
    (record,) = read_records(path)
    assert_fits(record, schema(step, kernel_count(record), timed=True))
    assert record["samples"] >= 12 and record["samples"] * record["median_ms"] > 25
    assert 0 < record["p10_ms"] <= record["median_ms"] <= record["p90_ms"]
    assert record["tflops"] == pytest.approx(record["flops"] / record["median_ms"] * 1e-9, rel=1e-6)


# --- The report ----------------------------------------------------------------------------------


def test_report_says_what_ran_and_whether_it_is_right(kind_step: Program) -> None:
    report = kind_step.run_right(
        "-b",
        2,
        "-H",
        4,
        "-G",
        1,
        "-n",
        65,
        "-k",
        33,
        "-m",
        "causal",
        kind_step.dtype_option,
        "bf16",
        "-s",
        77,
        "-i",
        "spiky",
        "-c",
        "all",
    ).stdout
    assert 9 <= len(report.splitlines()) <= 20
    for words in (
        rf"{kind_step.name} +\w.+",
        r"problem .*B=2 Hq=4 Hkv=1 Nq=65 Nkv=33 D=\d+ (bf16.*causal|e4m3.*causal.*, O in bf16)",
        r"input +spiky, seed 77, layout bhnd",
        r"device +\w.+",
        r"kernel +\w+: \d+ blocks? of \d+ threads",
        r"must move +[\d.]+ \w+",
        r"check +RIGHT: 520 of 520 rows",
        r"error +max \d.*allowed \d",
    ):
        assert re.search(f"^{words}", report, re.MULTILINE), f"{words} is not in\n{report}"


@pytest.mark.cpu_only("on a GPU a time is a time")
def test_cpu_report_never_states_a_time(kind_step: Program) -> None:
    report = kind_step.run_right("-n", 64).stdout
    assert not re.search(r"\d\s*(ms|us|s|TFLOP/s|GB/s)\b", report)
    assert "none: the CPU backend shows what a kernel does" in report


@pytest.mark.gpu_only("the CPU backend never states a time")
def test_gpu_report_states_speed_and_ceiling(step: Program) -> None:
    done = step.run("-n", 512, "--min-time", 0.05, timeout=300)
    for words in (
        r"kernel .*\d+ registers.*blocks? per SM.*waves",
        r"expected +no faster than",
        r"time +[\d.]+ ms \(p10 [\d.]+, p90 [\d.]+, \d+ samples\)",
        r"speed +[\d.]+ TFLOP/s",
        r"ceiling +\d+ %",
    ):
        assert re.search(f"^{words}", done.stdout, re.MULTILINE), f"{words}\n{done.stdout}"


def test_unchecked_run_says_so(any_step: Program, tmp_path: Path) -> None:
    path = tmp_path / "records.json"
    report = any_step.run_right("-c", "none", "-n", 20, "-j", path).stdout
    assert "NOT CHECKED" in report and "RIGHT" not in report
    (record,) = read_records(path)
    assert (record["right"], record["rows_checked"]) == (None, 0)


def test_sample_of_rows(any_step: Program, tmp_path: Path) -> None:
    path = tmp_path / "records.json"
    report = any_step.run_right("-c", "rows:5", "-b", 1, "-H", 3, "-n", 100, "-j", path).stdout
    assert re.search(r"RIGHT: 5 of 300 rows", report)
    assert (read_records(path)[0]["rows_checked"], read_records(path)[0]["rows"]) == (5, 300)


@pytest.mark.cpu_only("it counts what the kernels do")
def test_causal_runs_skip_tiles_above_the_diagonal(step: Program, tmp_path: Path) -> None:
    """With as many queries as keys about half of the work is skipped."""
    counts = {}
    for mask in ("full", "causal"):
        path = tmp_path / f"{mask}.json"
        length = min(12 * step.facts["block_m"], 1536)
        head_dim = next(d for d in (32, 64, 256) if step.takes(d))
        step.run_right("-b", 1, "-H", 1, "-n", length, "-d", head_dim, "-m", mask, "-c", "rows:20", "-j", path)
        work = "count_wgmma" if step.name in HOPPER_STEPS else "count_barriers"
        counts[mask] = read_records(path)[0][work]
    assert 0.5 * counts["full"] <= counts["causal"] <= 0.6 * counts["full"]


def test_options_before_cases_hold_for_every_case(any_step: Program, tmp_path: Path) -> None:
    cases, records = tmp_path / "cases.txt", tmp_path / "records.json"
    cases.write_text("-n 4\n-n 5 -t fp16\n")
    done = any_step.run_right("-t", "bf16", "-b", 2, "-c", "none", "-j", records, "--cases", cases)
    assert done.stdout.splitlines() == [f"{cases}:1: not checked: -n 4", f"{cases}:2: not checked: -n 5 -t fp16"]
    assert [(r["seqlen"], r["dtype"], r["batch"]) for r in read_records(records)] == [(4, "bf16", 2), (5, "fp16", 2)]


# --- Options that replace a run ------------------------------------------------------------------

LONG_OPTIONS = (
    "batch heads kv-heads seqlen seqlen-kv head-dim dtype out-dtype mask mask-block layout scale scales "
    "input output seed check repeat min-time time-limit json report cases save-mask "
    "draw-mask info ceilings help version"
).split()
SHORT_OPTIONS = "bHGnkdtmioscrj"


NOT_ALL_STEPS = {"out-dtype": "--out-dtype=bf16", "scales": "--scales=head", "save-mask": "--save-mask=mask"}


def test_help_lists_the_options_of_the_step(kind_step: Program) -> None:
    done = kind_step.run("--help")
    assert (done.returncode, done.stderr) == (RIGHT, "")
    taken = [
        name
        for name in LONG_OPTIONS
        if name not in NOT_ALL_STEPS or kind_step.run(NOT_ALL_STEPS[name], "--version").returncode == RIGHT
    ]
    for letter in SHORT_OPTIONS:
        assert re.search(rf"-{letter}, --", done.stdout), letter
    assert "Exit codes:" in done.stdout
    listed = set(re.findall(r"^ +(?:-\w, )? *--([\w-]+)", done.stdout, re.MULTILINE))
    assert listed == set(taken)


def test_help_names_the_values_that_the_step_takes(kind_step: Program) -> None:
    told = " ".join(kind_step.run("--help").stdout.split())
    about = {name: re.search(rf"--{name}=.*?(?= -\w, --| --\w)", told)[0] for name in ("mask", "dtype")}
    for name, values in {"mask": ["causal", "window:W", "random:DENSITY"], "dtype": ["fp16", "bf16", "e4m3"]}.items():
        for value in values:
            given = value.replace(":W", ":9").replace(":DENSITY", ":0.5")
            done = kind_step.run(f"--{name}={given}", "--draw-mask", "-n", 256)
            assert (value in about[name]) == (done.returncode == RIGHT), (value, done.stderr)


def test_every_short_option_is_its_long_one(any_step: Program, tmp_path: Path) -> None:
    """Short and long options give the same record, except for the date, the time, and the memory
    that other programs take on a GPU meanwhile."""
    short = "-b 2 -H 4 -G 2 -n 9 -k 8 -d 32 -t bf16 -m causal -i spiky -s 3 -c rows:4 -r 0".split()
    long = (
        "--batch 2 --heads 4 --kv-heads 2 --seqlen 9 --seqlen-kv 8 --head-dim 32 --dtype bf16 "
        "--mask causal --input spiky --seed 3 --check rows:4 --repeat 0"
    ).split()
    path = tmp_path / "records.json"
    any_step.run_right(*short, "-j", path)
    any_step.run_right(*long, "--json", path)
    first, second = (record | {"date": "", "simulation_ms": 0, "extra_bytes": 0} for record in read_records(path))
    assert first == second and first["kv_heads"] == 2 and first["rows_checked"] == 4


def test_version(any_step: Program) -> None:
    """CHANGELOG.md begins with it and its date, and CITATION.cff names them."""
    done = any_step.run("--version")
    found = re.fullmatch(rf"{any_step.name} (\d+\.\d+\.\d+), commit \S+\n", done.stdout)
    assert done.returncode == RIGHT and found
    version, date = re.search("^## (.*), (.*)$", (REPOSITORY / "CHANGELOG.md").read_text(), re.MULTILINE).groups()
    assert version == found[1]
    assert f"\nversion: {version}\ndate-released: {date}\n" in (REPOSITORY / "CITATION.cff").read_text()


@pytest.mark.cpu_only("SIMT_MEMORY stands for a smaller GPU")
@pytest.mark.parametrize("memory, passes", [("1M", "1 pass"), ("600K", "2 passes")])
def test_info_says_what_the_run_does(memory: str, passes: str) -> None:
    """It depends on the memory that the tensors leave for S."""
    for words in (["--info"], []):
        report = Program(NAIVE).run_right("-n", 256, *words, env={"SIMT_MEMORY": memory}).stdout
        assert f"heads at a time: {passes}\n" in report
    small = Program(NAIVE).run_right("-n", 256, "--info", env={"SIMT_MEMORY": "300K"}).stdout
    assert "does not fit the free memory" in small


def test_info(step: Program, tmp_path: Path) -> None:
    info = step.run_right("--info", cwd=tmp_path).stdout
    for words in (
        rf"{step.name} +\w.+",
        r"supports .*(fp16 and bf16|e4m3)",
        r"tiles +\d+ rows of Q, \d+",
        r"kernel .*\d+ bytes of dynamic shared memory",
        rf"page +docs/{step.name}",
    ):
        assert re.search(f"^{words}", info, re.MULTILINE), f"{words} is not in\n{info}"
    assert files_in(tmp_path) == []
    told = step.run("--info", "--json", "-", cwd=tmp_path)
    facts = json.loads(told.stdout)
    assert told.stderr == info and facts["step"] == step.name and facts["title"] in info
    step.run_right("--info", "--json", tmp_path / "facts")
    assert read_records(tmp_path / "facts") == [facts]


def test_info_in_json_is_what_the_step_takes(step: Program) -> None:
    facts = json.loads(step.run("--info", "--json", "-").stdout)
    for option, field, values in (
        ("--head-dim", "head_dims", {d: d for d in (24, 32, 64, 128, 256)}),
        ("--dtype", "dtypes", {name: name for name in ("fp16", "bf16", "e4m3")}),
        ("--mask", "masks", {"full": "full", "causal": "causal", "blocks": "random:0.5"}),
    ):
        for value, given in values.items():
            taken = step.run("--info", option, given).returncode == RIGHT
            assert taken == (facts[field] == "any" or value in facts[field]), (option, value)


def test_picture_fits_the_terminal(any_step: Program) -> None:
    """The unit tests compare small pictures."""
    options = ("-n", 1000000, "-m", "causal", "--mask-block", "16x16")
    first, *picture, last = any_step.run_right("--draw-mask", *options).stdout.splitlines()
    assert first.startswith("mask ") and "# all attended" in last
    assert len(picture) <= 64 and {len(line) for line in picture} == {len(picture)}
    assert picture[0][0] == "/" and picture[-1][0] == "#" and picture[0][-1] == "."
