"""What a reader sees around the text of the site: the tree, the menu, messages, dark pictures."""

import io
import re
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Page

from tests.docs.conftest import SITE, WRITTEN
from tests.docs.test_site import links_of
from tests.lib.programs import REPOSITORY

DOCS = REPOSITORY / "docs"
README = REPOSITORY / "README.md"
DESK, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 900}


def listed(page: Path) -> list[str]:
    """The pages that the lists of a page link to, in order."""
    items = re.findall(r"^- .*", page.read_text(), re.MULTILINE)
    return [Path(name).name.lower() for item in items
            for name in re.findall(r"\]\(([\w/-]+)\.md\)", item)]


def opened(page: Page, name: str) -> None:
    page.goto((SITE / f"{name}.html").as_uri())


def test_tree_lists_the_pages_in_order(page: Page) -> None:
    """Below each page of contents are the pages that it lists, once it is opened by its arrow."""
    page.set_viewport_size(DESK)
    opened(page, "index")
    for name, source in {"index": README, "steps": DOCS / "steps.md", "primers": DOCS / "primers.md",
                         "reference": DOCS / "reference.md"}.items():
        node = page.locator(f"#nav-tree li:has(> .item .label a[href='{name}.html'])").last
        if name != "index":  # open from the start
            node.locator("> .item > a").click(timeout=5000)
        below = node.locator("> ul > li > .item .label a")
        below.first.wait_for(timeout=5000)
        shown = [link.removesuffix(".html") for link in below.evaluate_all(
            "links => links.filter(a => a.checkVisibility()).map(a => a.getAttribute('href'))")]
        wanted = [page for page in listed(source) if "-tried" not in page]
        assert [page for page in shown if page in wanted] == wanted, name
    opened(page, "step10-tried")
    assert [link.get_attribute("href") for link in page.locator("#nav-path a.el").all()] == [
        "index.html", "steps.html", "step10.html"]


def test_titles_in_the_tree_are_not_clipped(page: Page) -> None:
    page.set_viewport_size(DESK)
    opened(page, "step01")
    page.locator("#nav-tree a[href='step12.html']").first.wait_for(timeout=5000)
    assert page.locator("#nav-tree .label a").evaluate_all(
        """links => links.filter(a => a.checkVisibility() && a.getBoundingClientRect().right
             > document.querySelector('#side-nav').getBoundingClientRect().right)
             .map(a => a.textContent)""") == []


def test_a_phone_reaches_the_steps(page: Page) -> None:
    """By the menu in the header, as the tree is hidden there."""
    page.set_viewport_size(PHONE)
    opened(page, "measuring")
    page.locator(".main-menu-btn").click()
    page.get_by_role("link", name="The steps", exact=True).click(timeout=5000)
    page.wait_for_url("**/steps.html")


@pytest.mark.parametrize("name", ["index", "online-softmax"])
def test_no_message_of_mathjax(page: Page, name: str) -> None:
    """On a page without formulas and on one with them, while they are typeset and after that."""
    page.add_init_script("""window.messages = [];
      setInterval(() => {
        const box = document.querySelector('#MathJax_Message');
        if (box && box.checkVisibility()) window.messages.push(box.textContent);
      }, 10)""")
    opened(page, name)
    page.wait_for_timeout(2500)
    assert page.evaluate("window.messages") == []


def test_pictures_on_dark_pages(page: Page) -> None:
    """A picture has the background of the page."""
    page.set_viewport_size(DESK)
    page.emulate_media(color_scheme="dark")
    seen, wrong = set(), []
    for name in WRITTEN:
        if not links_of(SITE / f"{name}.html").pictures:
            continue
        opened(page, name)
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        for picture in page.locator(".contents img:visible").all():
            source = picture.evaluate("img => img.decode().then(() => img.currentSrc)")
            if source in seen:
                continue
            seen.add(source)
            picture.evaluate("img => img.scrollIntoView()")
            box = picture.bounding_box()
            corner = page.screenshot(clip={"x": box["x"] + 2, "y": box["y"] + 2, "width": 2, "height": 2})
            colour = Image.open(io.BytesIO(corner)).convert("RGB").getpixel((0, 0))
            if colour != tuple(map(int, re.findall(r"\d+", ground)[:3])):
                wrong.append(f"{name}: {Path(source).name}: {colour} on {ground}")
    assert len(seen) > 10 and wrong == []
