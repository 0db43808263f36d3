"""make bench on the CPU backend: its cases, how it judges answers, its records and their file."""

import json
import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from plots.bench import builds, run
from plots.bench.cases import Case, all_cases, quick_cases
from plots.bench.contestants import Inputs, StepCall, saved_masks, to_16_bits
from plots.bench.exact import Exact, as_doubles
from plots.bench.step_library import StepLibrary
from plots.bench.turns import Plan, Stopwatch
from tests.lib import masks
from tests.lib.problem import Problem
from tests.lib.programs import MASK_STEPS, REPOSITORY, STEP_DIR, read_records, step_names
from tests.lib.reference import attention, round_to

pytestmark = pytest.mark.cpu_only("make bench itself is the test on a GPU")

ORIGIN = {"commit": "0123456789ab", "device": "NVIDIA H200"}
STOPWATCH = {"flush_bytes": 4096, "is_asynchronous": False}
SMALL = Case(128, 64, "causal")


# --- Cases ----------------------------------------------------------------------------------------

def test_no_case_is_missing_or_repeated() -> None:
    cases = all_cases()
    assert len(set(map(str, cases))) == len(cases)
    assert str(cases[0]) == "D=128 N=4096 fp16 full" and (cases[0].batch, cases[0].heads) == (4, 16)
    wanted = {f"D={d} N={n} fp16 {mask}" for d in (64, 128, 256)
              for n in (512, 1024, 2048, 4096, 8192, 16384) for mask in ("full", "causal")}
    assert wanted <= set(map(str, cases)) >= set(map(str, quick_cases()))


@pytest.mark.parametrize("mask", ["causal", "window:1024", "document:8", "prefix:1024"])
def test_rules_for_flex_attention_are_those_of_the_presets(mask: str) -> None:
    n = 1500
    at = np.arange(n)
    expected = masks.preset(Problem(seqlen=n, head_dim=64, mask=mask.replace("8", "5")))
    rule = Case(n, 64, mask.replace("8", "5")).rule()
    assert (rule(0, 0, at[:, None], at[None]) == expected).all()


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_inputs_are_rounded_to_nearest(dtype: str) -> None:
    x = np.random.default_rng(2).standard_normal(10_000, np.float32)
    assert (as_doubles(to_16_bits(x, dtype), dtype) == round_to(dtype, x)).all()


# --- Which answers are right ----------------------------------------------------------------------

@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("mask", ["full", "window:50"])
def test_verdicts_agree_with_the_reference(dtype: str, mask: str) -> None:
    """The exact answer rounded, an answer with an error in one row, NaN, and a wrong LSE."""
    case = Case(150, 64, mask, dtype, batch=2, heads=2)
    p = Problem(batch=2, heads=2, seqlen=150, head_dim=64, dtype=dtype, mask="full")
    dense = masks.preset(replace(p, mask=mask))
    generator = np.random.default_rng(3)
    q, k, v = (round_to(dtype, generator.standard_normal(p.q_shape())) for _ in range(3))
    answer = attention(p, q, k, v, dense)
    exact = Exact(case, lambda b, h: (q[b, h], k[b, h], v[b, h]), lambda queries: dense[queries])

    def judge(o: np.ndarray, lse: np.ndarray = answer.lse):
        return exact.judge(lambda b, h: (o[b, h], lse[b, h]))

    right = judge(round_to(dtype, answer.o))
    assert right["right"] and right["max_error"] < right["allowed_error"]
    assert right["max_lse_error"] < 1e-6
    for change, at in ((1.05, (1, 1, 149)), (np.nan, (0, 0, 77))):
        wrong = answer.o.copy()
        wrong[at] *= change
        assert not judge(wrong)["right"] and json.dumps(judge(wrong), allow_nan=False)
    lse = answer.lse.copy()
    lse[0, 0, 0] += 0.01
    assert not judge(answer.o, lse)["right"]


# --- Records --------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def libraries() -> list[StepLibrary]:
    return [StepLibrary(STEP_DIR / f"lib{name}.so") for name in step_names()]


class BrokenTorch:
    """A PyTorch whose kernels do not support the problem."""

    def __getattr__(self, name: str):
        raise RuntimeError("No available kernel.\nAborting.")


def test_records_of_a_case(libraries: list[StepLibrary]) -> None:
    """Each step is right and has times; for baselines that fail the record holds the reason."""
    case = replace(SMALL, batch=2)
    with saved_masks(STEP_DIR / "step05", {("causal", 128), ("full", 128)}) as folders:
        benchmark = run.Benchmark(libraries, folders, ORIGIN, Plan(0.0), BrokenTorch(), **STOPWATCH)
        records = benchmark.records(case)
    steps = {record["step"]: record for record in records if "step" in record}
    assert list(steps) == step_names()
    for name, record in steps.items():
        assert record["right"] and record["rounds"] == 3, name
        assert record["tflops"] == pytest.approx(record["flops"] / record["median_ms"] * 1e-9)
        assert record["p10_ms"] <= record["median_ms"] <= record["p90_ms"]
        assert ("speed_over_full" in record) == ("mask_blocks" in record) == (name in MASK_STEPS)
    one = steps["step04"]
    assert one["flops"] == 4 * 64 * 2 * 2 * 128 * 129 // 2
    assert one["must_move_bytes"] == 2 * 2 * 128 * (4 * 2 * 64 + 4)
    assert steps["step01"]["must_move_bytes"] > one["must_move_bytes"]
    assert (one["ceiling"], steps["step02"]["ceiling"]) == ("mma.sync", "fp32 FFMA")
    failed = {record["short"]: record["failed"] for record in records if "short" in record}
    assert set(failed) == {"fa2", "cudnn"} and "No available kernel. Aborting." in failed.values()
    printed = run.line_of(case, records)
    assert printed.startswith("D=64 N=128 fp16 causal: 01 ") and printed.endswith("cudnn FAILED")


