"""CUDA source as tokens and functions: the part of the language that formatted sources need."""

import re
from dataclasses import dataclass, field
from functools import cached_property

TOKEN = re.compile(
    r"""
    (?P<skip> \s+ | //[^\n]* | /\*.*?\*/ | ^[ \t]*\#(?:[^\n\\]|\\.)* )
  | (?P<string> "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*' )
  | (?P<number> \.?\d(?:[eEpP][+-]|[\w.])* )
  | (?P<name> [A-Za-z_]\w* )
  | (?P<punctuation> <<=|>>=|\+\+|--|->|::|<<|<=|>=|==|!=|&&|\|\||[-+*/%&|^=]=|.)
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)

BRACKETS = {"(": ")", "[": "]", "{": "}"}
# Words before a parenthesis that are not a function's name.
NOT_FUNCTIONS = {"__launch_bounds__", "__cluster_dims__", "__align__", "alignas", "static_assert", "sizeof"}


@dataclass(frozen=True)
class Token:
    kind: str
    text: str
    start: int
    end: int


@dataclass
class Part:
    """A function, or another declaration at the top of a file: tokens first .. end - 1.

    `body` is the first token within its braces; without braces it is `end`.
    """

    name: str
    is_function: bool
    first: int
    body: int
    end: int
    calls: set[str] = field(default_factory=set)


class Source:
    """One file. `path` is relative to the repository."""

    def __init__(self, path: str, text: str) -> None:
        self.path, self.text = path, text
        self.tokens = [
            Token(match.lastgroup, match.group(), match.start(), match.end())
            for match in TOKEN.finditer(text)
            if match.lastgroup != "skip"
        ]
        self.partner = self._partners()

    def _partners(self) -> dict[int, int]:
        """From each bracket to the one that closes or opens it."""
        partner, open_ones = {}, []
        for i, token in enumerate(self.tokens):
            if token.text in BRACKETS and token.kind == "punctuation":
                open_ones.append(i)
            elif token.text in BRACKETS.values() and token.kind == "punctuation":
                opening = open_ones.pop()
                assert BRACKETS[self.tokens[opening].text] == token.text, (self.path, token)
                partner[opening], partner[i] = i, opening
        return partner

    def word(self, i: int) -> str:
        return self.tokens[i].text if 0 <= i < len(self.tokens) else ""

    def between(self, first: int, end: int) -> str:
        """The unchanged text of tokens first .. end - 1."""
        return self.text[self.tokens[first].start : self.tokens[end - 1].end] if first < end else ""

    @cached_property
    def parts(self) -> list[Part]:
        parts, i = [], 0
        while i < len(self.tokens):
            part = self._part_at(i)
            parts.append(part)
            i = part.end
        return parts

    def _behind_template(self, first: int) -> int:
        """Behind `template <..>`, whose defaults have the = of an assignment, or `first` without one."""
        if self.word(first) != "template":
            return first
        i, depth = first + 1, 0
        while True:
            depth += {"<": 1, ">": -1, ">>": -2}.get(self.word(i), 0)
            i += 1
            if depth == 0:
                return i

    def _part_at(self, first: int) -> Part:
        i = start = self._behind_template(first)
        body, assigned = None, False
        while self.word(i) != ";" and i < len(self.tokens):
            if self.word(i) == "{":
                body = i + 1
                i = self.partner[i]
                if not assigned and self.word(i + 1) != ";":
                    break  # a function ends at its closing brace
            elif self.word(i) in BRACKETS:
                i = self.partner[i]
            assigned = assigned or self.word(i) == "="
            i += 1
        end = min(i + 1, len(self.tokens))
        head = range(start, body - 1 if body else end)
        names = [
            self.word(k)
            for k in head
            if self.word(k + 1) == "(" and self.tokens[k].kind == "name" and self.word(k) not in NOT_FUNCTIONS
        ]
        if body and names and not assigned:
            calls = {self.word(k) for k in range(body, end) if self.tokens[k].kind == "name"}
            return Part(names[0], True, first, body, end, calls)
        return Part(self._declared_name(head), False, first, body or end, end)

    def _declared_name(self, head: range) -> str:
        words = [self.word(k) for k in head]
        for keyword in ("struct", "enum"):
            if keyword in words:
                after = words[words.index(keyword) + 1 :]
                names = [word for word in after if re.match(r"[A-Za-z_]", word) and word not in NOT_FUNCTIONS]
                return names[0] if names else keyword
        if "=" in words:
            names = [word for word in words[: words.index("=")] if re.match(r"[A-Za-z_]", word)]
            return names[-1] if names else ""
        return words[0] if words else ""
