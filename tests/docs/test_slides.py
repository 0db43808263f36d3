"""The slides of the lessons, in a browser, and how much is to be read for each lesson."""

import re
import sys

import pytest
from playwright.sync_api import Page

from tests.docs.conftest import SITE
from tests.lib.programs import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "steps/exercises"))
from catalogue import ENTRIES, plan  # noqa: E402
from table import EXERCISES  # noqa: E402

DOCS = REPOSITORY / "docs"
DECKS = sorted(path.stem for path in (DOCS / "slides").glob("*.md"))
SLIDES = range(8, 15)  # of a lesson
MOST_WORDS = 100  # on a slide beside code and pictures: half a minute
MOST_TO_READ = 6000  # words for a lesson

# What is wrong with the slide that is shown: too much on it, a part that leaves it, a picture that is
# missing or tiny, a formula that was not set, no notes.
WRONG = """most => {
  const slide = Reveal.getCurrentSlide(), wrong = [], area = slide.getBoundingClientRect();
  const [visible, notes] = [slide.cloneNode(true), slide.querySelector('aside.notes')];
  visible.querySelectorAll('aside, pre, svg, script').forEach(part => part.remove());
  const words = visible.textContent.trim().split(/\\s+/).length;
  if (words > most) wrong.push(`${words} words`);
  if (!notes || notes.textContent.length < 80) wrong.push('no notes');
  for (const part of slide.querySelectorAll(':scope > :not(aside), pre, code, td, li, img')) {
    const box = part.getBoundingClientRect();
    if (box.right > area.right - 30 || box.bottom > area.bottom || part.scrollWidth > part.clientWidth + 1
        && part.matches('pre')) wrong.push(`outside: ${part.tagName} ${part.textContent.slice(0, 40)}`);
    if (part.matches('img') && !(part.naturalWidth && box.width > 400)) wrong.push(`no picture: ${part.src}`);
  }
  if (slide.querySelectorAll('.math').length > slide.querySelectorAll('.MathJax_SVG').length) wrong.push('no formula');
  return wrong;
}"""


def test_slides_fit(page: Page) -> None:
    page.set_viewport_size({"width": 1280, "height": 720})
    wrong, counts = {}, {}
    for deck in DECKS:
        page.goto((SITE / f"slides/{deck}.html").as_uri(), wait_until="load")
        page.wait_for_function(
            "Reveal.isReady() && (!document.querySelector('.math')"
            " || document.querySelector('.MathJax_SVG') && !MathJax.Hub.queue.pending)"
        )
        counts[deck] = page.evaluate("Reveal.getTotalSlides()")
        for slide in range(counts[deck]):
            page.evaluate(f"Reveal.slide({slide})")
            wrong[f"{deck}, slide {slide + 1}"] = page.evaluate(WRONG, MOST_WORDS)
    assert DECKS and {deck: count for deck, count in counts.items() if count not in SLIDES} == {}
    assert {slide: found for slide, found in wrong.items() if found} == {}


def words_of(page: str, anchor: str) -> int:
    """Of a page, or of one section, without code and the tables of measurements."""
    left_out = r"<!-- (\w+): .*?<!-- /\1 -->|^```.*?^```|</?[a-z]+[^<>]*>|\]\([^)]*\)"
    text = re.sub(left_out, " ", (DOCS / f"{page}.md").read_text(), flags=re.DOTALL | re.MULTILINE)
    if anchor:
        for section in re.findall(r"^#+ .*?(?=^#|\Z)", text, re.MULTILINE | re.DOTALL):
            title = section.split("\n")[0]
            if re.sub(r"[^\w -]", "", title.lstrip("# ").lower()).replace(" ", "-") == anchor:
                level = len(title) - len(title.lstrip("#"))
                text = re.split(rf"^#{{1,{level}}} ", text[text.index(section) + level :], flags=re.MULTILINE)[0]
                return len(text.split())
        pytest.fail(f"{page}.md has no section {anchor}")
    return len(text.split())


def test_the_reading_for_a_lesson_fits_a_week() -> None:
    """What is read before it and afterwards."""
    assert list(plan()) == DECKS
    words = {
        deck: sum(
            words_of(*link) for cell in (before, after) for link in re.findall(r"\]\(([\w-]+)\.md#?([\w-]*)\)", cell)
        )
        for deck, (_, _, before, _, after, *_) in plan().items()
    }
    assert {deck: count for deck, count in words.items() if not 0 < count <= MOST_TO_READ} == {}


def test_minutes_of_the_slides_are_those_of_a_lesson() -> None:
    """Each is in the notes, but of what is shown later."""
    for deck in DECKS:
        text = (DOCS / f"slides/{deck}.md").read_text()
        marks = re.findall(r"^```{revealjs-notes}\n\*\*(?:(\d+) min\.|Later)\*\*", text, re.MULTILINE)
        assert len(marks) == text.count("revealjs-notes") and sum(int(mark or 0) for mark in marks) == 90, deck


def test_exercises_are_listed_in_the_order_of_the_plan() -> None:
    wanted = [
        name
        for _, _, _, in_class, _, at_home, _ in plan().values()
        for name in re.findall(r"exf?\d\d[a-z]?", f"{in_class} {at_home}")
    ]
    judges = ("judge_backward", "judge_spans", "judge_decode")  # of exercises that come after the lessons
    backward = {name for name, exercise in EXERCISES.items() if exercise.judge in judges}
    assert list(dict.fromkeys(wanted)) == [
        entry.name for entry in ENTRIES if entry.name.startswith("ex") and entry.name not in backward
    ]
