"""Finds the statements, conditions and indices of a function."""

import re
from collections.abc import Iterator
from functools import cached_property

from tests.mutants.source import Part, Source

INTEGERS = {"int", "int64_t", "unsigned", "size_t"}
# An operand of a comparison ends before any of these.
WEAKER = {
    "&&",
    "||",
    "?",
    ":",
    ",",
    ";",
    "return",
    "(",
    "[",
    "{",
    ")",
    "]",
    "}",
    "=",
    "+=",
    "-=",
    "*=",
    "/=",
    "|=",
    "&=",
}
NO_EXPRESSIONS = {
    "return",
    "if",
    "for",
    "while",
    "else",
    "continue",
    "break",
    "using",
    "const",
    "constexpr",
    "static",
    "extern",
    "static_assert",
    "template",
    "typename",
    "auto",
}
BEFORE_STATEMENTS = {";", "{", "}", "else"}
# Their arguments are no indices.
NO_INDICES = {
    "if",
    "for",
    "while",
    "switch",
    "return",
    "sizeof",
    "min",
    "max",
    "fmaxf",
    "fmaf",
    "__launch_bounds__",
    "__cluster_dims__",
    "static_assert",
    "align",
    "__shfl_xor_sync",
    *INTEGERS,
}
COMPARISONS = {"<=", ">=", "==", "!=", "&&", "||"}
BUFFER = re.compile(
    r"(?:[qkvop]|kv)(_shared|_global|_strides|_vectors)|"
    r"(?:num|index|type|partial)(_strides)"
)
MEMBERS = {"offset": set("qkvo"), "tiles": set("qkvp"), "t": set("qkvo")}


def is_name(word: str) -> bool:
    return re.match(r"[A-Za-z_]", word) is not None


def is_size(word: str) -> bool:
    """A constant or template integer, by the naming convention."""
    return re.fullmatch(r"[A-Z][A-Z_]*", word) is not None


