"""Counts the instructions of each kernel in a listing of machine code, each line once.

Usage: python3 -m plots.tools.machine_code LISTING, the output of nvdisasm or cuobjdump
"""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

# Both programs name a kernel before its code, in different formats.
KERNEL = re.compile(r"^(?:\.text\.(\w+):|\s*Function : (\w+))")
INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z]\w*)")
# The opcodes that are reported, by name.
WORDS = {
    "mma": ("HMMA",),
    "ldmatrix": ("LDSM",),
    "cp.async": ("LDGSTS",),
    "global": ("LDG", "STG"),
    "shared": ("LDS", "STS"),
    "exp and the like": ("MUFU",),
    "fp32": ("FFMA", "FMUL", "FADD", "FMNMX"),
    "shuffles": ("SHFL",),
    "barriers": ("BAR",),
    "local (spills)": ("LDL", "STL"),
}


def count(listing: str) -> dict[str, Counter]:
    """The opcodes of each kernel, by its mangled name."""
    kernels, opcodes = {}, None
    for line in listing.splitlines():
        if found := KERNEL.match(line):
            opcodes = kernels.setdefault(found[1] or found[2], Counter())
        elif opcodes is not None and (found := INSTRUCTION.match(line)):
            opcodes[found[1]] += 1
    return kernels


def readable(names: list[str]) -> list[str]:
    """Names such as `attention_kernel<__half, 64>`; unchanged without c++filt."""
    try:
        done = subprocess.run(["c++filt", *names], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return names
    plain = (re.sub(r"\((unsigned )?(int|bool)\)", "", line) for line in done.stdout.splitlines())
    return [line.removeprefix("void ").split("(")[0] for line in plain]


def in_words(opcodes: Counter) -> str:
    """`2410 instructions: 128 mma, 40 ldmatrix, ...`, without those that do not occur."""
    counts = {word: sum(opcodes[name] for name in names) for word, names in WORDS.items()}
    parts = ", ".join(f"{number} {word}" for word, number in counts.items() if number)
    return f"{sum(opcodes.values())} instructions{': ' if parts else ''}{parts}"


def main() -> int:
    kernels = count(Path(sys.argv[1]).read_text(encoding="utf-8"))
    if not kernels:
        print(f"machine_code: {sys.argv[1]}: holds no kernel", file=sys.stderr)
        return 1
    for name, opcodes in zip(readable(list(kernels)), kernels.values(), strict=True):
        print(f"{name}: {in_words(opcodes)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
