"""make bench on the CPU backend: its cases, how it judges answers, its records and their file."""

import json
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from plots.bench import builds, run
from plots.bench.backward import BackwardInputs, ExactGradients
from plots.bench.cases import DENSE, Case, all_cases, quick_cases
from plots.bench.contestants import BASELINES, Inputs, StepCall, row_spans, saved_masks, to_16_bits
from plots.bench.device import Device, StepLibrary
from plots.bench.exact import Exact
from plots.bench.turns import WARM_UPS, Plan, Stopwatch
from tests.lib import masks
from tests.lib.gradients import answers, forward, gradients
from tests.lib.kinds import FP8_STEPS, MASK_STEPS, MMA_STEPS, NAIVE, SCALAR_STEPS, SPAN_STEPS
from tests.lib.problem import Problem
from tests.lib.programs import REPOSITORY, STEP_DIR, Program, read_records
from tests.lib.reference import as_doubles, attention, round_to, rounded_input
from tests.lib.steps import source_of, step_names

pytestmark = pytest.mark.cpu_only("make bench itself is the test on a GPU")

ORIGIN = {"commit": "0123456789ab", "device": "NVIDIA H200"}
STOPWATCH = {"flush_bytes": 8192, "is_asynchronous": False}
SMALL = Case(128, 64, "causal")
IN_16_BITS = [name for name in step_names() if name not in FP8_STEPS and Program(name).takes(64)]


# --- Cases ----------------------------------------------------------------------------------------


def test_no_case_is_missing_or_repeated() -> None:
    cases = all_cases()
    assert len(set(map(str, cases))) == len(cases)
    assert str(cases[0]) == "D=128 N=4096 fp16 full" and (cases[0].batch, cases[0].heads) == (4, 16)
    wanted = {
        f"D={d} N={n} fp16 {mask}"
        for d in (64, 128, 256)
        for n in (512, 1024, 2048, 4096, 8192, 16384)
        for mask in ("full", "causal")
    }
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
    return [StepLibrary(STEP_DIR / f"lib{name}.so") for name in IN_16_BITS]


class BrokenTorch:
    """A PyTorch whose kernels do not support the problem."""

    def __getattr__(self, name: str):
        raise RuntimeError("No available kernel.\nAborting.")


def test_records_of_a_case(libraries: list[StepLibrary]) -> None:
    """Each step is right and has times; for baselines that fail the record holds the reason."""
    case = replace(SMALL, batch=2)
    with saved_masks(STEP_DIR / MASK_STEPS[0], {("causal", 128), ("full", 128)}) as folders:
        benchmark = run.Benchmark(libraries, folders, ORIGIN, Plan(0.0), BrokenTorch(), **STOPWATCH)
        records = benchmark.records(case)
    steps = {record["step"]: record for record in records if "step" in record}
    assert list(steps) == IN_16_BITS
    for name, record in steps.items():
        assert record["right"] and record["rounds"] == 3, name
        assert record["tflops"] == pytest.approx(record["flops"] / record["median_ms"] * 1e-9)
        assert record["p10_ms"] <= record["median_ms"] <= record["p90_ms"]
        assert ("speed_over_full" in record) == ("mask_blocks" in record) == (name in MASK_STEPS + SPAN_STEPS)
    one = steps[MMA_STEPS[-1]]
    assert one["flops"] == 4 * 64 * 2 * 2 * 128 * 129 // 2
    assert one["must_move_bytes"] == 2 * 2 * 128 * (4 * 2 * 64 + 4)
    assert steps[NAIVE]["must_move_bytes"] > one["must_move_bytes"]
    assert (one["ceiling"], steps[SCALAR_STEPS[-1]]["ceiling"]) == ("mma.sync", "fp32 FFMA")
    failed = {record["short"]: record["failed"] for record in records if "short" in record}
    assert set(failed) == {"fa2", "fa3", "cudnn"}
    assert "No available kernel. Aborting." in failed.values()
    printed = run.line_of(case, records)
    assert printed.startswith("D=64 N=128 fp16 causal: 01 ") and printed.endswith("cudnn FAILED")


