"""Writes what is generated in documents: sections between two comments, and the lines of regions in links."""

import re
from pathlib import Path

REGION_LINK = re.compile(r"\[(\S+, region (\w+))\]\(([^)#]+)(?:#[^)]*)?\)")


def lines_of(file: Path, region: str) -> range:
    """The numbers of the lines between the two lines `// [REGION]`; none unless there are two."""
    marks = [number for number, line in enumerate(file.read_text().split("\n"), 1) if line.strip() == f"// [{region}]"]
    return range(marks[0] + 1, marks[1]) if len(marks) == 2 else range(0)


def with_lines(page: Path) -> str:
    """Returns the page with links `[FILE, region NAME](PATH#L1-L2)` to the lines where that region is now."""

    def link(match: re.Match) -> str:
        text, region, path = match.groups()
        lines = lines_of(page.parent / path, region)
        return f"[{text}]({path}#L{lines[0]}-L{lines[-1]})" if lines else f"[{text}]({path})"

    return REGION_LINK.sub(link, page.read_text())


def with_section(text: str, name: str, written_by: str, content: str) -> str:
    """Returns the document `text` with `content` between `<!-- NAME: written by WRITTEN_BY -->` and
    `<!-- /NAME -->`; exits with an error unless both comments occur once."""
    begin, end = f"<!-- {name}: written by {written_by} -->", f"<!-- /{name} -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise SystemExit(f"the document must hold once each: {begin} and {end}")
    return f"{text.split(begin)[0]}{begin}\n{content}\n{end}{text.split(end)[1]}"
