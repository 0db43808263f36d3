"""Changed copies of steps, by patches. A patch has one of four kinds:

- exercises/exNN_NAME.patch makes the file that a student starts from, of the solution;
- exercises/brokenNN_NAME.patch puts one fault into a step;
- variants/stepNN_NAME.patch is another form of a step, to be measured beside it;
- walk/stepNN_I_NAME.patch makes stage I of docs/profiling.md of the stage before, the first of the step.

Usage: patches.py PATCH    (prints the source of a variant or stage; `make build/cpu/variants/stepNN_NAME`)
"""

import re
import sys
from pathlib import Path

STEPS = Path(__file__).resolve().parents[1]
REGION = re.compile(r"^ *// \[\w+\]\n", re.MULTILINE)  # which the pages show


def step_source(step: str) -> str:
    text = next(STEPS.rglob(f"{step}_*.cu")).read_text()
    if step.startswith("f"):  # there, marks take the place of empty lines
        return re.sub(r"\n{3,}", "\n\n", REGION.sub("\n", text))
    return REGION.sub("", text)


def patched(text: str, patch: Path | None) -> str:
    """Applies a unified diff. Its old lines must be in the text once; line numbers do not matter."""
    if patch is None:
        return text
    for hunk in re.split(r"^@@.*\n", patch.read_text(), flags=re.MULTILINE)[1:]:
        lines = hunk.splitlines(keepends=True)
        old, new = ("".join(line[1:] for line in lines if line[0] in kept) for kept in (" -", " +"))
        if text.count(old) != 1:
            raise ValueError(f"{patch.name}: these lines must be in the source once:\n{old}")
        text = text.replace(old, new)
    return text


if __name__ == "__main__":
    wanted = Path(sys.argv[1])
    source = step_source(wanted.name.partition("_")[0])
    before = sorted(wanted.parent.glob("*.patch")) if wanted.parent.name == "walk" else []
    for patch in [*(path for path in before if path < wanted), wanted]:
        source = patched(source, patch)
    print(source, end="")
