"""The slides of the lessons: Sphinx reads a Markdown file for each, and sphinx-revealjs makes a deck of it.

A heading of the second level is a slide. Code is `[FILE, region NAME](PATH)`, as on the pages.
"""

import re
import sys
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator
from sphinx_revealjs._ext.notes import revealjs_notes
from sphinx_revealjs.writers import RevealjsSlideTranslator

sys.path.insert(0, str(Path(__file__).parents[1]))
from conf import NAMES, REGION, SOURCES, Cuda, plan, pygments_style, region  # noqa: E402, F401

project = "Attention, step by step: slides"
language = "en"
smartquotes = False  # two dashes begin an option
extensions = ["myst_parser", "sphinx_revealjs", "sphinx.ext.mathjax"]
root_doc = "lesson01"
mathjax_path = "../../mathjax/MathJax.js"
mathjax2_config = {
    "messageStyle": "none",
    "showMathMenu": False,
    "jax": ["input/TeX", "output/SVG"],
    "extensions": ["tex2jax.js"],
    "tex2jax": {"processClass": "math", "ignoreClass": "reveal"},
}
html_copy_source = False  # nothing links to the sources
revealjs_static_path = ["slides.css"]
revealjs_style_theme = "slides.css"
revealjs_css_files = ["pygments.css"]
revealjs_script_conf = {
    "width": 1280,
    "height": 720,
    "margin": 0,
    "center": False,
    "hash": True,
    "slideNumber": "c/t",
    "transition": "none",
    "viewDistance": 99,
}
revealjs_script_plugins = [{"src": "revealjs/plugin/notes/notes.js", "name": "RevealNotes"}]
# Of reveal.js, what the decks do not use.
exclude_patterns = [
    "**/theme",
    "**/*.map",
    "**/*.esm.js",
    "**/*.scss",
    "**/highlight",
    "**/markdown",
    "**/math",
    "**/search",
    "**/zoom",
]


class Slides(RevealjsSlideTranslator):
    """Code is coloured here as on the pages, not by a script."""

    visit_literal_block = HTML5Translator.visit_literal_block
    depart_literal_block = HTML5Translator.depart_literal_block


def add_reading(app: Sphinx, name: str, content: list[str]) -> None:
    """What the plan of the course says is read for a lesson, on its first slide."""
    _, _, before, _, after, *_ = (re.sub(r"\]\((?=[a-z])", "](../", cell) for cell in plan()[name])
    content[0] = content[0].replace(
        "```{revealjs-notes}", f"Read before: {before}.\n\nAfterwards: {after}.\n\n```{{revealjs-notes}}", 1
    )


def resolve_links(app: Sphinx, doctree: nodes.document) -> None:
    """Links that are right in the repository lead to the site around the slides."""
    app.env.metadata[app.env.docname]["orphan"] = True  # a deck is in no table of contents
    for link in list(doctree.findall(lambda node: "reftarget" in getattr(node, "attributes", {}))):
        path, anchor = re.match("([^?#]*)(.*)", link["reftarget"]).groups()
        file = (app.srcdir / path).resolve()
        if found := REGION.fullmatch(link.astext()):
            for block in (code := region(file, found[1], link)):
                block["linenos"] = False
                for where in block.findall(nodes.reference):
                    where["refuri"] = f"../{where['refuri']}"
            link.parent.replace_self(code[::-1])
            continue
        file = file.with_suffix(".md") if link["refdomain"] == "doc" else file
        anchor = f"#{link['reftargetid']}" if link.get("reftargetid") else anchor
        url = f"{NAMES[file]}.html" if file in NAMES else f"source/{file.name}.html" if file in SOURCES else path
        if file.suffix == ".md" and file not in NAMES and file.exists():  # in the repository alone
            link.replace_self(link.children)
        else:
            url = url if url.startswith("..") else f"../{url}"
            link.replace_self(nodes.reference("", "", *link.children, refuri=url + anchor, internal=True))


def setup(app: Sphinx) -> None:
    app.add_lexer("cuda", Cuda)
    app.set_translator("revealjs", Slides)
    app.add_node(
        revealjs_notes,
        override=True,
        revealjs=(
            lambda self, _: self.body.append('<aside class="notes">'),
            lambda self, _: self.body.append("</aside>"),
        ),
    )
    app.connect("source-read", add_reading)
    app.connect("doctree-read", resolve_links, priority=100)  # before files to download are collected
