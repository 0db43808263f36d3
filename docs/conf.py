"""The documentation site: Sphinx reads the pages as a code host shows them.

docs.mk copies the pages into one folder. What only the site has is done here:
the order of the pages, the code in place of `[FILE, region NAME](PATH#LINES)`, pages of the sources and of the
headers, and the terms of the glossary in the index that the search looks at first.
"""

import re
import sys
from functools import cache
from html import escape
from pathlib import Path
from textwrap import dedent

from docutils import nodes
from pygments.lexers.c_like import CudaLexer
from pygments.token import Name, Operator, Punctuation, Text, Whitespace
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.domains.cpp import CPPDomain
from sphinx.domains.math import MathDomain
from sphinx.util import logging

from plots import address
from plots.sections import lines_of

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
sys.path[:0] = [str(ROOT / "steps/exercises"), str(ROOT / "common/python")]
from catalogue import ENTRIES, plan  # noqa: E402, F401

# The files that the pages are made from, by the names of the pages.
PAGES = {
    "contributing": ROOT / "CONTRIBUTING.md",
    "changelog": ROOT / "CHANGELOG.md",
    **{path.stem: path for path in DOCS.glob("*.md")},
    **{entry.page: ROOT / f"steps/exercises/{entry.page}.md" for entry in ENTRIES},
}
HEADERS = [
    ROOT / "common/attention.h",
    ROOT / "common/backward.h",
    ROOT / "common/block_mask.h",
    *sorted((ROOT / "common/device").glob("*.cuh")),
]
FOUNDATIONS = sorted(ROOT.glob("steps/foundations/f*_*.cu"))
SHARED = [ROOT / f"steps/foundations/{name}" for name in ("foundation.h", "gemm.cuh")]
SOURCES = [*sorted((ROOT / "steps").glob("step*.cu")), *FOUNDATIONS, *SHARED, *HEADERS]
BESIDE = [DOCS / "grade.yml", *(DOCS / "slides").glob("*.md")]  # docs.mk brings them into the site
REGION = re.compile(r"\S+, region (\w+)")
NAMES = (
    {file: name for name, file in PAGES.items()}
    | {file: file.name.replace(".", "_") for file in HEADERS}
    | {ROOT / "README.md": "index"}
)
ADDRESS = address.repository(ROOT)

project = "Attention, step by step"
html_title = project
html_baseurl = address.site(ADDRESS)
language = "en"
extensions = ["myst_parser", "sphinx_copybutton", "sphinx.ext.mathjax", "sphinx.ext.autodoc", "breathe"]
autodoc_mock_imports = ["torch"]
autodoc_member_order = "bysource"
default_role = "code"  # `x` in docstrings
root_doc = "index"
myst_heading_anchors = 4
myst_fence_as_directive = ["math"]
html_theme = "furo"
templates_path = ["templates"]
html_static_path = ["site.css", "site.js", "pictures.js"]
html_css_files = ["site.css"]
html_js_files = ["site.js", "pictures.js"]
html_favicon = "favicon.svg"
html_copy_source = html_show_sourcelink = html_show_sphinx = html_show_copyright = False
html_use_index = False
html_show_search_summary = False  # a browser does not let a page read others from file://
html_permalinks_icon = "#"
pygments_style, pygments_dark_style = "a11y-high-contrast-light", "a11y-high-contrast-dark"
copybutton_exclude = ".linenos, .gp, .go"
copybutton_prompt_text = "$ "
mathjax_path = "../mathjax/MathJax.js"
mathjax2_config = {
    "messageStyle": "none",
    "showMathMenu": False,  # its parts are not in the site: docs.mk
    "jax": ["input/TeX", "output/SVG"],
    "extensions": ["tex2jax.js", "TeX/AMSmath.js", "AssistiveMML.js"],
    "tex2jax": {"processClass": "math", "ignoreClass": "page"},
}
breathe_projects = {"headers": str(ROOT / "build/docs/xml")}
breathe_default_project = "headers"
breathe_domain_by_extension = {"h": "cpp", "cuh": "cpp"}