class Function:
    """The body of one function: tokens first .. end - 1 of its file."""

    def __init__(self, source: Source, part: Part) -> None:
        self.part, self.first, self.end = part, part.body, part.end - 1
        self.word, self.partner = source.word, source.partner
        self.between, self.source = source.between, source

    # --- Statements --------------------------------------------------------------------------

    @cached_property
    def statements(self) -> list[tuple[int, int]]:
        """Statements that are an expression: an assignment or a call. With their semicolon."""
        found = []
        for i in range(self.first, self.end):
            if not self._begins_statement(i) or self.word(i) in NO_EXPRESSIONS | {"const"}:
                continue
            end = self._end_of_statement(i)
            if self.word(end - 1) != ";":
                continue  # values between braces
            if (is_name(self.word(i)) and not self.is_declaration(i)) or self.word(i) == "*":
                found.append((i, end))
        return found

    def _begins_statement(self, i: int) -> bool:
        before = self.word(i - 1)
        if before == ")":
            opener = self.word(self.partner[i - 1] - 1)
            return opener in ("if", "for", "while")
        return before in BEFORE_STATEMENTS and not self._in_parentheses(i)

    def _in_parentheses(self, i: int) -> bool:
        return any(first < i < end for first, end in self._for_heads)

    @cached_property
    def _for_heads(self) -> list[tuple[int, int]]:
        return [(i + 1, self.partner[i + 1]) for i in range(self.first, self.end) if self.word(i) == "for"]

    def _end_of_statement(self, i: int) -> int:
        while self.word(i) not in (";", "}"):
            i = self.partner[i] if self.word(i) in ("(", "[", "{") else i
            i += 1
        return i + 1

    def is_declaration(self, i: int) -> bool:
        """Whether a declaration begins here. Types come before names, as in `T *x`, `float4 y`."""
        while self.word(i) in ("const", "extern", "static", "constexpr", "__shared__"):
            i += 1
        if not is_name(self.word(i)) or self.word(i) in NO_EXPRESSIONS - {"auto", "typename"}:
            return False
        after = i + 1
        while self.word(after) in ("*", "&"):
            after += 1
        return is_name(self.word(after)) and self.word(after - 1) != "&&"

    @cached_property
    def loop_conditions(self) -> set[int]:
        """Tokens of the condition of each for."""
        found = set()
        for first, end in self._for_heads:
            semicolons = [i for i in range(first, end) if self.word(i) == ";"]
            if semicolons:  # else it is a loop over a range
                found.update(range(semicolons[0], semicolons[1]))
        return found

    @cached_property
    def static_asserts(self) -> set[int]:
        """Tokens of static_assert, which only the compiler evaluates."""
        return {
            k
            for i in range(self.first, self.end)
            if self.word(i) == "static_assert"
            for k in range(i, self.partner[i + 1])
        }

    # --- Conditions --------------------------------------------------------------------------

    def is_comparison(self, i: int) -> bool:
        """Template arguments have no space before their bracket."""
        token = self.source.tokens[i]
        return self.source.text[token.start - 1].isspace() and self.source.text[token.end].isspace()

    def is_flag(self, i: int) -> bool:
        """A name that is a condition by itself, or an operand of one."""
        return (
            is_name(self.word(i))
            and self.word(i) not in NO_EXPRESSIONS
            and (
                self.word(i - 1) in ("(", "&&", "=", "||")
                and self.word(i + 1) in ("?", "&&", "||")
                or self.word(i - 2) == "if"
                and self.word(i + 1) == ")"
            )
        )

    def operands(self, i: int) -> tuple[int, int]:
        """First and end of a comparison, both operands included."""
        first, end = i, i + 1
        while self.word(first - 1) not in WEAKER or self.word(first - 1) in (")", "]"):
            if self.word(first - 1) == ")" and self._begins_statement(first):
                break
            first = self.partner[first - 1] if self.word(first - 1) in (")", "]") else first - 1
        while self.word(end) not in WEAKER or self.word(end) in ("(", "["):
            end = (self.partner[end] if self.word(end) in ("(", "[") else end) + 1
        return first, end

    def arguments(self, opening: int) -> list[tuple[int, int]]:
        """The parts between commas in the brackets that open here."""
        found, first, i = [], opening + 1, opening + 1
        close = self.partner[opening]
        while i < close:
            if self.word(i) in ("(", "[", "{"):
                i = self.partner[i]
            elif self.word(i) == ",":
                found.append((first, i))
                first = i + 1
            i += 1
        return [*found, (first, close)] if first < close else found

    # --- Indices -----------------------------------------------------------------------------

    @cached_property
    def integers(self) -> set[str]:
        """Parameters and variables that count or index."""
        return set(self._declared(INTEGERS))

    @cached_property
    def floats(self) -> set[str]:
        return set(self._declared({"float"}))

    def _declared(self, types: set[str]) -> Iterator[str]:
        for i in range(self.part.first, self.end):
            if self.word(i) in types and is_name(self.word(i + 1)):
                end = i + 1
                while self.word(end) not in (";", ")", ""):
                    if (
                        is_name(self.word(end))
                        and self.word(end + 1) in ("=", ",", ")", ";")
                        and self.word(end - 1) in types | {","}
                    ):
                        yield self.word(end)
                    end = (self.partner[end] if self.word(end) in ("(", "[", "{") else end) + 1

    def index_expressions(self) -> Iterator[tuple[int, int]]:
        """Subscripts, integers that are assigned, offsets of pointers, and integer arguments."""
        for i in range(self.first, self.end):
            if self.word(i) == "[" and self._is_subscript(i):
                yield i + 1, self.partner[i]
            elif self.word(i) == "=" and self.word(i - 1) in self.integers and not self._is_constant(i):
                yield self._initialiser(i)
            elif self.word(i) == "=" and self.word(i - 2) == "*" and self._is_offset(i):
                yield self._initialiser(i)
            elif self.word(i) == "return" and self._returns_index(i):
                yield i + 1, self._end_of_statement(i) - 1
            elif self.word(i) == "return" and self.word(i + 1) == "{":
                yield from self.arguments(i + 1)
            elif (
                self.word(i) == "("
                and (is_name(self.word(i - 1)) or self.word(i - 1) == ">")
                and self.word(i - 1) not in NO_INDICES
            ):
                yield from (span for span in self.arguments(i) if self._is_index(*span))

    def _is_subscript(self, i: int) -> bool:
        if self.word(i - 1) == "]" and not self._is_subscript(self.partner[i - 1]):
            return False
        base = i - 1
        while self.word(base) == "]":
            base = self.partner[base] - 1
        if self.word(base) == ")":
            return self.word(self.partner[base] + 1) != "&" and i + 1 < self.partner[i]
        start = self._start_of_statement(base)
        declarator = self.is_declaration(start) and "=" not in [self.word(k) for k in range(start, base)]
        return is_name(self.word(base)) and not declarator and i + 1 < self.partner[i]

    def _start_of_statement(self, i: int) -> int:
        while self.word(i - 1) not in (";", "{", "}", "("):
            i = self.partner[i - 1] if self.word(i - 1) in (")", "]") else i - 1
        return i

    def _is_constant(self, i: int) -> bool:
        return "constexpr" in [self.word(k) for k in range(self._start_of_statement(i), i)]

    def _initialiser(self, i: int) -> tuple[int, int]:
        """The right-hand side of the declaration or assignment with this =."""
        end = i + 1
        while self.word(end) not in (",", ";", ")"):
            end = (self.partner[end] if self.word(end) in ("(", "[", "{") else end) + 1
        return i + 1, end

    def _is_offset(self, i: int) -> bool:
        return self._has_sum(*self._initialiser(i))

    def _has_sum(self, first: int, end: int) -> bool:
        i = first
        while i < end:
            if self.word(i) == "+":
                return True
            i = (self.partner[i] if self.word(i) in ("(", "[", "{") else i) + 1
        return False

    def _returns_index(self, i: int) -> bool:
        head = [self.word(k) for k in range(self.part.first, self.part.body)]
        whole = head[head.index(self.part.name) - 1] in {"*", *INTEGERS}
        return whole and self.word(i + 1) not in (";", "{")

    def _is_index(self, first: int, end: int) -> bool:
        """Made of integers alone, or a pointer and an offset."""
        words = [self.word(k) for k in range(first, end)]
        if COMPARISONS & set(words) or words == ["problem", ".", "scale"]:
            return False
        if self._has_sum(first, end) and words[0] not in self.floats:
            return True
        members = r"\b(?:threadIdx|blockIdx|problem|own|tile|next|lists|m|offset)(?: \. \w+)+"
        text = re.sub(members, "0", " ".join(words))
        names = re.findall(r"[A-Za-z_]\w*", text)
        return (
            all(name in self.integers or is_size(name) for name in names)
            and any(name in self.integers for name in names)
            or (not names and re.fullmatch(r"[\d+\-*/%() ]+", text) is not None)
        )

    # --- Names -------------------------------------------------------------------------------

    def buffer_groups(self) -> list[list[int]]:
        """Uses of buffers, strides and the like that could replace each other."""
        groups: dict[str, list[int]] = {}
        for i in range(self.first, self.end):
            match = BUFFER.fullmatch(self.word(i))
            if match:
                groups.setdefault(match[1] or match[2], []).append(i)
            elif self.word(i - 1) == "." and self.word(i) in MEMBERS.get(self.word(i - 2), ()):
                groups.setdefault(self.word(i - 2), []).append(i)
        return list(groups.values())

    def is_declared(self, i: int) -> bool:
        return (
            self.word(i + 1) == "=" and self.word(i - 1) != "." or self.word(i + 1) == "[" and is_name(self.word(i - 1))
        )

    def ends_operand(self, i: int) -> bool:
        word = self.word(i)
        return is_name(word) or word in (")", "]") or word[:1].isdigit()
