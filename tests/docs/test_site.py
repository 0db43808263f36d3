"""The documentation site: links, text, tables, pictures, formulas, contrast and width, in a browser."""

import io
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from PIL import Image
from playwright.sync_api import Page

from tests.docs.conftest import EXPLORERS, SITE, WRITTEN, wait_for_formulas
from tests.lib.programs import REPOSITORY

LARGEST_BYTES = 25 * 10**6
LONGEST_BUILD_S = 160  # of processors: on two cores under 120 seconds, because compiling uses both
LONGEST_START_MS = 1000
SCHEMES = ("light", "dark")
WIDTHS = (390, 1280)
PICTURES = sorted((SITE / "_images").glob("*.svg"))

# The texts of a page whose contrast is below 4.5, or 3 for large ones: WCAG 2.1, level AA. The ground
# of a text in a picture is what was painted last below its centre.
LOW_CONTRAST = """() => {
  const channel = c => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const parts = text => (text.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const opaque = color => color.length < 4 || color[3] === 1;
  const grounds = new Map();  // of elements that were asked for
  const behind = element => {
    if (!element) return matchMedia('(prefers-color-scheme: dark)').matches ? [0, 0, 0] : [255, 255, 255];
    if (!grounds.has(element)) {
      const color = parts(getComputedStyle(element).backgroundColor);
      grounds.set(element, opaque(color) ? color : behind(element.parentElement));
    }
    return grounds.get(element);
  };
  const painted = new Map();  // the filled rectangles of each picture
  const below = text => {
    const svg = text.ownerSVGElement, box = text.getBoundingClientRect();
    const x = box.x + box.width / 2, y = box.y + box.height / 2;
    if (!painted.has(svg)) painted.set(svg, [...svg.querySelectorAll('rect')].map(rect => (
        { rect, box: rect.getBoundingClientRect(), fill: getComputedStyle(rect).fill }))
      .filter(({ fill }) => fill.startsWith('rgb') && opaque(parts(fill))));
    const found = painted.get(svg).filter(({ rect, box }) => box.left <= x && x <= box.right
      && box.top <= y && y <= box.bottom
      && rect.compareDocumentPosition(text) & Node.DOCUMENT_POSITION_FOLLOWING);
    return found.length ? parts(found[found.length - 1].fill) : behind(svg);
  };
  const low = [];
  const root = document.querySelector('article') || document.body || document.documentElement;
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement, text = walker.currentNode.data.trim();
    if (!text || !element.checkVisibility({ checkOpacity: true })) continue;
    if (element.closest('script, style, title, desc, .MathJax_Preview, .MathJax_SVG')) continue;
    const style = getComputedStyle(element), size = parseFloat(style.fontSize);
    const drawn = element.closest('svg');
    const [color, ground] = drawn ? [style.fill, below(element)] : [style.color, behind(element)];
    const [a, b] = [light(parts(color)), light(ground)].sort((x, y) => y - x);
    const least = size >= 24 || (size >= 18.66 && style.fontWeight >= 700) ? 3 : 4.5;
    if ((a + 0.05) / (b + 0.05) < least) low.push(`${text.slice(0, 40)}: ${color} on ${ground}`);
  }
  return [...new Set(low)].slice(0, 5);
}"""

# Text that is shown although it is markup. In code, signatures and formulas these characters have other meanings.
MARKUP = r"""() => {
  const code = 'code, pre, script, style, svg, .sig, .MathJax_Preview, .MathJax_SVG';
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = [];
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement, text = walker.currentNode.data;
    if (element.closest(code) || !element.checkVisibility()) continue;
    if (/\*\*|`|<\/?[a-z]+>|\]\(|@\d/.test(text)) found.push(text.trim().slice(0, 60));
  }
  return found;
}"""