class Cuda(CudaLexer):
    """C++ with the words of CUDA, those included that Pygments does not know."""

    function_qualifiers = CudaLexer.function_qualifiers | {"__launch_bounds__"}
    variable_qualifiers = CudaLexer.variable_qualifiers | {"__align__", "__grid_constant__"}
    vector_types = CudaLexer.vector_types | {"__half", "__half2", "__nv_bfloat16", "__nv_bfloat162"}
    functions = CudaLexer.functions | {"__syncwarp", "__shfl_sync", "__shfl_xor_sync", "__shfl_up_sync"}

    def get_tokens_unprocessed(self, text, **stack):
        """Names, operators and punctuation are plain text: their tags would be a fifth of the site."""
        for index, token, value in super().get_tokens_unprocessed(text, **stack):
            yield index, Text if token in (Name, Operator, Punctuation, Whitespace) else token, value


class Headers(CPPDomain):
    """C++ without the parameters, of which the search would show each."""

    def get_objects(self):
        return (entry for entry in super().get_objects() if not entry[2].endswith("Param"))


class Formulas(MathDomain):
    """MathJax is for the pages that have formulas themselves, not for those that list such pages."""

    def has_equations(self, docname: str | None = None) -> bool:
        return self.data["has_equations"].get(docname, False)


def listed(name: str) -> list[str]:
    """The pages that the lists of a page link to, in order."""
    items = re.findall(r"^- \[.*", PAGES[name].read_text(), re.MULTILINE)
    return [page for item in items for page in re.findall(r"\]\(([\w-]+)\.md\)", item)]


def tree() -> dict[str, list[str]]:
    """The pages in the order of reading, by the captions in the sidebar."""
    steps = [page for page in listed("steps") if "-tried" not in page]
    programs = [page for file in FOUNDATIONS if (page := file.name.split("_")[0]) in PAGES]
    return {
        "Start": ["self"],
        "Chapter 0: foundations": ["foundations", *programs, "gpu"],
        "The steps": ["steps", *steps],
        "Primers": ["primers", *(page for page in listed("primers") if page != "gpu")],
        "Exercises": ["classroom", "exercises"],
        "Reference": ["reference", *listed("reference"), "headers", "contributing", "changelog"],
        "For the teacher": ["teaching", "quizzes", "wrong-answers"],
    }


def toctree(pages: list[str], caption: str = "") -> str:
    return "\n".join(
        ["", "```{toctree}", ":hidden:", *([f":caption: {caption}"] if caption else []), "", *pages, "```", ""]
    )


def write_headers(app: Sphinx, _) -> None:
    """A page for each header, and one that lists them."""
    app.srcdir.joinpath("headers.md").write_text(
        "\n".join(
            [
                "# Headers\n",
                "The functions and structures that the steps share.\n",
                *(f"- [{file.relative_to(ROOT / 'common')}]({NAMES[file]}.md)" for file in HEADERS),
                toctree([NAMES[file] for file in HEADERS]),
            ]
        )
    )
    for file in HEADERS:
        path = file.relative_to(ROOT / "common")
        app.srcdir.joinpath(f"{NAMES[file]}.md").write_text(
            f"# {path}\n\nSource: [common/{path}](source/{file.name}.html)\n\n```{{doxygenfile}} {path}\n```\n"
        )


# What the page on the package shows of the docstrings.
PYTHON = """
## Reference

```{eval-rst}
.. currentmodule:: attention_steps
.. autofunction:: step
.. autofunction:: build
.. autoclass:: Step()
   :members: __call__, lab, facts, source
.. autoclass:: Lab()
   :members: conflicts, traffic, verdict, table, frame, plot, compare, annotated
.. autoclass:: Line()
.. autoclass:: attention_steps.report.Counts()
   :members: sectors, wavefronts, conflicts
.. autoclass:: Problem()
.. autoexception:: StepError
.. autoexception:: BuildError
.. currentmodule:: attention_steps.torch_ops
.. autofunction:: attention
.. autofunction:: decode
.. autofunction:: decode_schedule
.. autofunction:: document_spans
.. autofunction:: blocks_of
.. autofunction:: scaled_dot_product_attention
.. autofunction:: use_in_transformers
```
"""


