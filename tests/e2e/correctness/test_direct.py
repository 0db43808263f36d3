"""Steps called directly, with tensors that the command line cannot ask for: step_under_test.c."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.lib.direct import HALVES, PROBLEMS
from tests.lib.kinds import FACTS, FP8_STEPS, HOPPER_STEPS, PERSISTENT_STEPS, SCALAR_STEPS
from tests.lib.programs import RIGHT, STEP_DIR, USAGE, Program
from tests.lib.steps import step_names


def lines_of(step: Program, trial: str) -> list[str]:
    """The line printed for each problem of a trial, or of a half: "padded 0"; no answer may be wrong."""
    if trial != "wide" and not step.takes(64):
        pytest.skip("the head dimensions of these problems are none of its own")
    done = subprocess.run(
        [STEP_DIR / "under_test" / step.name, *trial.split()], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stderr) == (RIGHT, ""), done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    "trial, count", [*HALVES, ("guarded", PROBLEMS), pytest.param("wide", PROBLEMS // 4, marks=pytest.mark.exhaustive)]
)  # padded, with D = 256
def test_same_bits_wherever_the_tensors_lie(step: Program, trial: str, count: int) -> None:
    if trial == "wide" and not step.takes(256):
        pytest.skip("D = 256 is none of its head dimensions")
    lines = lines_of(step, trial)
    assert len(lines) == count and all(line.endswith(": same bits") for line in lines)


def test_odd_strides_are_taken_or_refused_by_name(step: Program) -> None:
    """Four tensors, three strides each, fp16, D = 64, no mask. Copies of 16 bytes need aligned rows."""
    lines = lines_of(step, "strides")
    assert len(lines) == 12
    for line in lines:
        chunk = 16 if step.name in FP8_STEPS and line[0] != "O" else 8
        refused = f": refused: the strides of {line[0]} must be multiples of {chunk} elements in {step.name}"
        assert line.endswith(": same bits" if step.name in SCALAR_STEPS else refused)


@pytest.mark.parametrize("name", SCALAR_STEPS)
def test_scalar_steps_take_rows_that_vectors_do_not_fit(name: str) -> None:
    """Three head dimensions, where other trials have two."""
    lines = lines_of(Program(name), "ragged")
    assert len(lines) == 3 * PROBLEMS // 4 and all(line.endswith(": same bits") for line in lines)


@pytest.mark.parametrize("name", SCALAR_STEPS)
def test_scalar_steps_take_pointers_to_any_element(name: str) -> None:
    lines = lines_of(Program(name), "pointers")
    assert len(lines) == 4 * PROBLEMS // 4 and all(line.endswith(": same bits") for line in lines)


@pytest.mark.parametrize("name", [name for name in step_names() if name not in SCALAR_STEPS])
def test_tensor_core_steps_refuse_pointers_that_16_bytes_cannot_reach(name: str) -> None:
    lines = lines_of(Program(name), "refusals")
    assert len(lines) == 4 * PROBLEMS
    assert all(line.endswith(": cudaErrorMisalignedAddress") for line in lines)


def test_gpus_without_what_a_step_needs_are_refused(step: Program) -> None:
    """The device reports compute capability 7.5, then 7.0, for each problem."""
    lines = lines_of(step, "old-gpu")
    assert len(lines) == 2 * PROBLEMS
    if step.name in SCALAR_STEPS:
        assert set(lines) == {"taken"}
        return
    refused = f"refused: this GPU has compute capability 7.{{}}: {step.name} needs {{}}"
    if step.name in HOPPER_STEPS:
        assert set(lines) == {refused.format(minor, "9.0 (Hopper)") for minor in (5, 0)}
        return
    assert set(lines[::2]) == {"taken", refused.format(5, "8.0 for bf16")}
    assert set(lines[1::2]) == {refused.format(0, "7.5"), refused.format(0, "8.0 for bf16")}


@pytest.mark.parametrize("name", [name for name, facts in FACTS.items() if facts["launches"] == ["attention"]])
def test_tiles_for_less_shared_memory_are_right(name: str) -> None:
    """The device reports 99 KiB per thread block, then 64 KiB, for each problem. A step of several
    kernels has no choice of tiles."""
    lines = lines_of(Program(name), "less-shared")
    assert lines == ["99 KiB: differs by rounding", "64 KiB: differs by rounding"] * PROBLEMS


@pytest.mark.parametrize("name", PERSISTENT_STEPS)
def test_numbers_of_tiles_stay_ints(name: str) -> None:
    """A thread block that finds no more tiles has a number beyond them."""
    refused = "refused: --batch 32769 x --heads 65534 x --seqlen 1: at most 2^31 - 2^16 tiles of queries"
    assert lines_of(Program(name), "most-tiles") == ["taken", refused] * PROBLEMS


def test_an_l2_cache_for_some_heads_changes_no_answer() -> None:
    """Heads are taken in groups whose K and V fit together; the last group is smaller."""
    lines = lines_of(Program(PERSISTENT_STEPS[0]), "l2")
    assert lines == ["with an L2 cache, fp16, D=64 Nq=800 Nkv=200: same bits"]


@pytest.mark.cpu_only("SIMT_SHARED stands for a smaller GPU")
@pytest.mark.parametrize("head_dim", [32, 64, 96, 128, 256])
@pytest.mark.parametrize("shared_kb", [48, 64, 99])
def test_steps_with_little_shared_memory(step: Program, head_dim: int, shared_kb: int, tmp_path: Path) -> None:
    """Either the tile fits, or one line says how much is needed and how much there is."""
    if not step.takes(head_dim):
        pytest.skip(f"{step.name} does not take it")
    options = ["-b", 1, "-H", 2, "-n", 70, "-d", head_dim]
    env = {"SIMT_SHARED": f"{shared_kb}K"}
    done = step.run(*options, env=env)
    if done.returncode == RIGHT:
        _, record = step.solve(tmp_path / "out", *options, env=env)
        assert all(record[f"kernel{i}_shared_bytes"] <= shared_kb << 10 for i in range(1, record["count_launches"] + 1))
        return
    assert done.returncode == USAGE
    assert (head_dim, shared_kb) != (64, 99) or step.name in HOPPER_STEPS
    said = re.fullmatch(rf"{step.name}: --head-dim {head_dim}: .*\n", done.stderr)
    assert said, done.stderr
    needed, limit = map(int, re.search(r"needs (\d+) bytes .* this GPU has (\d+)\n", done.stderr).groups())
    assert needed > limit == shared_kb << 10
