"""Writes generated sections of documents, between two comments."""


def with_section(text: str, name: str, written_by: str, content: str) -> str:
    """Returns the document `text` with `content` between `<!-- NAME: written by WRITTEN_BY -->` and
    `<!-- /NAME -->`; exits with an error unless both comments occur once."""
    begin, end = f"<!-- {name}: written by {written_by} -->", f"<!-- /{name} -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise SystemExit(f"the document must hold once each: {begin} and {end}")
    return f"{text.split(begin)[0]}{begin}\n{content}\n{end}{text.split(end)[1]}"
