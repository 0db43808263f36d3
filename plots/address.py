"""The public address of the repository, and what follows from it. CITATION.cff alone has it; without one, nothing
follows."""

import re
from pathlib import Path


def repository(root: Path) -> str:
    """https://github.com/OWNER/NAME."""
    found = re.search(
        r"^repository-code: (https://github\.com/[\w.-]+/[\w.-]+)$", (root / "CITATION.cff").read_text(), re.MULTILINE
    )
    return found[1] if found else ""


def site(address: str) -> str:
    """Where the workflow pages.yml puts the site."""
    return re.sub(r"https://github\.com/(.*)/(.*)", r"https://\1.github.io/\2/", address)


def links(address: str, badges: bool) -> str:
    """To the site or the source, the checks and the notebook, as a line of Markdown."""
    if not address:
        return ""
    colab = "https://colab.research.google.com"
    notebook = f"{colab}/github{address.removeprefix('https://github.com')}/blob/main/docs/classroom.ipynb"
    if not badges:
        return f"[Source code]({address}) · [Open the notebook in Colab]({notebook})"
    checks = f"{address}/actions/workflows/ci.yml"
    return (
        f"[Read it as a site]({site(address)}) · [![CI]({checks}/badge.svg)]({checks}) "
        f"[![Open in Colab]({colab}/assets/colab-badge.svg)]({notebook})"
    )


def in_notebook(text: str, address: str) -> str:
    """The notebook clones the repository where it runs outside of one. A hosted one has no pages beside it."""
    text = re.sub(r'(?<=REPOSITORY = \\")[^"\\]*', address, text)
    docs = address and f"{address}/blob/main/docs/"
    return re.sub(r"\]\((?:https://github\.com/[\w./-]*/blob/main/docs/)?([\w./-]+\.md)\)", rf"]({docs}\1)", text)