def read_page(app: Sphinx, name: str, content: list[str]) -> None:
    """What MyST writes in another way than code hosts: formulas, pictures for light and dark pages."""

    def pictures(match: re.Match) -> str:
        alt, width = (re.search(f'{key}="([^"]*)"', match[0])[1] for key in ("alt", "width"))
        light = re.search(r'<img src="(?:docs/)?([^"]*)"', match[0])[1]
        return "\n".join(
            f"```{{image}} {light.replace('_light', '_' + scheme)}\n"
            f":alt: {alt}\n:width: {width}px\n:class: only-{scheme}\n```\n"
            for scheme in ("light", "dark")
        )

    text = re.sub(r"\$`([^`]*)`\$", r"{math}`\1`", content[0])
    text = re.sub(r"^<picture>.*?</picture>", pictures, text, flags=re.MULTILINE | re.DOTALL)
    for entry in ENTRIES:
        if name == entry.page:
            text = text.replace("\n", f"\n\n{entry.facts}\n", 1)
    if own := [
        f"- [{entry.name}](../steps/exercises/{entry.page}.md): {entry.title}"
        for entry in ENTRIES
        if entry.step == name
    ]:
        body, end = text.rstrip().rsplit("\n\n", 1)
        text = "\n".join([body, "\n## Exercises\n", *own, "", end, ""])
    if ADDRESS:
        text = re.sub(r"\bREPOSITORY\b", ADDRESS, text)
    if name == "index":
        text += "".join(toctree(pages, caption) for caption, pages in tree().items())
    elif f"{name}-tried" in PAGES:
        text += toctree([f"{name}-tried"])
    elif name == "python":
        text += PYTHON
    elif name == "exercises":
        text += toctree([entry.page for entry in ENTRIES])
    elif name in ("quizzes", "wrong-answers"):
        text = f"---\nnosearch: true\n---\n{text}"  # a search must find pages and tasks, not their answers
    content[0] = text


def region(file: Path, name: str, location: nodes.Node) -> list[nodes.Node]:
    """The code between the two lines `// [name]`, below a line that says where it is."""
    lines = lines_of(file, name)
    if not lines:
        logging.getLogger(__name__).warning("%s has no region %s", file.name, name, location=location)
        return []
    # The marks of other regions become empty lines, so that the numbers stay right.
    code = dedent(
        "\n".join(
            re.sub(r"^ *// \[\w+\]$", "", line) for line in file.read_text().split("\n")[lines[0] - 1 : lines[-1]]
        )
    )
    block = nodes.literal_block(code, code, language="cuda", linenos=True, highlight_args={"linenostart": lines[0]})
    where = nodes.reference(
        "",
        f"{file.relative_to(ROOT)}, lines {lines[0]} to {lines[-1]}",
        refuri=f"source/{file.name}.html#line-{lines[0]}",
        internal=True,
    )
    return [nodes.paragraph("", "", where, classes=["where"]), block]


