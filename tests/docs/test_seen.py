"""What a reader sees around the text of the site: the tree, the contents, the search, dark pictures."""

import io
import re
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page

from tests.docs.conftest import SITE, WRITTEN, wait_for_formulas
from tests.docs.test_site import MARKUP, links_of
from tests.lib.programs import REPOSITORY

DOCS = REPOSITORY / "docs"
DESK, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 900}
LINE = range(70, 86)  # characters
MOST_WORDS = 4000  # outside of code

# What a reader of kernels may look for, and the pages that explain it.
SEARCHED = {
    "bank conflict": "f03",
    "occupancy": "f04",
    "roofline": "roofline",
    "swizzle": "swizzles",
    "mbarrier": "hopper",
    "online softmax": "online-softmax",
    "coalescing": "f02",
    "warp specialisation": "step08",
    "persistent": "step10",
    "fp8": "step12",
    "TMA": "hopper",
    "wgmma": "hopper",
    "ldmatrix": "swizzles",
    "cp.async": "pipelines",
    "racecheck": "debugging",
    "causal mask": "specification",
    "LSE": "specification",
    "head dimension": "specification",
    "L2 flush": "measuring",
    "tensor core": "fragments",
    "fragment": "fragments",
    "prefetch": "step04",
    "block mask": "block-masks",
    "FlexAttention": "map",
    "FlashAttention-3": "fa3-questions",
    "bf16": "floating-point",
    "e4m3": "step12",
    "wavefront": "f03",
    "sector": "f02",
    "shared memory": "f02",
    "warp shuffle": "f04",
    "mutants": "mutants",
    "simulator": "cpu-backend",
    "error rule": "correctness",
    "tile scheduler": "step10",
    "ping-pong": "step08",
    "setmaxnreg": "step08",
    "exercises": "exercises",
    "exercise 5": "ex05_rescale",
    "activations": "real-input",
    "overflow": "floating-point",
    "JSON": "json-records",
    "options": "options",
    "lazy rescaling": "step06b",
    "cuda-gdb": "debugging",
    "Nsight Compute": "debugging",
    "latency": "f04",
    "bandwidth": "roofline",
    "padding": "swizzles",
    # What a newcomer may type.
    "warp divergence": "gpu",
    "shared memory bank": "gpu",
    "install": "laptops",
    "Windows": "laptops",
    "grouped-query attention": "specification",
    "HBM": "f01",
    "ncu": "debugging",
    "multi-head attention": "specification",
    "register spilling": "gpu",
    "race condition": "lab",
    "memory bound": "roofline",
    "kernel fusion": "step02",
    "sliding window": "block-masks",
    "numerical stability": "online-softmax",
    "step 04": "step04",
    "exercise 05": "ex05_rescale",
    "step 04 real model input": "real-input",
    "backward pass": "gradients",
    "gradient": "gradients",
    "why is my kernel slow": "debugging",
    "grading": "teaching",
    "lesson plan": "teaching",
    # Of chapter 0.
    "first program": "f01",
    "cudaMalloc": "f01",
    "nvcc": "f01",
    "array of structures": "f02",
    "transposition": "f03",
    "reduction": "f04",
    "deterministic": "f04",
    "prefix sum": "f05",
    "look-back": "f05b",
    "deadlock": "f10",
}


def listed(page: str) -> list[str]:
    """The pages that the lists of a page link to, in order."""
    return re.findall(r"^- \[.*?\]\(([\w-]+)\.md\)", (DOCS / f"{page}.md").read_text(), re.MULTILINE)


def opened(page: Page, name: str) -> None:
    page.goto((SITE / f"{name}.html").as_uri())


def tree(page: Page) -> list[str]:
    opened(page, "index")
    return page.locator(".sidebar-tree a").evaluate_all(
        "links => links.map(a => new URL(a.href).pathname.match(/([^/]*)\\.html$/)[1])"
    )


