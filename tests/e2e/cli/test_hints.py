"""What a program says of shuffles and masks if its answer is wrong."""

from pathlib import Path

import pytest

from tests.lib.kinds import SCALAR_STEPS
from tests.lib.programs import RIGHT, WRONG, Program
from tests.lib.source_tree import PLAIN, SourceTree

pytestmark = pytest.mark.cpu_only("only the CPU backend knows what a shuffle did")

FILE = "common/device/warp.cuh"
SUM = "__device__ __forceinline__ float lanes_reduce_sum(float x) {\n"
# Twice the sum, and what the lanes do with the 1 of the lane before, or their own in the first lane of a row.
KEPT = "[&](int kept) { %s return 2 * x; }(__shfl_up_sync(FULL_WARP, 1, 1, LANES))"
# Nothing, instead of what lies past the end of a row.
GUARDED = "[&](float y, int distance) { return threadIdx.x %% LANES + distance < LANES ? y : 0; }(%s)"
# Of each fault how the lanes of a row are summed, and the hint; None: there is none.
FAULTS = {
    "all lanes use what lane 0 alone has": (
        "__shfl_down_sync(FULL_WARP, x, distance, LANES)",
        "x",
        "gave lanes 4-7,12-15,20-23,28-31 their own value back, as the lane to read lies past their 8 "
        "lanes: a reduction leaves its result in the first of 8 lanes only; __shfl_xor_sync gives it to "
        "all; O or LSE depends on it\n",
    ),
    "all lanes get twice the sum of lane 0": (
        "__shfl_down_sync(FULL_WARP, x, distance, LANES)",
        "2 * __shfl_sync(FULL_WARP, x, 0, LANES)",
        None,
    ),
    "lanes that skip what lies past the end": (
        GUARDED % "__shfl_down_sync(FULL_WARP, x, distance, LANES), distance",
        "x",
        "; also let no lane skip what it gets\n",
    ),
    # The differences from the next lane, the last of which has none, are summed with the weights 1 to LANES.
    "twice the sum, by a right exchange with the next lane": (
        "0",
        """[&](float y) {
      x = (threadIdx.x % LANES + 1) * (x - y);
      for (int distance = 1; distance < LANES; distance *= 2) x += __shfl_xor_sync(FULL_WARP, x, distance);
      return 2 * x;
    }("""
        + GUARDED % "__shfl_down_sync(FULL_WARP, x, 1, LANES), 1"
        + ")",
        None,
    ),
    "a loop that such a value makes endless": (
        "__shfl_xor_sync(FULL_WARP, x, distance)",
        KEPT % "for (volatile int i = 1; i < kept; i = i + 1) {}",
        "gave lanes 0,8,16,24 their own value back, as the lane to read lies before their 8 lanes; "
        "with another value the kernel fails\n",
    ),
    "a launch that such a value ends": (
        "__shfl_xor_sync(FULL_WARP, x, distance)",
        KEPT % "if (kept != 1) __trap();",
        "gave lanes 0,8,16,24 their own value back, as the lane to read lies before their 8 lanes; "
        "with another value the kernel fails\n",
    ),
    "another answer in each run": (
        "__shfl_down_sync(FULL_WARP, x, distance, LANES)",
        "__shfl_sync(FULL_WARP, x, 0, LANES) * (2 + clock64() % 1000)",
        None,
    ),
    "active lanes": (
        "__shfl_xor_sync(__activemask(), x, distance)",
        "x",
        "lane 0 reads lane 4, which is not in the mask 0x00000001, that of __activemask(), so the value is undefined\n",
    ),
    "a count of active lanes": (
        "(__popc(__activemask()) == 32) * __shfl_xor_sync(FULL_WARP, x, distance)",
        "x",
        "name the lanes that must take part, as in 0xffffffff; O or LSE depends on it\n",
    ),
    "active lanes that only wait": (
        "(__syncwarp(__activemask()), __shfl_xor_sync(FULL_WARP, x, distance))",
        "2 * x",
        None,
    ),
    "half of the lanes": (
        "__shfl_xor_sync(0x0f0f0f0fu << threadIdx.x % 8 / 4 * 4, x, distance)",
        "x",
        "lane 0 reads lane 4, which is not in the mask 0x0f0f0f0f, so the value is undefined\n",
    ),
}


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """A step that has the fault that the environment names."""
    tree = SourceTree(tmp_path_factory.mktemp("hints"), built="cpu")
    for number, (other, result, _) in enumerate(FAULTS.values(), 1):
        tree.add_fault(
            number,
            FILE,
            SUM,
            f"""{SUM}
  if (FAULTY) {{
    for (int distance = LANES / 2; distance > 0; distance /= 2) x += {other};
    return {result};
  }}
""",
        )
    tree.compile_only(SCALAR_STEPS[-1], 32)
    return tree.step(SCALAR_STEPS[-1], PLAIN)


def test_a_right_answer_needs_no_hint(wrong: Program) -> None:
    done = wrong.run("-n", 40, "-d", 32)
    assert done.returncode == RIGHT and "hint" not in done.stdout + done.stderr


@pytest.mark.parametrize("number", range(1, len(FAULTS) + 1), ids=FAULTS)
def test_a_wrong_answer_comes_with_what_may_explain_it(wrong: Program, number: int) -> None:
    done = wrong.run("-n", 40, "-d", 32, cwd=wrong.path.parents[2], env={"FAULT": str(number)})
    hints = [line for line in done.stderr.splitlines(keepends=True) if line.startswith("  hint: ")]
    _, _, said = list(FAULTS.values())[number - 1]
    assert done.returncode == WRONG
    if said is None:
        assert hints == []
    else:
        assert any(hint.endswith(said) and f" at {FILE}:" in hint for hint in hints), done.stderr


def test_the_runs_that_find_a_hint_report_no_failure_and_leave_the_next_case_alone(
    wrong: Program, tmp_path: Path
) -> None:
    number = list(FAULTS).index("a launch that such a value ends") + 1
    cases = tmp_path / "cases"
    cases.write_text("-n 40 -d 32\n-n 33 -d 32\n")
    done = wrong.run("--cases", cases, env={"FAULT": str(number)})
    assert done.returncode == WRONG and done.stdout.count("WRONG: ") == 2
    assert "simt:" not in done.stderr and "failed" not in done.stdout
