"""Cells of a notebook that hold a changed kernel: %%step after=04, or an exercise: %%step exercise=ex05."""

import html
import linecache
import re
import shlex
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass

from . import gallery
from .gallery import BuildError, StepError
from .report import Lab
from .steps import Step, build, step

# What a cell is checked with, unless it names options: whole tiles; incomplete ones, masked, and grouped heads.
CASES = ("-n 256 -H 1", "-n 100 -k 133 -G 1 --mask causal")
DECODE_CASES = ("-k 256", "-b 2 -n 3 -H 4 -G 2 --lengths 133,70")
LIMIT = "--time-limit=30"  # seconds, of a kernel that never ends
CELL = "cell.cu"  # what the compiler and the lab call a cell
IS_STEP = re.compile(r"^const Step step = ", re.MULTILINE)
USAGE = "must begin with after=NN, the step that the cell changes, or exercise=exNN; options of the program may follow"


def load(shell: object) -> None:
    """Adds the magics to IPython."""
    shell.register_magic_function(cell_magic, "cell", "step")
    shell.register_magic_function(lambda line: source_magic(shell, line), "line", "step_source")


def source_magic(shell: object, line: str) -> None:
    """%step_source 04 writes the next cell with the source of a step, %step_source 04 NAME with that of a function
    or structure, and %step_source ex05 with the file that an exercise starts from."""
    name, *wanted = line.split() or [""]
    if name.startswith(("ex", "broken")):
        text = _classroom("start", name)
        print(next((gallery.root() / "steps/exercises").glob(f"{name}_*.md")).read_text())
        shell.set_next_input(f"%%step exercise={name}\n{text}")
        return
    text = source_of(name)
    for part in wanted:
        found = [item for item in definitions(text) if item.name == part]
        if not found:
            raise StepError(f"{part}: step {name} has {', '.join(item.name for item in definitions(text))}")
        text = "\n\n".join("\n".join(text.splitlines()[item.first : item.end]) for item in found)
    shell.set_next_input(f"%%step after={name}\n{text}")


def cell_magic(line: str, cell: str) -> object:
    """%%step"""
    first, _, options = line.partition(" ")
    kind, _, name = first.partition("=")
    if kind == "exercise" and name:
        with tempfile.NamedTemporaryFile("w", suffix=".cu") as file:
            file.write(cell)
            file.flush()
            print(_classroom("check", name, file.name), end="")
        with suppress(BuildError):  # which the check has told; programs of chapter 0 are not examined
            return examined(name, cell, spliced("", cell, ""), options) if IS_STEP.search(cell) else None
        return None
    if kind != "after" or not name:
        raise StepError(f"%%step {line}: {USAGE}")
    base = step(name)
    return examined(name, cell, spliced(base.source, cell, str(base.path.relative_to(gallery.root()))), options, base)


def source_of(name: str) -> str:
    """The source of a step without the marks of what its page shows."""
    return re.sub(r"^ *// \[\w+\]\n", "", step(name).source, flags=re.MULTILINE)


