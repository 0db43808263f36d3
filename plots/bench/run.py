"""Measures the steps and the baselines in interleaved runs, in one process on one GPU.

Usage: python3 -m plots.bench.run [--quick] [--kind KIND] [--only WORD ...] BUILD RESULTS (`make bench` builds it)

Adds records to RESULTS/GPU/bench_COMMIT.jsonl, of other kinds than forward to RESULTS/KIND, and skips cases that
it has. With --quick, --only or uncommitted changes, writes a new BUILD/bench.jsonl instead.
docs/measuring.md explains the method.

Exit codes: 0 success, 1 a wrong answer, 2 bad usage, 3 device failed, 77 no GPU.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path

import numpy as np

from plots.bench.backward import (
    BACKWARD_BASELINES,
    BackwardBaseline,
    BackwardCall,
    BackwardInputs,
    BackwardOutputs,
    ExactGradients,
)
from plots.bench.cases import DENSE, Case, all_cases, backward_cases, quick_cases
from plots.bench.contestants import (
    BASELINES,
    SEED,
    BaselineCall,
    Contestant,
    Inputs,
    Mask,
    Outputs,
    StepCall,
    UsageError,
    load_fa3,
    saved_masks,
    torch_on_a_gpu,
)
from plots.bench.decode import (
    DECODE_BASELINES,
    IDENTITY,
    DecodeBenchmark,
    decode_cases,
    decode_line,
    quick_decode_cases,
)
from plots.bench.device import Device, DeviceError, StepLibrary
from plots.bench.exact import Exact
from plots.bench.turns import QUICK, Measured, Plan, Stopwatch, measure, reason_of
from tests.lib.steps import source_of

RIGHT, WRONG, USAGE, FAILED = 0, 1, 2, 3
FULL = "full of "  # and a step: with a full block mask, interleaved with the measured mask
FP16 = "fp16"  # the step that one in e4m3 builds on, on the same numbers in fp16
# Fields of a record, and what nvidia-smi calls them. It is read SETTLING_S after the load begins.
GPU_STATE = {"sm_clock_mhz": "clocks.sm", "memory_clock_mhz": "clocks.mem", "power_w": "power.draw.instant"}
SETTLING_S, EVERY_MS, STARTING_S, QUEUED_MS = 0.1, 10, 2.0, 10
CASE_FIELDS = ("kind", "seqlen", "head_dim", "mask", "dtype")  # identify a case in a file


def attended(case: Case, mask: Mask | None, queries: np.ndarray) -> np.ndarray:
    """The keys that the queries attend, as bool [queries, keys]."""
    if case.mask in DENSE:
        last = queries if case.mask == "causal" else np.full_like(queries, case.seqlen - 1)
        return np.arange(case.seqlen) <= last[:, None]
    return mask.dense[queries]


def entries_of(case: Case, mask: Mask | None) -> int:
    """The number of unmasked entries of all heads."""
    n = case.seqlen
    one_head = {"full": n * n, "causal": n * (n + 1) // 2}.get(case.mask)
    return case.batch * case.heads * (one_head or int(np.count_nonzero(mask.dense)))


def gpu_states(device: Device, calls: dict[str, tuple[Callable[[], object], float]]) -> dict:
    """By name, fields of records: clocks and power while the GPU repeats a call of so many
    milliseconds. None of them if unknown."""
    if not (address := device.address()):
        return {}
    states, told = {}, b""
    with subprocess.Popen(
        f"exec nvidia-smi -i {address} --format=csv,noheader,nounits -lms {EVERY_MS} "
        f"--query-gpu={','.join(GPU_STATE.values())}",
        shell=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as query:
        os.set_blocking(query.stdout.fileno(), False)
        for name, (call, call_ms) in calls.items():
            begin = time.monotonic()
            while (waited := time.monotonic() - begin) < SETTLING_S or (
                b"\n" not in told and query.poll() is None and waited < STARTING_S
            ):
                for _ in range(max(1, int(QUEUED_MS / call_ms))):
                    call()
                device.synchronize()
                told += query.stdout.read() or b""
            lines = told.splitlines(keepends=True)
            told = b"".join(line for line in lines[-1:] if not line.endswith(b"\n"))
            complete = [line for line in lines if line.endswith(b"\n")]
            try:
                values = map(json.loads, complete[-1].split(b","))
                states[name] = dict(zip(GPU_STATE, values, strict=True))
            except (IndexError, ValueError):
                pass
        query.terminate()
    return states


class Benchmark:
    """The state shared by all cases. `masks` has the folders of block masks, by mask and length."""

    def __init__(
        self,
        steps: list[StepLibrary],
        masks: dict[tuple, Path],
        origin: dict,
        plan: Plan,
        torch=None,
        baselines: Sequence[tuple] = BASELINES,
        **stopwatch: object,
    ) -> None:
        self.steps, self.masks, self.torch, self.plan = steps, masks, torch, plan
        self.baselines = baselines if torch else ()
        self.origin = origin
        self.device = Device(steps[0])
        self.stopwatch = Stopwatch(self.device, **stopwatch)
        self.mask = lru_cache(maxsize=2)(self._mask)

    def _mask(self, name: str, seqlen: int) -> Mask:
        return Mask(self.device, self.masks[name, seqlen], Case(seqlen, 64, name))

    def records(self, case: Case) -> list[dict]:
        """The records of all steps and baselines. The record of a failure has its reason; wrong
        answers are not timed."""
        takes_mask = any(step.takes_block_masks for step in self.steps)
        mask = self.mask(case.mask, case.seqlen) if takes_mask else None
        inputs, outputs, exact = self.judged(case, mask)
        contestants, verdicts, failed = [], {}, []
        for fields, build in self.builders(inputs, outputs, mask):
            outputs.poison()
            try:
                contestant = build()
                contestant.call()
                self.device.synchronize()
                verdicts[contestant.name] = exact.judge(contestant.result_of)
                contestants.append(contestant)
            except DeviceError as error:
                raise DeviceError(f"{case}: {fields}: {error}") from error
            except Exception as error:  # pylint: disable=broad-except
                failed.append((fields, reason_of(error)))
        found = self.times(inputs, contestants, verdicts)
        problem = {
            **self.origin,
            **case.fields(),
            "seed": SEED,
            "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "flops": case.flops_per_entry() * entries_of(case, mask),
        }
        states = gpu_states(
            self.device,
            {
                x.name: (x.call, found.times[x.name].summary()["median_ms"])
                for x in contestants
                if x.name in found.times
            },
        )
        records = [
            {
                **contestant.fields,
                **problem,
                **verdicts[contestant.name],
                **time_fields(contestant, contestants, found, problem["flops"]),
                **states.get(contestant.name, {}),
            }
            for contestant in contestants
        ]
        return records + [{**fields, **problem, "failed": reason} for fields, reason in failed]

    def backward_inputs(self, case: Case, mask: Mask | None) -> BackwardInputs:
        """With O and LSE of the first step whose library can compute them."""
        masked = case.mask not in DENSE
        step = next((step for step in self.steps if step.takes_block_masks == masked), self.steps[0])
        return BackwardInputs(self.device, step, case, mask if step.takes_block_masks else None)

    def judged(self, case: Case, mask: Mask | None) -> tuple:
        """The inputs and outputs of a case, and what judges results."""
        if case.kind == "backward":
            inputs = self.backward_inputs(case, mask)
            return inputs, BackwardOutputs(self.device, case), ExactGradients(case, inputs, mask)
        inputs = Inputs(self.device, case)
        return (
            inputs,
            Outputs(self.device, case),
            Exact(case, inputs.head, lambda queries: attended(case, mask, queries)),
        )

    def builders(
        self, inputs: Inputs, outputs: Outputs, mask: Mask | None
    ) -> Iterator[tuple[dict, Callable[[], Contestant]]]:
        """Builders of the steps and baselines that can run the case, with fields for a failure."""
        case = inputs.case
        step_call, baseline_call = (
            (BackwardCall, BackwardBaseline) if case.kind == "backward" else (StepCall, BaselineCall)
        )
        for step in self.steps:
            if (
                case.takes_step(step.name)
                and (case.mask in DENSE or step.takes_block_masks)
                and (step.takes_e4m3 == (case.dtype == "e4m3"))
            ):
                yield (
                    {"step": step.name},
                    lambda step=step: step_call(
                        step, inputs, outputs, mask if step.takes_block_masks else None
                    ).contestant(entries_of(case, mask)),
                )
        for short, name, takes, build in self.baselines:
            if takes(case):
                fields = {"baseline": name, "short": short}
                yield (
                    fields,
                    lambda fields=fields, build=build: baseline_call(self.torch, inputs, build).contestant(fields),
                )

    def times(self, inputs: Inputs, contestants: list[Contestant], verdicts: dict) -> Measured:
        """Times those that are right. A step with a block mask also runs the full mask; beside e4m3
        runs the step in fp16 that it builds on."""
        calls = {x.name: x.call for x in contestants if verdicts[x.name]["right"]}
        for x in contestants:
            if inputs.case.mask != "full" and x.name in calls and "mask_blocks" in x.fields:
                full, mask = replace(inputs.case, mask="full"), self.mask("full", inputs.case.seqlen)
                of_full = self.backward_inputs(full, mask) if full.kind == "backward" else Inputs(self.device, full)
                calls[FULL + x.name] = type(x.call)(x.call.step, of_full, x.call.outputs, mask)
        before = {source_of(step.name).after for step in self.steps if step.takes_e4m3}
        for step in self.steps:
            if inputs.case.dtype == "e4m3" and step.name in before and not step.takes_e4m3:
                in_fp16 = Inputs(self.device, replace(inputs.case, dtype="fp16"))
                outputs = Outputs(self.device, in_fp16.case)
                calls[FP16] = StepCall(step, in_fp16, outputs)
        return measure(calls, self.stopwatch, self.plan)


def time_fields(contestant: Contestant, all_of_them: list[Contestant], found: Measured, flops: int) -> dict:
    """Fields of a record: its times, and its speedup over each of the others by rounds."""
    own = found.times.get(contestant.name)
    if own is None:
        reason = found.failed.get(contestant.name)
        return {"failed": reason} if reason else {}
    others = [FP16, *(x.name for x in all_of_them if "short" in x.fields)]
    fields = own.summary()
    fields["tflops"] = flops / fields["median_ms"] * 1e-9
    for name in others:
        if name in found.times and name != contestant.name:
            fields |= own.speed_over(name, found.times[name])
    if full := found.times.get(FULL + contestant.name):
        fields |= own.speed_over("full", full)
    return fields


# --- The file and the screen ----------------------------------------------------------------------


def present(path: Path, names: Sequence[str]) -> set[tuple]:
    """The cases that have records in a file, by the fields that identify them."""
    if not path.exists():
        return set()
    try:
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except ValueError as error:
        raise RuntimeError(f"{path}: has a line that was cut off; remove it: {error}") from error
    return {tuple(record[name] for name in names) for record in records}


def line_of(case: Case, records: list[dict]) -> str:
    """A line with the TFLOP/s of each step and baseline."""
    told = []
    for record in records:
        name = record.get("short") or record["step"].removeprefix("step")
        told.append(
            f"{name} "
            + ("FAILED" if "failed" in record else f"{record['tflops']:.4g}" if "tflops" in record else "WRONG")
        )
    return f"{case}: {', '.join(told)}"


def measure_ceilings(program: Path) -> dict:
    """The record of a step's --ceilings, which also names the GPU and the commit."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "record"
        done = subprocess.run([program, "--ceilings", "--json", path], check=False)
        if done.returncode != 0:
            sys.exit(done.returncode)
        return json.loads(path.read_text(encoding="utf-8"))


