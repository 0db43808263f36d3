"""The mutants of a step: of its kernels and device functions, and of those it calls in headers."""

import re
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.operators import changes
from tests.mutants.source import Part, Source

# Those that hold more than what a step teaches in its own source.
HEADERS = (
    "backward_halves",
    "backward_products",
    "backward_rows",
    "backward_tile",
    "convert",
    "copy_tile",
    "decode_mma",
    "decode_part_places",
    "decode_ring_share",
    "decode_shares_launch",
    "dq_sums",
    "fragments",
    "heads",
    "key_bits",
    "list_plans",
    "mask_plans",
    "mma_tile",
    "partial_tiles",
    "planned_tiles",
    "row_dot",
    "span_plans",
    "store_rows",
    "tile_list",
    "warp",
)
DEVICE = {"__device__", "__global__"}


@dataclass(frozen=True)
class Mutant:
    """One change to one file. The first five fields identify it, even if its line moves."""

    file: str  # relative to the repository
    function: str
    operator: str
    original: str  # the text that is replaced, with single spaces
    occurrence: int  # among mutants with the same four fields, from 1 on
    start: int  # the position of the change, in characters of the file
    end: int
    text: str

    @property
    def name(self) -> str:
        return " | ".join([self.file, self.function, self.operator, self.original, str(self.occurrence)])

    def applied(self, source: str) -> str:
        return source[: self.start] + self.text + source[self.end :]


def steps_of(root: Path) -> list[str]:
    return sorted(path.name.partition("_")[0] for path in (root / "steps").glob("step*_*.cu"))


def step_file(root: Path, step: str) -> str:
    (path,) = (root / "steps").glob(f"{step}_*.cu")
    return str(path.relative_to(root))


def _is_device(source: Source, part: Part) -> bool:
    return bool(DEVICE & {source.word(i) for i in range(part.first, part.body)})


def _examined(root: Path, step: str) -> list[tuple[Source, Part]]:
    """What is mutated for this step: not host code of the step, which only launches, nor functions
    of headers that the step does not reach."""
    path = step_file(root, step)
    own = Source(path, (root / path).read_text())
    chosen = [(own, part) for part in own.parts if not part.is_function or _is_device(own, part)]
    pending = {call for part in own.parts if part.is_function for call in part.calls}
    headers = [Source(path, (root / path).read_text()) for path in (f"common/device/{name}.cuh" for name in HEADERS)]
    texts = {path.stem: path.read_text() for path in (root / "common/device").glob("*.cuh")}
    included, new = set(), {own.text}
    while new:
        names = {name for text in new for name in re.findall(r'#include "device/(\w+)\.cuh"', text)}
        new = {texts[name] for name in names - included if name in texts}
        included |= names
    functions = [
        (header, part)
        for header in headers
        for part in header.parts
        if part.is_function and Path(header.path).stem in included
    ]
    # A kernel is not called, but its name is in the source that launches it.
    pending |= {p.name for h, p in functions if "__global__" in h.between(p.first, p.body) and p.name in own.text}
    reached: set[str] = set()
    while pending - reached:
        new = pending - reached
        reached |= new
        pending |= {call for _, part in functions if part.name in new for call in part.calls}
    chosen += [
        (header, part)
        for header in headers
        for part in header.parts
        if Path(header.path).stem in included and (part.name in reached or not part.is_function)
    ]
    return chosen


def mutants_of(root: Path, step: str) -> list[Mutant]:
    """In the order of the files; the same every time."""
    found, seen = [], {}
    for source, part in _examined(root, step):
        for operator, first, end, text in changes(source, part):
            original = (
                "cp_async_commit ( ) ;"
                if operator.startswith("commit moved")
                else " ".join(source.word(i) for i in range(first, end))
            )
            key = (source.path, part.name, operator, original)
            seen[key] = seen.get(key, 0) + 1
            found.append(Mutant(*key, seen[key], source.tokens[first].start, source.tokens[end - 1].end, text))
    return found


def assigned_mutants(root: Path) -> dict[str, list[Mutant]]:
    """The mutants of every step. A mutant of a header belongs to the first step that reaches it."""
    taken: set[str] = set()
    assigned = {}
    for step in steps_of(root):
        assigned[step] = [m for m in mutants_of(root, step) if m.name not in taken]
        taken |= {m.name for m in assigned[step]}
    return assigned
