"""A headless Chromium, and the files of the site that it opens."""

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.lib.programs import REPOSITORY

SITE = REPOSITORY / "build/docs/site"
EXPLORERS = ("fragments", "banks", "timeline", "shares")
WRITTEN = [
    "contributing",
    "changelog",
    *sorted(path.stem for path in (REPOSITORY / "docs").glob("*.md")),
    *sorted(path.stem for path in (REPOSITORY / "steps/exercises").glob("*.md"))[::8],
]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=shutil.which("chromium-headless-shell"), args=["--no-sandbox"]
        )
        yield started
        started.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """It must report no errors and load nothing from a network."""
    page, errors = browser.new_page(viewport={"width": 1280, "height": 900}), []

    def report(error: object) -> None:
        errors.append(f"{page.url}: {error}")

    page.on("console", lambda said: said.type in ("error", "warning") and report(said.text))
    page.on("pageerror", report)
    page.on(
        "request",
        lambda request: request.url.startswith(("file:", "data:")) or report(f"from the network: {request.url}"),
    )
    # What a page still loads when the next one opens is aborted.
    page.on(
        "requestfailed",
        lambda request: (
            request.failure == "net::ERR_ABORTED" or report(f"not loaded: {request.url}: {request.failure}")
        ),
    )
    yield page
    page.close()
    assert errors == []


def wait_for_formulas(page: Page) -> None:
    if page.locator("article .math").count():
        page.wait_for_function(
            "window.MathJax && MathJax.Hub && !MathJax.Hub.queue.pending && document.querySelector('.MathJax_SVG')"
        )
