"""Parts of documents that a command writes, between two comments."""


class SectionError(Exception):
    """One line for the user."""


def with_section(text: str, name: str, written_by: str, content: str) -> str:
    """The document `text` with `content` between `<!-- NAME: written by WRITTEN_BY -->` and
    `<!-- /NAME -->`."""
    begin, end = f"<!-- {name}: written by {written_by} -->", f"<!-- /{name} -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise SectionError(f"must hold once each: {begin} and {end}")
    before, rest = text.split(begin)
    return f"{before}{begin}\n{content}\n{end}{rest.split(end)[1]}"