# The words of tables that are broken: letters and digits in more than one line.
BROKEN_WORDS = r"""() => {
  const found = [];
  for (const cell of document.querySelectorAll('article td, article th')) {
    const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    while (cell.checkVisibility() && walker.nextNode()) {
      for (const { 0: word, index } of walker.currentNode.data.matchAll(/[\p{L}\p{N}_.]+/gu)) {
        const range = document.createRange();
        range.setStart(walker.currentNode, index);
        range.setEnd(walker.currentNode, index + word.length);
        const tops = [...range.getClientRects()].map(box => box.top);
        if (Math.max(...tops) - Math.min(...tops) > 4) found.push(word);
      }
    }
  }
  return found;
}"""

# The formulas of which a part cannot be seen, neither at once nor by scrolling.
CUT = r"""() => [...document.querySelectorAll('article div.math')]
  .filter(box => box.checkVisibility() && (box.scrollWidth > box.clientWidth && getComputedStyle(box).overflowX !== 'auto'
    || box.scrollHeight > box.clientHeight))
  .map(box => `a part of a formula cannot be seen: ${box.scrollWidth} x ${box.scrollHeight}`)"""

# The visible pictures of a page that cannot be loaded. Those of the other scheme may still be on their way.
NOT_LOADED = """() => Promise.all([...document.querySelectorAll('article img')]
  .filter(img => img.checkVisibility())
  .map(img => new Promise(done => {
    const loaded = () => done(img.naturalWidth > 0 ? [] : [`not loaded: ${img.getAttribute('src')}`]);
    if (img.complete) return loaded();
    img.addEventListener('load', loaded);
    img.addEventListener('error', loaded);
  }))).then(found => found.flat())"""

# The texts of a picture that leave it or overlap, in the fonts of this browser.
MISPLACED = """() => {
  const svg = document.documentElement, { width, height } = svg.viewBox.baseVal;
  const texts = [...svg.querySelectorAll('text')].filter(t => t.checkVisibility({ checkOpacity: true }));
  const boxes = texts.map(text => text.getBoundingClientRect());
  const wrong = texts.filter((text, i) => boxes[i].left < 0 || boxes[i].top < 0
    || boxes[i].right > width || boxes[i].bottom > height).map(text => `outside: ${text.textContent}`);
  boxes.forEach((a, i) => boxes.slice(0, i).forEach((b, j) => {
    if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
        && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4)
      wrong.push(`${texts[j].textContent} and ${texts[i].textContent}`);
  }));
  return wrong;
}"""


@dataclass(frozen=True)
class Links:
    """The anchors, links and pictures of a page."""

    anchors: frozenset[str]
    targets: tuple[str, ...]
    pictures: tuple[tuple[str, str | None], ...]


TAG = re.compile(r"<([a-z]+\d?)\b([^<>]*)>", re.IGNORECASE)
VALUE = re.compile(r"""\b(id|name|href|src|alt)=("([^"]*)"|'([^']*)')""")


@cache
def links_of(path: Path) -> Links:
    """By regular expressions, because Python's parser takes long."""
    anchors, targets, pictures = set(), [], []
    for tag, rest in TAG.findall(path.read_text(errors="replace")):
        if "=" not in rest:
            continue
        values = {name: unescape(double or single) for name, _, double, single in VALUE.findall(rest)}
        anchors |= {values[name] for name in ("id", "name") if values.get(name)}
        if tag in ("a", "link") and values.get("href"):
            targets.append(values["href"])
        if tag in ("img", "script", "iframe") and values.get("src"):
            targets.append(values["src"])
        if tag == "img":
            pictures.append((values.get("src"), values.get("alt")))
    return Links(frozenset(anchors), tuple(targets), tuple(pictures))


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
            elif parts.fragment and file.suffix == ".html" and (unquote(parts.fragment) not in links_of(file).anchors):
                broken.append(f"{path.name}: {target}: no such anchor")
    assert broken == []