def test_block_masks_are_those_of_the_program(libraries: list[StepLibrary]) -> None:
    case = Case(300, 64, "window:100")
    with saved_masks(STEP_DIR / "step05", {("window:100", 300), ("full", 300)}) as folders:
        benchmark = run.Benchmark(libraries, folders, ORIGIN, Plan(0.0), **STOPWATCH)
        records = benchmark.records(case)
    dense = masks.preset(Problem(seqlen=300, head_dim=64, mask="window:100"))
    assert [record["step"] for record in records] == MASK_STEPS
    for record in records:
        assert record["right"] and record["flops"] == 4 * 64 * 2 * dense.sum()
        assert (record["mask_blocks_active"], record["mask_blocks"]) == (5, 9)


# --- The command ----------------------------------------------------------------------------------

def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, commit: str = "0123456789ab",
            **options: object) -> tuple[int, Path]:
    """make bench with two small cases: its exit code and the records."""
    for name, value in {"measure_ceilings": lambda _: ORIGIN | {"commit": commit},
                        "torch_on_a_gpu": lambda: None, "Plan": partial(Plan, 0.0),
                        "all_cases": lambda: [SMALL, replace(SMALL, mask="full")],
                        "Stopwatch": partial(Stopwatch, **STOPWATCH)}.items():
        monkeypatch.setattr(run, name, value)
    build = tmp_path / "build"
    build.mkdir(exist_ok=True)
    for name in ("libstep04.so", "step04"):
        (build / name).unlink(missing_ok=True)
        (build / name).symlink_to(STEP_DIR / name)
    words = SimpleNamespace(**{"build": build, "results": tmp_path / "results", "quick": False,
                               "only": []} | options)
    code = run.run(words)
    (path,) = [*tmp_path.glob("results/h200/*"), *build.glob("bench.jsonl")]
    return code, path


def test_recorded_cases_are_not_measured_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
                                               capsys) -> None:
    assert command(monkeypatch, tmp_path) == (0, tmp_path / "results/h200/bench_0123456789ab.jsonl")
    path = tmp_path / "results/h200/bench_0123456789ab.jsonl"
    first, _ = lines = path.read_text().splitlines()
    assert [record["mask"] for record in read_records(path)] == ["causal", "full"]
    path.write_text(f"{first}\n")
    capsys.readouterr()
    command(monkeypatch, tmp_path)
    assert path.read_text().splitlines()[0] == first and len(read_records(path)) == len(lines)
    printed = capsys.readouterr().out
    assert "1 cases, 1 are in" in printed and "the steps are measured alone" in printed
    assert printed.count("\n[") == 1 and "] D=64 N=128 fp16 full: 04 " in printed


@pytest.mark.parametrize("changes", [{"commit": "0123456789ab-dirty"}, {"only": ["full"]}])
def test_dirty_or_partial_runs_start_a_new_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
                                                changes: dict) -> None:
    for _ in range(2):
        code, path = command(monkeypatch, tmp_path, **changes)
        assert (code, path) == (0, tmp_path / "build" / "bench.jsonl")
        assert len(read_records(path)) == 2 - ("only" in changes)


@pytest.mark.parametrize("target, name, wrong", [
    (Inputs, "head", lambda head: lambda *x: [1.01 * y for y in head(*x)]),
    (StepCall, "__call__", lambda call: lambda self: None)], ids=["other inputs", "no output"])
def test_a_wrong_answer_has_no_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: type,
                                    name: str, wrong) -> None:
    monkeypatch.setattr(target, name, wrong(getattr(target, name)))
    code, path = command(monkeypatch, tmp_path)
    assert code == 1
    for record in read_records(path):
        assert record["right"] is False and "median_ms" not in record


def test_two_builds_are_compared(tmp_path: Path) -> None:
    """Compares the steps that are in both; here both builds are the same."""
    for name in ("libstep04.so", "libstep05.so"):
        (tmp_path / name).symlink_to(STEP_DIR / name)
    found = builds.compare(tmp_path, STEP_DIR, [SMALL], rounds=1, **STOPWATCH)
    assert {step for step, _ in found} == {"step04", "step05"}
    assert all(0.1 < ratio < 10 for ratio in found.values())


def test_make_bench_needs_a_gpu() -> None:
    done = subprocess.run(["make", "--no-print-directory", "bench", "BACKEND=cpu"], cwd=REPOSITORY, capture_output=True,
                          text=True, check=False)
    assert done.returncode != 0 and done.stdout == ""
    assert "make bench: times need a GPU, and this is BACKEND=cpu" in done.stderr