def short_name(device: str) -> str:
    """The folder name of a GPU: `h200` for "NVIDIA H200"."""
    return "_".join(re.sub(r"nvidia|geforce|tesla|\W+", " ", device.lower()).split())


def output_of(words: argparse.Namespace, origin: dict) -> Path:
    if words.quick or words.only or origin["commit"].endswith(("-dirty", "unknown")):
        path = words.build / "bench.jsonl"
        path.unlink(missing_ok=True)
        return path
    folder = short_name(origin["device"]) if words.kind == "forward" else words.kind
    path = words.results / folder / f"bench_{origin['commit']}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def libraries_in(build: Path) -> list[Path]:
    """Those of the steps whose programs are there, too."""
    return sorted(
        path for path in build.resolve().glob("libstep*.so") if path.with_name(path.stem.removeprefix("lib")).exists()
    )


BASELINES_OF = {"forward": BASELINES, "backward": BACKWARD_BASELINES, "decode": DECODE_BASELINES}


def cases_of(kind: str, quick: bool) -> list:
    if kind == "decode":
        return quick_decode_cases() if quick else decode_cases()
    if quick:
        return quick_cases(kind)
    return backward_cases() if kind == "backward" else all_cases()


def run(words: argparse.Namespace) -> int:
    paths = libraries_in(words.build)
    if not paths:
        raise RuntimeError(f"{words.build}: has no libraries; make libraries BACKEND=cuda")
    steps = [step for step in map(StepLibrary, paths) if step.kind == words.kind]
    torch, baselines = torch_on_a_gpu(), BASELINES_OF[words.kind]
    if torch is not None and (why := load_fa3(torch)):
        print(f"bench: FlashAttention-3 is not compared: {why}")
        baselines = [baseline for baseline in baselines if not baseline[0].startswith("fa3")]
    programs = {step.name: words.build.resolve() / step.name for step in steps}
    origin = {name: value for name, value in measure_ceilings(programs[steps[0].name]).items() if name not in GPU_STATE}
    if torch is not None:
        origin |= {"torch": torch.__version__, "cudnn": str(torch.backends.cudnn.version())}
    if torch is not None and any(short == "fa3" for short, *_ in baselines):
        origin["fa3_commit"] = os.environ.get("FA3_COMMIT", "unknown")
    path = output_of(words, origin)
    names = IDENTITY if words.kind == "decode" else CASE_FIELDS
    there = present(path, names)
    cases = [
        case
        for case in cases_of(words.kind, words.quick)
        if tuple(getattr(case, name) for name in names) not in there and set(words.only) <= set(str(case).split())
    ]
    print(
        f"bench: {', '.join(step.name for step in steps)} on {origin['device']}, commit "
        f"{origin['commit']}: {len(cases)} cases, {len(there)} are in {path}"
    )
    if torch is None:
        print("bench: PyTorch not found, or it finds no GPU: the steps are measured alone")
    started, wrong, told_by = time.monotonic(), 0, decode_line if words.kind == "decode" else line_of
    with ExitStack() as stack:
        masked = [step.name for step in steps if step.takes_block_masks]
        wanted = {(mask, case.seqlen) for case in cases for mask in ("full", case.mask)} if masked else set()
        folders = stack.enter_context(saved_masks(programs[masked[0]], wanted)) if masked else {}
        plan = QUICK if words.quick else Plan()
        benchmark = (
            DecodeBenchmark(steps, origin, plan, torch, baselines)
            if words.kind == "decode"
            else Benchmark(steps, folders, origin, plan, torch, baselines)
        )
        for number, case in enumerate(cases, 1):
            records = benchmark.records(case)
            with path.open("a", encoding="utf-8") as file:  # one write for all records of a case
                file.write("".join(json.dumps(record) + "\n" for record in records))
            wrong += sum(record.get("right") is False for record in records)
            print(f"[{number}/{len(cases)}, {time.monotonic() - started:.0f} s] {told_by(case, records)}", flush=True)
    print(f"bench: {path}")
    return WRONG if wrong else RIGHT


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path, help="where libstepNN.so and the programs are")
    parser.add_argument("results", type=Path, help="gets a folder for each GPU")
    parser.add_argument("--quick", action="store_true", help="a few cases, half a minute")
    parser.add_argument("--kind", default="forward", choices=BASELINES_OF, help="forward, backward or decode steps")
    parser.add_argument(
        "--only", nargs="*", default=[], metavar="WORD", help="cases with all of these words, such as D=128 causal"
    )
    try:
        return run(parser.parse_args())
    except UsageError as error:
        print(f"bench: {error}", file=sys.stderr)
        return USAGE
    except (DeviceError, OSError, RuntimeError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