class FakeTensor(np.ndarray):
    """An array with the methods of a tensor that the benchmark calls."""

    transpose = np.ndarray.swapaxes
    to = lambda self, _: self  # noqa: E731
    cpu = numpy = requires_grad_ = lambda self: self
    contiguous = lambda self: self.copy()  # noqa: E731
    copy_ = lambda self, other: np.copyto(self, other)  # noqa: E731
    data = property(lambda self: self)


class FakeTorch:
    """A PyTorch with FlashAttention-3, in NumPy on [B, N, H, D], as its only kernel."""

    __version__, float16, bfloat16, float64 = "2.11", "fp16", "bf16", None
    float8_e4m3fn, float32 = "e4m3", "fp32"
    backends = SimpleNamespace(cudnn=SimpleNamespace(version=lambda: 1))

    def __init__(self, capability: tuple[int, int] = (9, 0), factor: float = 1.0) -> None:
        self.cuda = SimpleNamespace(get_device_capability=lambda: capability)
        self.ops = SimpleNamespace(load_library=self.load, flash_attn_3=SimpleNamespace())
        self.factor = factor

    def load(self, path: str) -> None:
        if Path(path).read_text(encoding="utf-8") and path == __file__:
            self.ops.flash_attn_3.fwd = self.forward

    def as_tensor(self, memory: object, device: str) -> SimpleNamespace:
        array = np.asarray(SimpleNamespace(__array_interface__=memory.__cuda_array_interface__))
        if array.dtype == np.int32:
            return SimpleNamespace(view=lambda _: array.view(np.float32).view(FakeTensor))
        bits = array.view(np.uint16 if array.dtype == np.int16 else np.uint8)
        return SimpleNamespace(view=lambda dtype: as_doubles(bits, dtype).view(FakeTensor))

    def forward(self, *qkv: FakeTensor, is_causal: bool, num_splits: int, **scales) -> tuple:
        q, k, v = (
            x.swapaxes(1, 2) * scales.get(f"{name}_descale", np.ones((1, 1)))[..., None, None]
            for name, x in zip("qkv", qkv, strict=True)
        )
        n, d = q.shape[2:]
        scores = np.where(np.tri(n) if is_causal else True, q @ k.swapaxes(2, 3), -np.inf)
        probs = np.exp(scores * d**-0.5).view(FakeTensor)
        o = self.factor * probs @ v / probs.sum(axis=-1, keepdims=True)
        return o.swapaxes(1, 2), None, None, None


@pytest.mark.parametrize("dtype, mask", [("fp16", "causal"), ("bf16", "full")])
def test_flash_attention_3_is_a_contestant(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dtype: str, mask: str
) -> None:
    """It is checked, timed and compared; an answer that is wrong by 1 % is not timed."""
    monkeypatch.setenv("FA3_LIBRARY", __file__)
    for factor in (1, 1.01):
        code, path = command(
            monkeypatch,
            tmp_path,
            torch=FakeTorch(factor=factor),
            only=["D=64"],
            cases=[Case(70, 64, mask, dtype, batch=2, heads=3)],
        )
        fa3, step = (
            next(record for record in read_records(path) if record.get(name) == value)
            for name, value in (("short", "fa3"), ("step", MMA_STEPS[-1]))
        )
        right = factor == 1
        assert (code, fa3["right"], "median_ms" in fa3) == (1 - right, right, right)
        assert ("speed_over_fa3" in step) == right and fa3["baseline"] == "FlashAttention-3"
    (takes,) = (takes for short, _, takes, _ in BASELINES if short == "fa3")
    assert all(takes(case) == (case.mask in DENSE and case.dtype != "e4m3") for case in all_cases())


@pytest.mark.parametrize("factor", [1, 1.1])
def test_flash_attention_3_in_e4m3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, factor: float) -> None:
    """It gets the bits and the scales of heads; steps that take 16 bits are left out."""
    monkeypatch.setenv("FA3_LIBRARY", __file__)
    _, path = command(
        monkeypatch,
        tmp_path,
        torch=FakeTorch(factor=factor),
        only=["D=64"],
        cases=[Case(70, 64, "causal", "e4m3", batch=2, heads=3)],
    )
    (record,) = read_records(path)
    assert (record["short"], record["dtype"], record["right"]) == ("fa3_fp8", "e4m3", factor == 1)


