"""Prints how long each step is, and exits with 1 if one exceeds the limits.

Usage: python3 -m tests.budget

A step has at most LINES lines and ADDED lines of code that the step before it in the tree does not
have, CHAPTER if its header says that it "opens a chapter", and no function over FUNCTION lines of
code. A header of common/device that no other step includes counts towards it, unless it has the
instructions of PTX (ptx*.cuh) or the words of an earlier step ("As in steps/"). At most EXCEPTIONS steps are longer, whose headers say "Longer than
other steps:" and why.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

LINES, ADDED, CHAPTER, FUNCTION, EXCEPTIONS = 320, 130, 250, 70, 5

ROOT = Path(__file__).parents[1]
SOURCES = {path.name.partition("_")[0]: path for path in sorted(ROOT.glob("steps/step*_*.cu"))}
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)


def headers_of(path: Path) -> set[Path]:
    """The headers of common/device that a file includes, directly or through others."""
    found, new = set(), {path}
    while new:
        names = re.findall(r'^#include "(device/[^"]*)"', new.pop().read_text(), re.MULTILINE)
        new |= {ROOT / "common" / name for name in names} - found
        found |= new
    return found


HEADERS = {step: headers_of(path) for step, path in SOURCES.items()}


def text_of(step: str) -> str:
    """The step, and the headers with words of their own that no other step includes."""
    shared = set().union(*(headers for other, headers in HEADERS.items() if other != step))
    own = sorted(
        path
        for path in HEADERS[step] - shared
        if not path.name.startswith("ptx") and "\n// As in steps/" not in path.read_text()
    )
    return "".join(path.read_text() for path in [SOURCES[step], *own])


def code_of(text: str) -> str:
    lines = COMMENT.sub("", text).splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines if line.strip())


def added_lines(step: str, after: str | None) -> int:
    with tempfile.NamedTemporaryFile("w") as before:
        before.write(code_of(text_of(after)) if after else "")
        before.flush()
        found = subprocess.run(
            ["diff", before.name, "-"], input=code_of(text_of(step)), capture_output=True, text=True, check=False
        )
    return len(re.findall("^>", found.stdout, re.MULTILINE))


def step_before(step: str) -> str | None:
    """As its descriptor says."""
    after = re.search(r'\.after = "(\w+)"', SOURCES[step].read_text())
    earlier = [other for other in SOURCES if other < step]
    return after[1] if after else earlier[-1] if earlier else None


def longest_function(code: str) -> tuple[int, str]:
    """Its lines of code, and its name. It begins in the first column, and so does its last brace."""
    functions = re.finditer(
        r"^\w[^;{}]*?\b(?!__launch_bounds__|__cluster_dims__)(\w+)\([^;{}]*\{\n.*?^\}$", code, re.MULTILINE | re.DOTALL
    )
    return max((len(found[0].splitlines()), found[1]) for found in functions)


def main() -> int:
    failed, exceptions = [], []
    print(f"{'step':8} {'after':8} lines added  longest function")
    for step in SOURCES:
        text, after = text_of(step), step_before(step)
        header = re.sub(r"\n \* ?", " ", text[: text.index("*/")])
        lines, added = len(text.splitlines()), added_lines(step, after)
        longest, name = longest_function(code_of(text))
        most = CHAPTER if "opens a chapter" in header else ADDED
        too_long = lines > LINES or added > most or longest > FUNCTION
        is_exception = "Longer than other steps: " in header
        exceptions += [step] * is_exception
        failed += [step] * (too_long and not is_exception)
        print(
            f"{step:8} {after or '-':8} {lines:5} {added:5}  {longest:3} {name:18}"
            f"{'exception' if is_exception else 'too long' if too_long else ''}".rstrip()
        )
    if failed:
        print(
            f"budget: over {LINES} lines, {ADDED} added lines of code, {CHAPTER} where a chapter opens, or "
            f"{FUNCTION} lines of a function: {', '.join(failed)}",
            file=sys.stderr,
        )
    if len(exceptions) > EXCEPTIONS:
        print(
            f"budget: {len(exceptions)} steps are exceptions, at most {EXCEPTIONS} may be: {', '.join(exceptions)}",
            file=sys.stderr,
        )
    return 1 if failed or len(exceptions) > EXCEPTIONS else 0


if __name__ == "__main__":
    sys.exit(main())
