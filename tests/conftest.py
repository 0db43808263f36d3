"""All tests: the environment of whoever runs them, such as make with its variables for the makes that
it calls, reaches neither the tests nor the programs that they call."""

import os
import re

KEPT = re.compile(
    "PATH|HOME|USER|LOGNAME|TMPDIR|TERM|XDG_.*|PY.*|VIRTUAL_ENV|LD_.*|CUDA.*|NVIDIA.*"  # of the machine
    "|BACKEND|STEP_DIR|WERROR|OMP_NUM_THREADS|SIMT_THREADS"  # set by the Makefile
    "|PAIRWISE_SEED|MASK_SEED|MASK_CASES|GRADIENT_SEED|GRADIENT_PROBLEMS|DECODE_SEED|DECODE_PROBLEMS|SAME_BITS_RUNS|SIMT_SLOW|FA3_LIBRARY"
)  # read by tests

for name in [name for name in os.environ if not KEPT.fullmatch(name)]:
    del os.environ[name]
