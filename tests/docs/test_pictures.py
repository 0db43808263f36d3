"""The pictures on a phone: enlarged, their texts can be read."""

import re

from playwright.sync_api import Page

from tests.docs.conftest import SITE
from tests.docs.test_site import PICTURES

SMALLEST = 10  # pixels
FONT_SIZE = re.compile(r"font(?:-size)?:[^;}\"]*?([\d.]+)px")


def test_a_tap_shows_the_natural_size(page: Page) -> None:
    """By keyboard, too; in the scheme of the page, and the picture can be scrolled."""
    page.set_viewport_size({"width": 390, "height": 844})
    page.emulate_media(color_scheme="dark")
    page.goto((SITE / "figures.html").as_uri())
    link = page.locator("article a.enlarge:visible").first
    assert "Tap to enlarge" in link.evaluate("a => getComputedStyle(a, '::after').content")
    assert link.locator("img").evaluate("img => img.clientWidth < img.naturalWidth / 2")
    link.focus()
    page.keyboard.press("Enter")
    picture = page.locator("dialog img")
    picture.evaluate("img => img.decode()")
    assert picture.evaluate("img => img.src.endsWith('_dark.svg') && img.clientWidth === img.naturalWidth")
    assert picture.evaluate("img => img.parentElement.scrollWidth > innerWidth")
    page.keyboard.press("Escape")
    assert not picture.is_visible() and link.evaluate("a => a === document.activeElement")
    link.click()
    page.get_by_role("button", name="Close").click()
    assert not picture.is_visible()


def test_texts_have_a_natural_size_that_can_be_read() -> None:
    small = {}
    for path in PICTURES:
        text = path.read_text()
        sizes = [float(size) for size in FONT_SIZE.findall(text)]
        unit = 96 / 72 if re.search(r'<svg[^>]* width="[\d.]+pt"', text) else 1
        assert sizes, path
        small[path.name] = unit * min(sizes)
    assert {name: size for name, size in small.items() if size < SMALLEST} == {}