class BackwardTorch(FakeTorch):
    """A PyTorch with the backward passes of its kernels, in NumPy."""

    def __init__(self, factor: float) -> None:
        super().__init__(factor=factor)
        self.nn = SimpleNamespace(
            attention=SimpleNamespace(
                sdpa_kernel=lambda _: nullcontext(), SDPBackend=SimpleNamespace(FLASH_ATTENTION=0, CUDNN_ATTENTION=1)
            ),
            functional=SimpleNamespace(scaled_dot_product_attention=self.attention),
        )
        self.autograd = SimpleNamespace(grad=self.grad)

    def attention(self, q: FakeTensor, k: FakeTensor, v: FakeTensor, is_causal: bool) -> FakeTensor:
        self.causal = is_causal
        return np.full_like(q, np.nan)  # O of the steps takes its place

    def grad(self, o: FakeTensor, leaves: list[FakeTensor], d_o: FakeTensor, retain_graph: bool) -> list:
        assert retain_graph and np.isfinite(o).all()
        p = Problem(*o.shape[:2], seqlen=o.shape[2], head_dim=o.shape[3], mask="causal" if self.causal else "full")
        found = answers(p, *leaves, d_o, o, forward(p, *leaves)[2])
        return [(self.factor * answer.value).view(FakeTensor) for answer in found]


@pytest.mark.parametrize("dtype, mask, factor", [("fp16", "causal", 1), ("bf16", "full", 1), ("fp16", "full", 1.01)])
def test_backward_steps_are_compared_with_backward_passes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dtype: str, mask: str, factor: float
) -> None:
    """All gradients are checked; a baseline whose gradients are wrong by 1 % is not timed."""
    step = next(name for name in reversed(step_names("backward")) if Program(name).takes(64))
    monkeypatch.setattr(run, "backward_cases", lambda: [Case(70, 64, mask, dtype, 2, 3, "backward")])
    code, path = command(
        monkeypatch, tmp_path, torch=BackwardTorch(factor), kind="backward", steps=[step, MMA_STEPS[-1]]
    )
    assert path == tmp_path / "results/backward/bench_0123456789ab.jsonl"
    own, *baselines = read_records(path)
    entries = 2 * 3 * (70 * 70 if mask == "full" else 70 * 71 // 2)
    assert (own["step"], own["kind"], own["right"], own["flops"]) == (step, "backward", True, 640 * entries)
    assert own["must_move_bytes"] == 2 * 3 * 70 * (8 * 2 * 64 + 4)
    assert [record["short"] for record in baselines] == ["fa2", "cudnn"]
    right = factor == 1
    assert code == 1 - right and all(record["right"] is right for record in baselines)
    assert ("speed_over_fa2" in own) is right and all(("tflops" in record) is right for record in baselines)


def test_backward_steps_with_masks_are_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """O and LSE are those of a forward step with the same mask; the full mask is measured beside it."""
    step = next(name for name in step_names("backward") if source_of(name).block_masks)
    monkeypatch.setattr(run, "backward_cases", lambda: [Case(70, 64, "window:20", "bf16", 2, 3, "backward")])
    code, path = command(monkeypatch, tmp_path, torch=None, kind="backward", steps=[step])
    (own,) = read_records(path)
    assert (code, own["right"], own["flops"]) == (0, True, 640 * 6 * (70 * 20 - 190))
    assert own["mask_form"] == "row spans" and "speed_over_full" in own


@pytest.mark.parametrize("gradient", [0, 1, 2])
@pytest.mark.parametrize("wrong", [1.05, np.nan])
def test_a_wrong_gradient_is_found(gradient: int, wrong: float) -> None:
    """The last query reads all keys, so its row is wrong in dQ, and that of the last key in dK and dV."""
    case = Case(70, 64, "causal", "fp16", 1, 2, "backward")
    library = StepLibrary(STEP_DIR / f"lib{step_names('backward')[0]}.so")
    inputs = BackwardInputs(Device(library), library, case)
    exact = ExactGradients(case, inputs)
    q, k, v, d_o = (np.stack([inputs.head(0, head)[i] for head in range(2)])[None] for i in range(4))
    found = gradients(Problem(heads=2, seqlen=70, head_dim=64, mask="causal"), q, k, v, d_o)
    assert exact.judge(lambda b, h: tuple(x[b, h] for x in found))["right"]
    found[gradient][0, 1, -1] *= wrong
    verdict = exact.judge(lambda b, h: tuple(x[b, h] for x in found))
    assert verdict["right"] is False and json.dumps(verdict, allow_nan=False)


def test_inputs_in_e4m3_are_those_of_the_programs() -> None:
    case = Case(40, 32, "full", "e4m3", batch=2, heads=3)
    inputs = Inputs(Device(StepLibrary(STEP_DIR / f"lib{MMA_STEPS[-1]}.so")), case)
    x = np.random.default_rng(1).standard_normal(case.elements(), np.float32).reshape(2, 3, 40, 32)
    np.testing.assert_array_equal(inputs.head(1, 2)[0], rounded_input("e4m3", x, 3)[1, 2])
    assert inputs.memory[0].size == case.elements() and inputs.scales_memory[0].size == 4 * 6


@pytest.mark.parametrize(
    "library, capability, why",
    [
        ("", (9, 0), "FA3_LIBRARY names no library of it"),
        (__file__, (8, 0), "it needs a GPU of compute capability 9.0"),
    ],
)
def test_flash_attention_3_may_be_absent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys, library: str, capability: tuple, why: str
) -> None:
    monkeypatch.setenv("FA3_LIBRARY", library)
    code, path = command(monkeypatch, tmp_path, torch=FakeTorch(capability), cases=[SMALL])
    assert code == 0 and "fa3" not in [record.get("short") for record in read_records(path)]
    assert capsys.readouterr().out.count(f"bench: FlashAttention-3 is not compared: {why}\n") == 1


