"""--report: right kernels have no findings and keep the limits of tests/lib/limits.py, wrong ones have
findings, and the report is reproducible."""

import re
from pathlib import Path

import pytest

from tests.lib.limits import exceeded
from tests.lib.programs import RIGHT, WRONG, Program, read_records
from tests.lib.source_tree import SourceTree

pytestmark = pytest.mark.cpu_only("a GPU build refuses --report")
exhaustive = pytest.mark.exhaustive

# Whole tiles of keys, of which each step overlaps most, then incomplete ones.
PROBLEMS = [*(f"-H 1 -n 66 -k 128 -d {head_dim}" for head_dim in (32, 64, 96, 128, 256)),
            *(f"-H 1 -n 128 -d {head_dim} -m causal" for head_dim in (64, 128, 256)),
            "-n 77 -k 133 -m causal", "-n 65 -k 40 -d 128 -t bf16",
            "-n 70 -d 32 -G 1 -m causal --layout bnhd",
            # D = 96 and D = 256 have the most sectors a request
            "-H 1 -n 130 -k 133 -d 96", "-H 1 -n 192 -d 96 -m causal -t bf16",
            "-H 1 -n 66 -k 130 -d 256"]


@pytest.mark.parametrize("order", ["random:1", *(pytest.param(order, marks=exhaustive)
                                                for order in ("forward", "reverse", "random:2"))])
def test_right_kernels_have_no_findings_and_keep_their_limits(step: Program, tmp_path: Path,
                                                              order: str) -> None:
    cases, path = tmp_path / "cases", tmp_path / "records"
    cases.write_text("\n".join(PROBLEMS) + "\n")
    said = step.run_right("--report", "-j", path, "--cases", cases, env={"SIMT_ORDER": order}).stdout
    assert said.count("\nfindings   0\n") == said.count(": right: ") == len(PROBLEMS)
    assert {problem: found for problem, record in zip(PROBLEMS, read_records(path), strict=True)
            if (found := exceeded(record))} == {}


def test_counts_agree_with_those_of_the_runtime(step: Program) -> None:
    """The lab counts by source line, the simulator in total."""
    report = step.run_right("-n", 100, "--report").stdout
    whole = int(re.search(r"^ +mma +(\d+) ", report, re.MULTILINE)[1])
    by_kernel = sum(map(int, re.findall(r"^ +(\d+) mma \(", report, re.MULTILINE)))
    assert by_kernel == whole


@pytest.mark.parametrize("part", ["races", "bounds", "init", "alignment", "blocks", "traffic",
                                  "banks", "traffic,banks"])
def test_parts_of_a_report(any_step: Program, part: str) -> None:
    any_step.run_right("-n", 64, f"--report={part}")


# Of each fault the original text, the faulty text, and the finding.
FAULTS = {
    "K not waited for": (
        "    cp_async_wait<0>();  // this thread's copies of K and, in the first iteration, of Q\n", "",
        "use of shared memory that a cp.async is on its way to"),
    "no barrier after K": (
        "    __syncthreads();  // all warps have read K; the buffer can be overwritten by V\n", "",
        "cp.async into what another thread may still read"),
    "K read past its end": (
        "k_global, p.k_strides.row, first_key,\n                                                p.kv_len);",
        "k_global, p.k_strides.row, first_key,\n                                                p.kv_len + 8);",
        "global memory out of bounds"),
    "less shared memory than used": (
        "static constexpr int SHARED_BYTES = 2 *", "static constexpr int SHARED_BYTES = -64 + 2 *",
        "shared memory out of bounds"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_a_finding(tmp_path: Path, fault: str) -> None:
    old, new, text = FAULTS[fault]
    tree = SourceTree(tmp_path, built="cpu")
    tree.replace("steps/step03_mma_shared_kv.cu", old, new)
    tree.compile_only("step03", "CONFIG<__half, 32>")
    assert tree.make("BACKEND=cpu", "build/cpu/step03").returncode == 0
    program = Program("step03", tree.root / "build" / "cpu")
    assert program.run("-n", 100, "-d", 32).returncode in (RIGHT, WRONG, 3)
    done = program.run("-n", 100, "-d", 32, "--report", cwd=tree.root)
    assert done.returncode == WRONG, done.stderr
    assert re.search(rf"^finding    {re.escape(text)}", done.stdout, re.MULTILINE), done.stdout
