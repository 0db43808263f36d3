"""What is known of each step: its descriptor, in the source and as the program prints it, and the
table beside the source, steps/stepNN_name.toml, for what a descriptor cannot hold."""

import functools
import json
import re
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
STEPS = REPOSITORY / "steps"


def every_step() -> list[str]:
    """One for each source file, in the order of the tutorial."""
    return sorted(path.name.split("_")[0] for path in STEPS.glob("step*_*.cu"))


def step_names(kind: str = "forward") -> list[str]:
    """Those of a kind: forward, backward or decode."""
    return [name for name in every_step() if source_of(name).kind == kind]


@dataclass(frozen=True)
class Source:
    """What a descriptor says of a step; empty if there is no such source."""

    path: Path = STEPS
    title: str = ""
    idea: str = ""
    after: str = ""  # the step that it builds on
    block_masks: bool = False  # it takes them
    kind: str = "forward"  # or backward, or decode
    opens_chapter: bool = False  # as its header says
    nondeterministic: bool = False


def source_of(step: str) -> Source:
    """Reads the descriptor in the source, which needs no build."""
    path = step and next(STEPS.glob(f"{step}_*.cu"), None)
    if not path:
        return Source()
    text = path.read_text(encoding="utf-8")

    def literal(name: str) -> str:
        found = re.search(rf'\n    \.{name} =\s*((?:"[^"]*"\s*)+)', text)
        return "".join(re.findall(r'"([^"]*)"', found[1])) if found else ""

    return Source(
        path,
        literal("title"),
        literal("idea"),
        literal("after"),
        "\n    .block_masks =" in text,
        next((kind for kind in ("backward", "decode") if f"\n    .{kind} =" in text), "forward"),
        "opens a chapter" in text,
        "\n    .nondeterministic = true" in text,
    )


def chapters(kind: str = "forward") -> list[list[str]]:
    """The steps of a kind by chapters; one of a single step is joined with the next."""
    found: list[list[str]] = []
    for step in step_names(kind):
        if source_of(step).opens_chapter and (not found or len(found[-1]) > 1):
            found.append([])
        found[-1].append(step)
    return found


def settings(step: str, section: str) -> dict:
    """A section of the table beside the source of a step; empty if there is none."""
    path = next(STEPS.glob(f"{step}_*.toml"), None)
    return tomllib.loads(path.read_text(encoding="utf-8")).get(section, {}) if path else {}


def inherited(step: str, section: str) -> dict:
    """The same, or that of the nearest step that it builds on."""
    while step and not (found := settings(step, section)):
        step = source_of(step).after
    return found if step else {}


def having(section: str) -> list[str]:
    """The steps whose own table has a section."""
    return [step for step in every_step() if settings(step, section)]


def drawn_in(picture: str) -> str:
    """The step that this picture of plots/figures/pictures.py shows."""
    (step,) = (step for step in having("pictures") if settings(step, "pictures")["draw"] == picture)
    return step


@functools.cache
def facts(program: Path) -> dict:
    """What the program of a step prints of itself: docs/json-records.md lists the fields."""
    done = subprocess.run([program, "--info", "--json", "-"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{program} --info: {done.stderr}")
    return json.loads(done.stdout)