def test_pictures_have_alternative_texts() -> None:
    assert [(name, src) for name in WRITTEN for src, alt in links_of(SITE / f"{name}.html").pictures if not alt] == []


def test_size_and_start(page: Page) -> None:
    files = [path for path in SITE.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < LARGEST_BYTES
    starts = []
    for _ in range(5):  # the fastest, because other tests and a cold disk share the machine
        page.goto((SITE / "index.html").as_uri())
        starts.append(page.evaluate("(t => t.domInteractive - t.navigationStart)(performance.timing)"))
    assert min(starts) < LONGEST_START_MS


@pytest.mark.exhaustive
def test_docs_from_scratch(tmp_path: Path) -> None:
    """Its processors' time, which other work on the machine changes little."""
    shutil.copytree(REPOSITORY, tmp_path / "tree", ignore=shutil.ignore_patterns("build", ".git", ".venv"))
    (tmp_path / "tree/.venv").symlink_to(REPOSITORY / ".venv")
    before = os.times()
    subprocess.run(["make", "-s", "docs"], cwd=tmp_path / "tree", check=True)
    after = os.times()
    assert after.children_user + after.children_system < LONGEST_BUILD_S + before.children_user + before.children_system


def is_blank(png: bytes) -> bool:
    return all(low == high for low, high in Image.open(io.BytesIO(png)).convert("RGB").getextrema())


def wrong_in(page: Page, width: int) -> list[str]:
    """What is wrong with the page that is open at this width; at the last one, in both schemes."""
    wrong = []
    page.set_viewport_size({"width": width, "height": 900})
    wait_for_formulas(page)
    if count := page.locator(".merror, .MathJax_Error").count():
        wrong.append(f"{count} formulas are wrong")
    if (wide := page.evaluate("document.documentElement.scrollWidth")) > width:
        wrong.append(f"{wide} pixels wide")
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    wrong += [f"shown: {text}" for text in page.evaluate(MARKUP)]
    wrong += [f"broken word: {word}" for word in page.evaluate(BROKEN_WORDS)]
    wrong += page.evaluate(CUT)
    for scheme in SCHEMES if width == WIDTHS[-1] else ():
        page.emulate_media(color_scheme=scheme)
        wrong += [f"low contrast: {text}" for text in page.evaluate(LOW_CONTRAST)]
    return wrong + page.evaluate(NOT_LOADED)


def test_the_first_page_has_a_live_timeline(page: Page) -> None:
    page.goto((SITE / "index.html").as_uri())
    frame = page.frame_locator("iframe")
    frame.locator("#forward").click()
    assert frame.locator("#event").inner_text().startswith("2 of ")
    assert not frame.locator("h1").is_visible()


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.exhaustive) for part in (1, 2, 3))])
def test_pages_in_a_browser(page: Page, part: int) -> None:
    """Each is loaded by a phone, which is then as wide as a desk's screen."""
    wrong = {}
    for name in [*WRITTEN, *(f"explorers/{name}" for name in EXPLORERS)][part::4]:
        page.set_viewport_size({"width": WIDTHS[0], "height": 900})
        page.goto((SITE / f"{name}.html").as_uri(), wait_until="load")
        wrong[name] = [f"{width} wide: {found}" for width in WIDTHS for found in wrong_in(page, width)]
    assert {name: found for name, found in wrong.items() if found} == {}


@pytest.mark.parametrize("part", range(2))
def test_pictures_can_be_read(page: Page, part: int) -> None:
    wrong = {}
    for path in PICTURES[part::2]:
        page.goto(path.as_uri())
        found = wrong[path.name] = []
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            if scheme == SCHEMES[-1]:
                found += ["blank"] * is_blank(page.screenshot())
            if not re.search("_(light|dark)$", path.stem):  # those are drawn for one scheme each
                found += page.evaluate(LOW_CONTRAST) + page.evaluate(MISPLACED)
    assert PICTURES and {name: found for name, found in wrong.items() if found} == {}