def test_tree_has_the_pages_in_the_order_of_reading(page: Page) -> None:
    names = tree(page)
    assert names[:3] == ["index", "foundations", "f01"] and names[names.index("steps") - 1] == "gpu"
    assert sorted(name for name in WRITTEN if name not in names) == []
    for contents in ("foundations", "steps", "primers", "reference"):
        wanted = [name for name in listed(contents) if name != "gpu" and "-tried" not in name]
        assert [name for name in names if name in wanted] == wanted
        assert names.index(wanted[0]) == names.index(contents) + 1
    course = re.findall(r"/exercises/(\w+)\.md\)", (DOCS / "exercises.md").read_text())
    assert names[names.index("exercises") + 1 :][: len(course)] == course and course[0].startswith("ex00")


def test_next_goes_through_all_pages(page: Page) -> None:
    names, seen = tree(page), ["index"]
    while following := re.search(r'rel="next"[^>]*href="([\w-]+)\.html"', (SITE / f"{seen[-1]}.html").read_text()):
        seen.append(following[1])
    assert seen == names
    opened(page, "step04")
    page.locator(".related-pages .prev-page").click()
    page.wait_for_url("**/step03.html")


def test_pages_before_and_after_are_linked_above_the_title(page: Page) -> None:
    opened(page, "step04")
    links = page.locator("article nav a")
    assert links.all_text_contents() == ["Step 03", "Step 05"]
    assert links.last.bounding_box()["y"] < page.locator("article h1").bounding_box()["y"]


def test_titles_in_the_tree_are_not_clipped(page: Page) -> None:
    page.set_viewport_size(DESK)
    opened(page, "step01")
    assert (
        page.locator(".sidebar-tree a").evaluate_all(
            """links => links.filter(a => a.checkVisibility() && a.getBoundingClientRect().right
             > document.querySelector('.sidebar-drawer').getBoundingClientRect().right)
             .map(a => a.textContent)"""
        )
        == []
    )


def test_the_tree_shows_the_page_that_is_open(page: Page) -> None:
    opened(page, "contributing")
    box = page.locator(".sidebar-tree .current-page > a").bounding_box()
    assert 0 < box["y"] < DESK["height"] - box["height"]


def test_a_phone_reaches_the_steps(page: Page) -> None:
    """By the menu in the header, as the tree is hidden there."""
    page.set_viewport_size(PHONE)
    opened(page, "measuring")
    page.locator(".nav-overlay-icon").click()
    page.locator(".sidebar-tree").get_by_role("link", name="The steps", exact=True).click(timeout=5000)
    page.wait_for_url("**/steps.html")


def test_around_a_page(page: Page) -> None:
    """Its contents beside it, a button on each block of code, links to headings, a description."""
    page.set_viewport_size(DESK)
    opened(page, "step04")
    box = page.locator(".toc-tree").bounding_box()
    assert 0 < box["x"] and box["x"] + box["width"] <= DESK["width"] and box["y"] < DESK["height"]
    assert page.locator(".toc-tree a").count() >= page.locator("article h2").count() > 3
    assert page.locator("article pre").count() == page.locator("article button.copybtn").count() > 3
    assert page.locator("article h2 a.headerlink").count() == page.locator("article h2").count()
    assert page.locator("html").get_attribute("lang") == "en"
    assert len(page.locator("meta[name=description]").get_attribute("content")) > 20
    assert page.locator("link[rel~=icon]").count() == 1
    assert page.title() == "Step 04: prefetch - Attention, step by step"
    assert page.evaluate("""() => [...document.querySelectorAll('article .highlight-cuda pre')]
      .every(pre => pre.scrollWidth <= pre.clientWidth)""")
    shared = page.locator("article pre .kt", has_text="__shared__")  # a word of CUDA
    assert shared.count() == 1