def _classroom(*words: str) -> str:
    words, root, env = (sys.executable, "steps/exercises/classroom.py", *words), gallery.root(), gallery.environment()
    done = subprocess.run(words, cwd=root, env=env, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise StepError((done.stderr.strip().splitlines() or ["classroom.py failed"])[-1])
    return done.stdout


# --- A cell with parts of a step ------------------------------------------------------------------------


@dataclass
class Definition:
    """Lines first .. end - 1 of a source, which define a function, a structure or a variable."""

    name: str
    head: str
    first: int
    end: int


def definitions(text: str) -> list[Definition]:
    """What a source defines outside of functions, with the comments before it; clang-format's layout is assumed
    nowhere, but each definition must begin on a line of its own."""
    code = re.sub(r"/\*.*?\*/", lambda match: re.sub(r"[^\n]", " ", match[0]), text, flags=re.DOTALL)
    lines = [re.sub(r"""//.*|(["'])(?:\\.|(?!\1).)*\1""", "", line) for line in code.split("\n")]
    originals, found, start, depth, body = text.split("\n"), [], None, 0, ""
    for number, line in enumerate(lines):
        if start is None and (not line.strip() or line.startswith("#")):
            continue
        start = number if start is None else start
        depth += sum(line.count(c) for c in "({") - sum(line.count(c) for c in ")}")
        body += line + "\n"
        if depth == 0 and line.rstrip().endswith((";", "}")):
            while start > 0 and re.match(r" ?\*|/\*|//", originals[start - 1]):
                start -= 1
            head = " ".join(body.partition("{")[0].partition(";")[0].split())
            found.append(Definition(_name(head), head, start, number + 1))
            start, body = None, ""
    if start is not None:
        raise StepError(f"{CELL}:{start + 1}: what begins here does not end; look for a missing semicolon or brace")
    return found


def _name(head: str) -> str:
    """Of `template <...> __global__ void __launch_bounds__(N) name(...)`, `struct name` or `constexpr int name = ...`."""
    head = re.sub(r"^template <[^()]*?>(?= )", "", head)
    head = re.sub(r"__launch_bounds__\(.*?\)|__align__\(.*?\)|alignas\(.*?\)", "", head)
    if found := re.match(r"\s*(?:struct|enum|union) (?:class )?(\w+)", head):
        return found[1]
    words = re.findall(r"\w+", re.split(r"[=([]", head)[0])
    return words[-1] if words else ""


def spliced(base: str, cell: str, file: str) -> str:
    """The base, the text of a file, with the definitions of the cell in place of its own. What the base does not
    define comes before the first that it does. A cell with a descriptor is a whole file. Lines keep their numbers in
    the cell and in the file."""
    if IS_STEP.search(cell):
        return f'#line 1 "{CELL}"\n{cell}'
    own, known = definitions(cell), definitions(base)
    lines, mine = base.split("\n"), cell.rstrip("\n").split("\n")
    places: dict[int, Definition] = {}
    inside = {number for item in own for number in range(item.first, item.end)}
    fresh = [f'#line {n + 1} "{CELL}"\n{line}' for n, line in enumerate(mine) if line[:1] == "#" and n not in inside]
    for item in own:
        same = [other for other in known if other.head == item.head]
        same = same or [other for other in known if other.name == item.name]
        if len(same) > 1:
            raise StepError(f"{item.name}: the step defines several, and the cell must keep the types of one of them")
        if same:
            places[known.index(same[0])] = item
        else:
            fresh += [f'#line {item.first + 1} "{CELL}"', *mine[item.first : item.end]]
    if not places:
        raise StepError(f"the cell defines nothing that the step has: {', '.join(item.name for item in known)}")
    for at in sorted(places, reverse=True):
        old, new = known[at], places[at]
        text = [f'#line {new.first + 1} "{CELL}"', *mine[new.first : new.end], f'#line {old.end + 1} "{file}"']
        lines[old.first : old.end] = (fresh if at == min(places) else []) + text
    return "\n".join([f'#line 1 "{file}"', *lines])


# --- What a cell shows ----------------------------------------------------------------------------------


@dataclass
class Examined:
    """A cell: `own` is its Step, `lab` what a run of it showed, and `base` the same of the step that it changes."""

    own: Step
    lab: Lab
    base: Lab | None
    options: str
    cell: str

    def __str__(self) -> str:
        said = [f"{self.lab.verdict()} ({self.options})", self.lab.why.rstrip(), *map(str, self.lab.findings)]
        if self.base:
            changes = self.lab.compare(self.base).items()
            said += [f"{name:28} {before:>12} -> {after}" for name, (before, after) in changes]
            said += [] if changes else [f"all counts are those of {self.base.step}"]
        return "\n".join(filter(None, said))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>{self.lab.annotated(self.cell, CELL)}"


def examined(name: str, cell: str, text: str, options: str = "", base: Step | None = None) -> Examined:
    """Builds a cell, which became this text, and runs it with the options, or with CASES until one shows something. Its
    counts, if it was not stopped before any, are compared with those of `base`, the step that it changes."""
    lines = cell.splitlines(True)
    linecache.cache[str(gallery.root() / CELL)] = len(cell), None, lines, CELL  # where reports find its text
    try:
        own = build(f"cell_{name}.cu", text)
    except BuildError as error:
        at = re.match(rf"{CELL}:(\d+):", str(error))
        raise BuildError(f"{error}\n{lines[int(at[1]) - 1].rstrip()}" if at else str(error)) from None
    dims = own.facts["head_dims"]
    dim = "" if dims == "any" or 64 in dims else f" -d {dims[-1]}"
    cases = DECODE_CASES if own.facts["kind"] == "decode" else CASES
    for case in [options] if options.strip() else [case + dim for case in cases]:
        lab = own.lab(LIMIT, case)
        if not lab.right or lab.findings:
            break
    return Examined(own, lab, base.lab(LIMIT, case) if base and lab.lines else None, " ".join(shlex.split(case)), cell)
