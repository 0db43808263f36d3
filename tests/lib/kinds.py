"""The steps by what their programs say of themselves. To import this runs every program."""

from tests.lib.programs import STEP_DIR
from tests.lib.steps import facts, step_names

FACTS = {name: facts(STEP_DIR / name) for name in step_names()}

# Q, K and V are e4m3.
FP8_STEPS = [name for name, facts in FACTS.items() if facts["fp8"]]
# They compute on CUDA cores: they take any head dimension, and pointers to any element.
SCALAR_STEPS = [name for name, facts in FACTS.items() if facts["needs_compute_capability"] is None]
# They need compute capability 9.0.
HOPPER_STEPS = [name for name, facts in FACTS.items() if facts["needs_compute_capability"] == 90]
# They take any mask, in blocks.
MASK_STEPS = [name for name, facts in FACTS.items() if "blocks" in facts["masks"]]
# They take masks of one span of keys for each query, and no others.
SPAN_STEPS = [name for name, facts in FACTS.items() if "spans" in facts["masks"]]
# Their thread blocks take tiles of queries from a counter in the workspace.
PERSISTENT_STEPS = [name for name, facts in FACTS.items() if facts["workspace_zero"]]
# They use mma.sync, and take no block masks but D = 64, as most tests' problems have.
MMA_STEPS = [
    name
    for name, facts in FACTS.items()
    if name not in MASK_STEPS and facts["needs_compute_capability"] == 75 and 64 in facts["head_dims"]
]
# The first on CUDA cores, on tensor cores, on Hopper, in e4m3, with either form of masks. They stand for all steps where
# host code or the lab is tested, which is the same in all.
EACH_KIND = sorted(
    {
        (facts["needs_compute_capability"], facts["fp8"], *facts["masks"]): name
        for name, facts in reversed(FACTS.items())
    }.values()
)
# It keeps S and P in device memory.
NAIVE = next(name for name, facts in FACTS.items() if facts["intermediate_bytes_per_entry"] > 0)
