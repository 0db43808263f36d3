"""axe-core, which looks for what keeps people from reading a page: names, landmarks, contrast, the keyboard."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from tests.docs.conftest import EXPLORERS, SITE, wait_for_formulas

# Of each kind a page that is short or has much that others lack.
KINDS = [
    *(f"explorers/{name}.html" for name in EXPLORERS),
    "explorers/timeline.html?17f,full",  # with clusters: the most rows
    "search.html?q=bank+conflict",
    "log2_cuh.html",
    "source/log2.cuh.html",
    *(f"{name}.html" for name in ("index", "step04", "online-softmax", "f01")),
]
ALL = sorted(str(path.relative_to(SITE)) for path in SITE.rglob("*.html") if not {"mathjax", "_static"} & {*path.parts})
# Without what file:// has not: XMLHttpRequest, and messages to the frames, whose pages are looked at themselves.
OPTIONS = {"preload": False, "iframes": False, "resultTypes": ["violations"]}


@pytest.mark.parametrize("scheme, width", [("light", 1280), ("dark", 390)])
@pytest.mark.parametrize(
    "paths", [pytest.param(KINDS, id="kinds"), pytest.param(ALL, id="all", marks=pytest.mark.exhaustive)]
)
def test_axe_finds_no_violation(page: Page, paths: list[str], scheme: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)
    found = {}
    for path in paths:
        page.goto(f"{SITE.as_uri()}/{path}", wait_until="load")
        if "?q=" in path:
            page.wait_for_selector("ul.search li")
        wait_for_formulas(page)
        for rule in Axe().run(page, options=OPTIONS).response["violations"]:
            found[path, rule["id"]] = [node["html"][:120] for node in rule["nodes"][:5]]
    assert found == {}
