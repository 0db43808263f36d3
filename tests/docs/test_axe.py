"""axe-core, which looks for what keeps people from reading a page: names, landmarks, contrast, the keyboard."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from tests.docs.conftest import EXPLORERS, SITE, WRITTEN

SHOWN = [*(f"explorers/{name}.html" for name in EXPLORERS), "attention_h.html", "source/step04_prefetch.cu.html",
         "search.html?q=bank+conflict"]
KINDS = [*SHOWN, *(f"{name}.html" for name in ("index", "step04", "online-softmax", "classroom", "glossary", "lab"))]
ALL = [*SHOWN, *(f"{name}.html" for name in WRITTEN)]


@pytest.mark.parametrize("scheme, width", [("light", 1280), ("dark", 390)])
@pytest.mark.parametrize("paths", [pytest.param(KINDS, id="kinds"),
                                   pytest.param(ALL, id="all", marks=pytest.mark.exhaustive)])
def test_axe_finds_no_violation(page: Page, paths: list[str], scheme: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)
    found = {}
    for path in paths:
        page.goto(f"{SITE.as_uri()}/{path}", wait_until="load")
        if path.startswith("search"):
            page.wait_for_selector("ul.search li")
        for rule in Axe().run(page).response["violations"]:
            found[path, rule["id"]] = [node["html"][:120] for node in rule["nodes"][:5]]
    assert found == {}
