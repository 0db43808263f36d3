"""Steps whose softmax does not subtract the running maximum: P = 2^(scale s log2 e).

They are the real sources with three lines changed.
"""

from pathlib import Path

from tests.lib.programs import Program
from tests.lib.source_tree import PLAIN, SourceTree
from tests.lib.steps import having, source_of

SHOWN_STEPS = having("real_input")  # one that computes on CUDA cores, one on tensor cores
OWN = f"steps/{source_of(SHOWN_STEPS[0]).path.name}"
SOFTMAX = "common/device/fragments.cuh"

PATCHES = dict(
    zip(
        SHOWN_STEPS,
        (
            (
                (OWN, "const float safe_max = row_max == -INFINITY ? 0.0f : row_max;", "const float safe_max = 0.0f;"),
                (OWN, "const float rescale = exp2f(m - safe_max);", "const float rescale = 1.0f;"),
                (OWN, "  m = row_max;", "  m = safe_max;"),
            ),
            (
                (
                    SOFTMAX,
                    "const float safe_max = row_max == -INFINITY ? 0.0f : row_max;",
                    "const float safe_max = 0.0f;",
                ),
                (SOFTMAX, "const float rescale = exp2_approx(m[i][half] - safe_max);", "const float rescale = 1.0f;"),
                (SOFTMAX, "m[i][half] = row_max;", "m[i][half] = safe_max;"),
            ),
        ),
        strict=True,
    )
)


def build(directory: Path, step: str, commit: str = "unknown") -> Program:
    """The step without its maximum for the CPU backend, in its own source tree."""
    directory.mkdir(parents=True)
    tree = SourceTree(directory, built="cpu")
    for patch in PATCHES[step]:
        tree.replace(*patch)
    tree.compile_only(step, 32, 64, element="")
    return tree.step(step, PLAIN, f"COMMIT={commit}")