@pytest.mark.parametrize("library", ["missing.so", "pytest.ini"])
def test_a_bad_fa3_library_is_a_usage_error(monkeypatch: pytest.MonkeyPatch, capsys, library: str) -> None:
    monkeypatch.setenv("FA3_LIBRARY", str(REPOSITORY / library))
    monkeypatch.setattr(run, "torch_on_a_gpu", FakeTorch)
    monkeypatch.setattr(sys, "argv", ["run", str(STEP_DIR), "results"])
    assert run.main() == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.count("\n") == 1
    assert told.err.startswith(f"bench: FA3_LIBRARY={REPOSITORY / library}: must be a library of")


@pytest.mark.parametrize(
    "answer, expected",
    [
        ("1755, 3201, 612.34", {"sm_clock_mhz": 1755, "memory_clock_mhz": 3201, "power_w": 612.34}),
        ("[N/A], 3201, 612.34", {}),
        ("", {}),
    ],
)
def test_clocks_and_power_are_of_each_record(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: str, expected: dict
) -> None:
    """They are asked for while the GPU works; those of the ceilings are in no record."""
    forward, passes = StepCall.__call__, []
    monkeypatch.setattr(StepCall, "__call__", lambda self: forward(passes.append(1) or self))
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho $2 $6 >> {tmp_path}/asked\nwhile true; do echo '{answer}'; sleep 0.01; done\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(Device, "address", lambda self: "0000:0b:00.0")
    monkeypatch.setattr(run, "SETTLING_S", 0.01)
    monkeypatch.setitem(ORIGIN, "sm_clock_mhz", 1980)
    _, path = command(monkeypatch, tmp_path)
    assert len(passes) > 2 * (1 + WARM_UPS + Plan().least)
    for record in read_records(path):
        assert {name: record[name] for name in run.GPU_STATE if name in record} == expected
    assert set((tmp_path / "asked").read_text().splitlines()) == {
        "0000:0b:00.0 --query-gpu=clocks.sm,clocks.mem,power.draw.instant"
    }


