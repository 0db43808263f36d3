"""What a step teaches, a header of common/device holds for later steps in the same words.

Such a header has a line "// As in steps/stepNN_name.cu:". What follows is in that step, too.
"""

import re

import pytest

from tests.lib.programs import REPOSITORY

HEADERS = {
    path.name: match
    for path in sorted((REPOSITORY / "common/device").glob("*.cuh"))
    if (match := re.search(r"\n// As in (steps/\S+\.cu):\n(.*)\n#endif\n", path.read_text(), re.DOTALL))
}


def blocks(text: str) -> list[str]:
    """The functions, types and constants of a source, each with its comment."""
    return re.split(r"\n\n(?=/\*\*|template|constexpr|struct|static|__)", text.strip())


@pytest.mark.parametrize("header", HEADERS)
def test_a_header_has_the_words_of_its_step(header) -> None:
    step, text = HEADERS[header].groups()
    source = re.sub(r" *// \[\w+\]\n", "", (REPOSITORY / step).read_text())
    assert [block for block in blocks(text) if block not in source] == []
