"""Which instantiations of a step's kernel are compiled: a few instead of all, to save time."""

import re

# They need compute capability 9.0.
HOPPER_STEPS = ("step07", "step08", "step09", "step10", "step11", "step12")
# One configuration for each head dimension.
MMA_STEPS = ("step02b", "step02c", "step03", "step04", *HOPPER_STEPS)
# The configurations that step_under_test.c calls; "" is that of pairs of warps. The order is the
# order of selection.
CALLED = {
    "step02": ("64, 64, 32", "128, 64, 32"),
    **dict.fromkeys(MMA_STEPS, ("64", "128")),
    "step06": ("64, true", "64, false", "128, true", "128, false", ""),
    "step11": ("64, true", "64, false", "128, true", "128, false"),
    "step05": ("64, 2", "128, 2"),
}
TABLE = re.compile(r"(static constexpr KernelConfig<[\w, ]*> CONFIGS\[\] = \{).*?(\};)", re.DOTALL)


def called_configs(step: str) -> str:
    return ", ".join(f"CONFIG<{element}, {integers}>" if integers else f"PAIR_CONFIG<{element}>"
                     for integers in CALLED[step] for element in ("__half", "__nv_bfloat16"))


def with_configs(text: str, configs: str) -> str:
    """The source of a step with these configurations instead of its own."""
    text, count = TABLE.subn(rf"\g<1>{configs}\g<2>", text)
    assert count == 1, "no table of configurations"
    return text
