"""Parts of documents that a command writes, between two comments."""


def with_section(text: str, name: str, written_by: str, content: str) -> str:
    """The document `text` with `content` between `<!-- NAME: written by WRITTEN_BY -->` and
    `<!-- /NAME -->`."""
    begin, end = f"<!-- {name}: written by {written_by} -->", f"<!-- /{name} -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise SystemExit(f"the document must hold once each: {begin} and {end}")
    return f"{text.split(begin)[0]}{begin}\n{content}\n{end}{text.split(end)[1]}"
