"""Steps whose softmax does not subtract the running maximum: P = 2^(scale s log2 e).

They are the real sources with three lines changed.
"""

from pathlib import Path

from tests.lib.programs import Program
from tests.lib.source_tree import PLAIN, SourceTree

STEP_02 = "steps/step02_online_softmax.cu"
SOFTMAX = "common/device/fragments.cuh"

PATCHES = {
    "step02": (
        (STEP_02, "const float safe_max = row_max == -INFINITY ? 0.0f : row_max;",
         "const float safe_max = 0.0f;"),
        (STEP_02, "const float rescale = exp2f(m - safe_max);", "const float rescale = 1.0f;"),
        (STEP_02, "  m = row_max;", "  m = safe_max;")),
    "step04": (
        (SOFTMAX, "const float safe_max = row_max == -INFINITY ? 0.0f : row_max;",
         "const float safe_max = 0.0f;"),
        (SOFTMAX, "const float rescale = exp2_approx(m[i][half] - safe_max);",
         "const float rescale = 1.0f;"),
        (SOFTMAX, "m[i][half] = row_max;", "m[i][half] = safe_max;")),
}


def build(directory: Path, step: str, commit: str = "unknown") -> Program:
    """The step without its maximum for the CPU backend, in its own source tree."""
    directory.mkdir(parents=True)
    tree = SourceTree(directory, built="cpu")
    for patch in PATCHES[step]:
        tree.replace(*patch)
    tiles = ", 64, 32" if step == "step02" else ""
    tree.compile_only(step, ", ".join(f"CONFIG<{element}, {head_dim}{tiles}>" for head_dim in (32, 64)
                                      for element in ("__half", "__nv_bfloat16")))
    done = tree.make("BACKEND=cpu", PLAIN, f"COMMIT={commit}", f"build/cpu/{step}")
    assert done.returncode == 0, done.stderr
    return Program(step, tree.root / "build" / "cpu")
