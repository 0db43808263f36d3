"""The documentation site: links, pictures, formulas, contrast and width, as a browser has them."""

import io
from functools import lru_cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from PIL import Image

from tests.docs.browser import SCHEMES, SITE, WIDTHS, browser_page, written_pages

LARGEST_BYTES = 25 << 20
LONGEST_START_MS = 1000

# The texts of a page whose contrast is below 4.5, or 3 for large ones: WCAG 2.1, level AA.
LOW_CONTRAST = """() => {
  const channel = c => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const parts = text => (text.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const behind = element => {
    for (let e = element; e; e = e.parentElement) {
      const color = parts(getComputedStyle(e).backgroundColor);
      if (color.length < 4 || color[3] === 1) return color;
    }
    return matchMedia('(prefers-color-scheme: dark)').matches ? [0, 0, 0] : [255, 255, 255];
  };
  const low = [];
  const walker = document.createTreeWalker(document.querySelector('.contents') || document.body,
                                           NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement, text = walker.currentNode.data.trim();
    if (!text || !element.checkVisibility()) continue;
    if (element.closest('svg, script, style, .MathJax_Preview')) continue;
    const style = getComputedStyle(element), size = parseFloat(style.fontSize);
    const [a, b] = [light(parts(style.color)), light(behind(element))].sort((x, y) => y - x);
    const least = size >= 24 || (size >= 18.66 && style.fontWeight >= 700) ? 3 : 4.5;
    if ((a + 0.05) / (b + 0.05) < least)
      low.push(`${text.slice(0, 40)}: ${style.color} on ${behind(element)}`);
  }
  return [...new Set(low)].slice(0, 5);
}"""


class Links(HTMLParser):
    """The anchors, links and pictures of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors, self.targets, self.pictures = set(), [], []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.anchors |= {values[name] for name in ("id", "name") if values.get(name)}
        if tag in ("a", "link") and values.get("href"):
            self.targets.append(values["href"])
        if tag in ("img", "script") and values.get("src"):
            self.targets.append(values["src"])
        if tag == "img":
            self.pictures.append((values.get("src"), values.get("alt")))


@lru_cache(maxsize=None)
def links_of(path: Path) -> Links:
    links = Links()
    links.feed(path.read_text(errors="replace"))
    return links


def test_every_link_leads_somewhere() -> None:
    broken = []
    for path in sorted(SITE.rglob("*.html")):
        if "mathjax" in path.parts:
            continue
        for target in links_of(path).targets:
            parts = urlsplit(target)
            if parts.scheme in ("http", "https", "javascript", "mailto"):
                continue
            file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not file.exists():
                broken.append(f"{path.name}: {target}")
            elif parts.fragment and file.suffix == ".html" and (
                    unquote(parts.fragment) not in links_of(file).anchors):
                broken.append(f"{path.name}: {target}: no such anchor")
    assert broken == []


@pytest.mark.parametrize("name", written_pages())
def test_pictures_have_alternative_texts(name: str) -> None:
    assert [src for src, alt in links_of(SITE / f"{name}.html").pictures if not alt] == []


def test_size_and_start() -> None:
    files = [path for path in SITE.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < LARGEST_BYTES
    with browser_page() as (page, _):
        page.goto((SITE / "index.html").as_uri())
        start = page.evaluate("(t => t.domInteractive - t.navigationStart)(performance.timing)")
        assert start < LONGEST_START_MS


def is_blank(png: bytes) -> bool:
    return all(low == high for low, high in Image.open(io.BytesIO(png)).convert("RGB").getextrema())


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_pages_in_a_browser(width: int, scheme: str) -> None:
    wrong = {}
    with browser_page(width, scheme) as (page, errors):
        for name in written_pages():
            found = wrong.setdefault(name, [])
            errors.clear()
            page.goto((SITE / f"{name}.html").as_uri(), wait_until="load")
            if page.locator("script[type^='math/tex']").count():
                page.wait_for_function("window.MathJax && MathJax.Hub && !MathJax.Hub.queue.pending"
                                       " && document.querySelector('.MathJax_SVG')")
                if count := page.locator(".merror, .MathJax_Error").count():
                    found.append(f"{count} formulas are wrong")
            found += errors
            if (wide := page.evaluate("document.documentElement.scrollWidth")) > width:
                found.append(f"{wide} pixels wide")
            page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
            found += [f"low contrast: {text}" for text in page.evaluate(LOW_CONTRAST)]
            for picture in page.locator(".contents img:visible").all():
                if picture.evaluate("i => !i.complete || i.naturalWidth === 0") or is_blank(
                        picture.screenshot()):
                    found.append(f"blank: {picture.get_attribute('src')}")
    assert {name: found for name, found in wrong.items() if found} == {}
