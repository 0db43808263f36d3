"""A headless Chromium, and the pages of the site."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "build/docs/site"
WIDTHS, SCHEMES = (390, 1280), ("light", "dark")


def written_pages() -> list[str]:
    """The names of the pages that are written as Markdown."""
    return ["index", "contributing", *sorted(path.stem for path in (ROOT / "docs").glob("*.md"))]


@contextmanager
def browser_page(width: int = 1280, scheme: str = "light") -> Iterator[tuple[Page, list[str]]]:
    """A page of a browser, and the list of all errors that it will report."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"),
                                             args=["--no-sandbox"])
        page, errors = browser.new_page(viewport={"width": width, "height": 900},
                                        color_scheme=scheme), []
        page.on("console",
                lambda said: said.type in ("error", "warning") and errors.append(said.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        # What a page still loads when the next one opens is aborted.
        page.on("requestfailed", lambda request: request.failure == "net::ERR_ABORTED"
                or errors.append(f"not loaded: {request.url}: {request.failure}"))
        page.on("request", lambda request: request.url.startswith(("file:", "data:"))
                or errors.append(f"from the network: {request.url}"))
        yield page, errors
        browser.close()
