"""What a mutant changes: each operator finds its places in one function or declaration.

An operator yields changes (name, first, end, text): the text replaces tokens first .. end - 1.
"""

from collections.abc import Iterator

from tests.mutants import expressions
from tests.mutants.expressions import Function
from tests.mutants.source import Part, Source

Change = tuple[str, int, int, str]

BARRIERS = {"__syncthreads", "__syncwarp"}
WAITS = {"cp_async_wait", "wgmma_wait", "tma_store_wait"}  # for all but the latest groups
ASYNC = WAITS | {"cp_async_commit"}
# Moving a commit past one of these changes the group it closes or the wait for it.
COPIES_AND_WAITS = {"copy_tile", "cp_async_wait"}
COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": None, "!=": None}
CHOICES = {"min", "max", "fmaxf"}


def barriers(f: Function) -> Iterator[Change]:
    for first, end in f.statements:
        if f.word(first) in BARRIERS:
            yield "barrier removed", first, end, ";"


def waits(f: Function) -> Iterator[Change]:
    for first, end in f.statements:
        if f.word(first) == "mbarrier_wait":  # its last argument is the parity
            comma, i = first, first + 2
            while i < end - 2:
                comma = i if f.word(i) == "," else comma
                i = f.partner.get(i, i) + 1 if f.word(i) in "([{" else i + 1
            yield "wrong phase", comma + 1, end - 2, f"({f.between(comma + 1, end - 2)}) ^ 1"
        if f.word(first) in WAITS:
            close = next(k for k in range(first, end) if f.word(k) == "(") - 1
            yield "wait removed", first, end, ";"
            yield "wait weakened", first + 2, close, f"({f.between(first + 2, close)}) + 1"


def commits(f: Function) -> Iterator[Change]:
    others = [(first, end) for first, end in f.statements if f.word(first) in COPIES_AND_WAITS]
    for first, end in f.statements:
        if f.word(first) != "cp_async_commit":
            continue
        yield "commit removed", first, end, ";"
        before = [other for other in others if other[1] <= first]
        after = [other for other in others if other[0] >= end]
        commit = f.between(first, end)
        if before:
            at = before[-1][0]
            yield "commit moved up", at, end, f"{commit} {f.between(at, first)} ;"
        if after:
            until = after[0][1]
            yield "commit moved down", first, until, f"; {f.between(end, until)} {commit}"


def statements(f: Function) -> Iterator[Change]:
    for first, end in f.statements:
        if f.word(first) not in BARRIERS | ASYNC:
            yield "statement removed", first, end, ";"


def conditions(f: Function) -> Iterator[Change]:
    for i in range(f.first, f.end):
        if i in f.static_asserts:
            continue
        if f.word(i) in COMPARISONS and f.is_comparison(i):
            first, end = f.operands(i)
            yield "condition never holds", first, end, "false"
            if i not in f.loop_conditions:  # the loop would never end
                yield "condition always holds", first, end, "true"
            if COMPARISONS[f.word(i)]:
                yield (
                    "bound off by one",
                    first,
                    end,
                    f"{f.between(first, i)} {COMPARISONS[f.word(i)]} {f.between(i + 1, end)}",
                )
        elif f.is_flag(i):
            yield "condition never holds", i, i + 1, "false"
            yield "condition always holds", i, i + 1, "true"


def choices(f: Function) -> Iterator[Change]:
    for i in range(f.first, f.end):
        if f.word(i) in CHOICES and f.word(i + 1) == "(":
            for first, end in f.arguments(i + 1):
                kept = f"({f.between(first, end)})"
                yield f"{f.word(i)}() dropped", i, f.partner[i + 1] + 1, kept


def indices(f: Function) -> Iterator[Change]:
    for first, end in sorted(set(f.index_expressions())):
        for sign in "+-":
            yield f"index {sign} 1", first, end, f"({f.between(first, end)}) {sign} 1"


def swaps(f: Function) -> Iterator[Change]:
    for group in f.buffer_groups():
        names = sorted({f.word(i) for i in group})
        for i in group:
            other = names[(names.index(f.word(i)) + 1) % len(names)]
            if len(names) > 1 and not f.is_declared(i):
                yield "buffer swapped", i, i + 1, other


def factors(f: Function) -> Iterator[Change]:
    """Terms that are one floating-point scalar: a rescale, a scale, a maximum."""
    for i in range(f.first, f.end):
        if f.word(i) not in f.floats or f.word(i + 1) in (".", "[", "("):
            continue
        if f.word(i - 1) in ("*", "-") and f.ends_operand(i - 2):
            yield "factor dropped" if f.word(i - 1) == "*" else "term dropped", i - 1, i + 1, ""
        elif f.word(i + 1) == "*":
            yield "factor dropped", i, i + 2, ""


def paddings(source: Source, part: Part) -> Iterator[Change]:
    """The padding of arrays' rows, and constants that are a sum: both are for padding."""
    for i in range(part.first + 1, part.end - 3):
        word = source.word
        array = word(i - 1) == "[" and word(i + 3) == "]"
        constant = word(i - 1) == "=" and word(i + 3) == ";" and not part.is_function
        if word(i + 1) == "+" and (array or constant) and expressions.is_size(word(i)):
            yield "padding removed", i + 1, i + 3, ""


OF_FUNCTIONS = (barriers, waits, commits, statements, conditions, choices, indices, swaps, factors)


def changes(source: Source, part: Part) -> Iterator[Change]:
    """Every change to one function or declaration, in a fixed order."""
    yield from paddings(source, part)
    if part.is_function:
        function = Function(source, part)
        for operator in OF_FUNCTIONS:
            yield from operator(function)