def test_block_masks_are_those_of_the_program(libraries: list[StepLibrary]) -> None:
    case = Case(300, 64, "window:100")
    with saved_masks(STEP_DIR / MASK_STEPS[0], {("window:100", 300), ("full", 300)}) as folders:
        benchmark = run.Benchmark(libraries, folders, ORIGIN, Plan(0.0), **STOPWATCH)
        records = benchmark.records(case)
    dense = masks.preset(Problem(seqlen=300, head_dim=64, mask="window:100"))
    assert [record["step"] for record in records] == sorted(MASK_STEPS + SPAN_STEPS)
    for record in records:
        assert record["right"] and record["flops"] == 4 * 64 * 2 * dense.sum()
        assert (record["mask_blocks_active"], record["mask_blocks"]) == (5, 9)
        assert record["mask_form"] == ("row spans" if record["step"] in SPAN_STEPS else "blocks")


@pytest.mark.parametrize(
    "mask", ["full", "causal", "empty", "window:40", "document:5", "prefix:30", "dilated:2", "random:0.5"]
)
def test_spans_of_a_mask(mask: str) -> None:
    dense = masks.preset(Problem(seqlen=200, mask=mask))
    spans, key = row_spans(Case(200, 64, mask), None if mask in DENSE else dense), np.arange(200)
    assert (spans is None) == mask.startswith(("dilated", "random"))
    if spans is not None:
        assert (((spans[:, :1] <= key) & (key < spans[:, 1:])) == dense).all()


# --- The command ----------------------------------------------------------------------------------


def command(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    commit: str = "0123456789ab",
    torch: object = None,
    cases: Sequence[Case] = (SMALL, replace(SMALL, mask="full")),
    steps: Sequence[str] = MMA_STEPS[-1:],
    **options: object,
) -> tuple[int, Path]:
    """make bench with small cases: its exit code and the records."""
    for name, value in {
        "measure_ceilings": lambda _: ORIGIN | {"commit": commit},
        "torch_on_a_gpu": lambda: torch,
        "Plan": partial(Plan, 0.0),
        "all_cases": lambda: cases,
        "Stopwatch": partial(Stopwatch, **STOPWATCH),
    }.items():
        monkeypatch.setattr(run, name, value)
    build = tmp_path / "build"
    build.mkdir(exist_ok=True)
    for name in (name for step in steps for name in (f"lib{step}.so", step)):
        (build / name).unlink(missing_ok=True)
        (build / name).symlink_to(STEP_DIR / name)
    words = SimpleNamespace(
        **{"build": build, "results": tmp_path / "results", "quick": False, "kind": "forward", "only": []} | options
    )
    code = run.run(words)
    (path,) = [*tmp_path.glob("results/*/*"), *build.glob("bench.jsonl")]
    return code, path


def test_recorded_cases_are_not_measured_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys) -> None:
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
    assert printed.count("\n[") == 1 and f"] D=64 N=128 fp16 full: {MMA_STEPS[-1][4:]} " in printed


@pytest.mark.parametrize("changes", [{"commit": "0123456789ab-dirty"}, {"only": ["full"]}])
def test_dirty_or_partial_runs_start_a_new_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changes: dict) -> None:
    for _ in range(2):
        code, path = command(monkeypatch, tmp_path, **changes)
        assert (code, path) == (0, tmp_path / "build" / "bench.jsonl")
        assert len(read_records(path)) == 2 - ("only" in changes)


@pytest.mark.parametrize(
    "target, name, wrong",
    [
        (Inputs, "head", lambda head: lambda *x: [1.01 * y for y in head(*x)]),
        (StepCall, "__call__", lambda call: lambda self: None),
    ],
    ids=["other inputs", "no output"],
)
def test_a_wrong_answer_has_no_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: type, name: str, wrong
) -> None:
    monkeypatch.setattr(target, name, wrong(getattr(target, name)))
    code, path = command(monkeypatch, tmp_path)
    assert code == 1
    for record in read_records(path):
        assert record["right"] is False and "median_ms" not in record


def test_two_builds_are_compared(tmp_path: Path) -> None:
    """Compares the steps that are in both; here both builds are the same."""
    for name in (f"lib{MMA_STEPS[-1]}.so", f"lib{MASK_STEPS[0]}.so"):
        (tmp_path / name).symlink_to(STEP_DIR / name)
    found = builds.compare(tmp_path, STEP_DIR, [SMALL], rounds=1, **STOPWATCH)
    assert {step for step, _ in found} == {MMA_STEPS[-1], MASK_STEPS[0]}
    assert all(0.1 < ratio < 10 for ratio in found.values())