def test_lines_have_70_to_85_characters(page: Page) -> None:
    page.set_viewport_size(DESK)
    opened(page, "gpu")
    lengths = page.evaluate("""() => [...document.querySelectorAll('article section > p')]
      .map(p => [p.textContent.length, Math.round(p.getBoundingClientRect().height
        / parseFloat(getComputedStyle(p).lineHeight))])
      .filter(([length, lines]) => lines > 3)  // the last line is half full, on average
      .map(([length, lines]) => Math.round(length / (lines - 0.5)))""")
    assert len(lengths) > 5 and sorted(lengths)[len(lengths) // 2] in LINE


def test_search_finds_the_page_that_explains(page: Page) -> None:
    wrong = {}
    page.goto(f"{(SITE / 'search.html').as_uri()}?q=step+04")  # as the field of the sidebar does
    assert page.locator("ul.search li > a").first.get_attribute("href").startswith("step04.html")
    # What Sphinx does for a term, without the list, which it fills in slowly; the best are the last.
    all_found = page.evaluate(
        """terms => terms.map(term => {
          document.querySelector('input[name=q]').value = term;  // site.js reads it to order the results
          return Search._performSearch(...Search._parseQuery(term)).slice(-2).map(result => result[0]);
        })""",
        list(SEARCHED),
    )
    for (term, name), found in zip(SEARCHED.items(), all_found, strict=True):
        if name not in found or "wrong-answers" in found:
            wrong[term] = name, found
    assert wrong == {}


def test_no_page_is_too_long() -> None:
    """Besides the notebooks of what was tried, and what is looked up and not read through."""
    reference = {"glossary", "wrong-answers", *listed("reference")}
    words = {
        path.stem: len(re.findall(r"\S*\w\S*", re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)))
        for path in DOCS.glob("*.md")
        if "-tried" not in path.stem and path.stem not in reference
    }
    assert {name: count for name, count in words.items() if count > MOST_WORDS} == {}


def test_headers_show_no_markup(page: Page) -> None:
    wrong = {}
    for path in sorted([*SITE.glob("*_h.html"), *SITE.glob("*_cuh.html")])[::3]:  # all are made alike
        opened(page, path.stem)
        wrong[path.stem] = page.evaluate(MARKUP)
    assert len(wrong) > 10 and {name: found for name, found in wrong.items() if found} == {}


def test_no_message_of_mathjax(page: Page) -> None:
    """While formulas are typeset, and after that."""
    page.add_init_script("""window.messages = [];
      setInterval(() => {
        const box = document.querySelector('#MathJax_Message');
        if (box && box.checkVisibility()) window.messages.push(box.textContent);
      }, 10)""")
    opened(page, "online-softmax")
    page.wait_for_timeout(2500)
    assert page.evaluate("window.messages") == []


def test_pictures_on_dark_pages(page: Page) -> None:
    """A picture has the background of the page, also if the switch made it dark, not the system."""
    page.set_viewport_size(DESK)
    opened(page, "index")
    for _ in range(2):
        if page.locator("body").get_attribute("data-theme") != "dark":
            page.locator(".theme-toggle:visible").first.click()
    seen, wrong, kinds = set(), [], set()
    for name in WRITTEN:  # that show a picture of another kind than those before
        shown_here = {
            re.sub(r"_?(step)?\d\d[a-z]?|_light|_dark", "", Path(picture).stem)
            for picture, _ in links_of(SITE / f"{name}.html").pictures
        }
        if shown_here <= kinds:
            continue
        kinds |= shown_here
        opened(page, name)
        wait_for_formulas(page)  # until then they move what is below
        page.evaluate(
            "Promise.all([...document.querySelectorAll('article img')].map(img => img.decode().catch(() => 0)))"
        )
        assert page.locator("body").get_attribute("data-theme") == "dark"
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        for picture in page.locator("article img:visible").all():
            source = picture.evaluate("img => img.decode().then(() => img.currentSrc)")
            if source in seen:
                continue
            seen.add(source)
            shown = Image.open(io.BytesIO(picture.screenshot())).convert("RGB")  # once it stands still
            colour = shown.getpixel((2, 2))
            if colour != tuple(map(int, re.findall(r"\d+", ground)[:3])):
                wrong.append(f"{name}: {Path(source).name}: {colour} on {ground}")
    assert len(seen) > 10 and wrong == []
