"""The pictures on a phone: enlarged, their texts can be read."""

import io
import re

from PIL import Image, ImageChops
from playwright.sync_api import Page

from tests.docs.conftest import SITE
from tests.docs.test_site import PICTURES
from tests.lib.programs import REPOSITORY

SMALLEST = 10  # pixels
MOST_UNLIKE = 1 / 2000  # of the pixels: of lines that are rounded, those at their edges
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


def test_smaller_pictures_look_the_same(page: Page) -> None:
    """Those of matplotlib, against what is in the repository."""
    unlike, bytes_before, bytes_after = {}, 0, 0
    for path in PICTURES:
        original = REPOSITORY / "docs/pictures" / path.name
        if not path.stem.endswith("_light") or path.read_bytes() == original.read_bytes():
            continue
        shots = []
        for shown in (original, path):
            page.goto(shown.as_uri())
            shots.append(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))
        shades = ImageChops.difference(*shots).convert("L").histogram()
        unlike[path.name] = sum(shades[64:]) / sum(shades)
        bytes_before, bytes_after = bytes_before + original.stat().st_size, bytes_after + path.stat().st_size
    assert len(unlike) > 8 and {name: share for name, share in unlike.items() if share > MOST_UNLIKE} == {}
    assert bytes_after < bytes_before / 2
