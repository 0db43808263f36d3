"""Which instantiations of a step's kernel are compiled: a few instead of all, to save time."""

import re
from collections.abc import Container

CALLED_HEAD_DIMS = (64, 128)  # those of most problems of step_under_test.c
TABLE = re.compile(
    r"(static constexpr (?:Kernel|Decode|Shares|Backward)?Config(?:<[\w, ]*>)? CONFIGS\[\] = \{)(.*?)(\};)", re.DOTALL
)
MACRO = re.compile(r"#define CONFIGS_OF\(([\w, ]+)\)((?:[^\n]*\\\n)*[^\n]*)")
ENTRY = re.compile(r"\w*CONFIG<(\w+)(?:, (\d+))?[^<>]*>")


def configs_of(text: str, head_dims: Container[int], element: str = "") -> str:
    """Of the table in the source of a step, the configurations for these head dimensions and this
    element type, in the same order; with them those that name no head dimension."""
    found = TABLE.search(text)
    table = re.sub(r"//.*", "", found[2]) if found else ""
    if macro := MACRO.search(text):
        names = macro[1].split(", ")

        def expanded(use: re.Match) -> str:
            values = dict(zip(names, use[1].split(", "), strict=True))
            return re.sub(r"\w+", lambda word: values.get(word[0], word[0]), macro[2].replace("\\\n", " "))

        table = re.sub(r"CONFIGS_OF\(([^()]*)\)", expanded, table)
    return ", ".join(
        entry[0]
        for entry in ENTRY.finditer(table)
        if entry[1].startswith(element) and (entry[2] is None or int(entry[2]) in head_dims)
    )


def with_configs(text: str, configs: str) -> str:
    """The source of a step with these configurations instead of its own."""
    text, count = TABLE.subn(rf"\g<1>{configs}\g<3>", text)
    assert count == 1, "no table of configurations"
    return text