def resolve_links(app: Sphinx, doctree: nodes.document) -> None:
    """Links that are right in the repository: to pages, sources, explorers and slides. Those to other
    files become plain text."""
    name = app.env.docname
    folder = PAGES[name].parent if name in PAGES else app.srcdir
    for link in list(doctree.findall(addnodes.pending_xref)):
        if link["reftype"] != "myst" or link["refdomain"]:
            continue
        path, anchor = re.match("([^?#]*)(.*)", link["reftarget"]).groups()
        file = (folder / path).resolve()
        if found := REGION.fullmatch(link.astext()):
            paragraph = link.parent  # of such links alone
            paragraph.parent.insert(paragraph.parent.index(paragraph), region(file, found[1], link))
            paragraph.remove(link)
            if not paragraph.astext().strip():
                paragraph.parent.remove(paragraph)
        elif file in NAMES:
            link.attributes.update(refdomain="doc", reftarget=NAMES[file], reftargetid=anchor[1:] or None)
        elif file in (*SOURCES, *BESIDE) or file.suffix in (".html", ".ipynb"):
            url = f"source/{file.name}.html" if file in SOURCES else path.removeprefix("docs/").replace(".md", ".html")
            link.replace_self(nodes.reference("", "", *link.children, refuri=url + anchor, internal=True))
        elif file.exists():
            link.replace_self(link.children)


TERM = re.compile(r"^- (?:\*\*)?(.+?)(?:\*\*)?: .*?\]\(([\w-]+)\.md(?:#[\w-]+)?\)\.$", re.MULTILINE | re.DOTALL)


@cache
def glossary() -> list[tuple[str, str]]:
    """The words of each item, and the page that it names."""
    return [found for item in re.split(r"\n(?=- |\n)", PAGES["glossary"].read_text()) for found in TERM.findall(item)]


def index_terms(app: Sphinx, doctree: nodes.document) -> None:
    """Who searches for a term of the glossary finds the page that the glossary names, and for
    "exercise 5", "exercise 05" or "ex05" that exercise."""
    terms = [term.strip("`* ") for words, page in glossary() if page == app.env.docname for term in words.split(", ")]
    terms += [
        word
        for entry in ENTRIES
        if entry.page == app.env.docname
        for word in (entry.name, entry.number, entry.name.replace("ex", "exercise "))
    ]
    if terms:
        entry = addnodes.index(entries=[("single", term, "", "main", None) for term in terms])
        doctree[0].insert(1, entry)
        app.env.get_domain("index").process_doc(app.env, app.env.docname, doctree)


def source_pages(app: Sphinx):
    for file in SOURCES:
        code = app.builder.highlighter.highlight_block(file.read_text(), "cuda", linespans="line")
        path = file.relative_to(ROOT)
        yield f"source/{file.name}", {"title": str(path), "body": f"<h1>{path}</h1>{code}"}, "page.html"


def describe(app: Sphinx, name: str, template: str, context: dict, doctree: nodes.document) -> None:
    """The description that search engines show, which is the first paragraph that says more than where the source
    is, and the link for editing. The sidebar of all pages but the first leaves out what is below other pages,
    because the whole tree in each would be a quarter of the site; that of a source, to which pages link, has no tree."""
    if name != root_doc and (whole := context.get("toctree")):
        is_source = name.startswith("source/")
        context["toctree"] = lambda **options: "" if is_source else whole(**options | {"collapse": True})
    paragraphs = (node.astext() for node in (doctree.findall(nodes.paragraph) if doctree else ()))
    first = next((text for text in paragraphs if not text.startswith("Source:")), context.get("title", project))
    text = re.sub(r"\s+", " ", first)
    tag = f'<meta name="description" content="{escape(text[:200])}">'
    context["metatags"] = context.get("metatags", "") + tag
    if ADDRESS and name in PAGES:
        context["theme_source_edit_link"] = f"{ADDRESS}/edit/main/{PAGES[name].relative_to(ROOT)}"


def setup(app: Sphinx) -> dict[str, bool]:
    for name in ("cuda", "cpp"):
        app.add_lexer(name, Cuda)
    for domain in (Headers, Formulas):
        app.add_domain(domain, override=True)
    app.connect("config-inited", write_headers)
    app.connect("source-read", read_page)
    app.connect("doctree-read", resolve_links)
    app.connect("doctree-read", index_terms)
    app.connect("html-collect-pages", source_pages)
    app.connect("html-page-context", describe)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
