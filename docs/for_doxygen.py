"""Prints a file as Doxygen understands it; Doxygen calls this for each: INPUT_FILTER in Doxyfile.

Pages are Markdown as repositories show it. Of a step only the comment at its head is documentation;
the site shows the rest as source. In headers, the comment after `int a, b;` is that of both, and
macros without a comment are left out.

Usage: for_doxygen.py PAGE.md|STEP.cu|HEADER.h|HEADER.cuh
       for_doxygen.py --finish SITE

The second form changes what Doxygen has written. Doxygen finds a name in a listing without its scope:
links are removed from names that the step itself defines and from members, as these may be others of
the same name. The menu that small screens have instead of the tree gets the pages.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = re.compile(r"^(steps/|common/device/).*\.(cu|cuh)$|^common/attention\.h$")
# Pages with tables of contents: the site's tree has the pages that their lists link below them.
CONTENTS = ("README.md", "steps.md", "primers.md", "reference.md")
# `int a, *b, c[2]; /**< what they are */`
MEMBERS = re.compile(r"^( +)((?:const )?\w+) ((?:\*?\w+(?:\[\w+\])?, )+\*?\w+(?:\[\w+\])?);[ \n]+"
                     r"(/\*\*<(?:[^*]|\*(?!/))*\*/)", re.MULTILINE)
MACRO = re.compile(r"^#define (?:.*\\\n)*.*\n", re.MULTILINE)
CODE = "`[^`]*`"
REGION = re.compile(r"^\[(\S+), region (\w+)\]\(\S+\)$")


def slug(heading: str) -> str:
    """The anchor that GitHub gives to a heading."""
    text = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def label(page: Path, anchor: str = "") -> str:
    """The label of a page or, with an anchor, of one of its headings."""
    name = "index" if page.name == "README.md" else page.stem.lower()
    return f"{name}_{anchor}" if anchor else name


def link(page: Path, line: str, text: str, target: str) -> str:
    """A link in a line of a page. Files that are not part of the site become plain text."""
    if re.match(r"https?:", target):
        return f"[{text}]({target})"
    path, _, anchor = target.partition("#")
    path, *query = path.partition("?")
    file = (page.parent / path).resolve() if path else page
    relative, shown = file.relative_to(ROOT).as_posix(), ""
    if file.suffix == ".md" and (file.parent == ROOT or ROOT / "docs" in file.parents):
        if not anchor and is_below(page, line, file):
            return f"@subpage {label(file)} \"{text}\""
        name, shown = label(file, anchor), label(file) + ".html"
    elif file.suffix in (".html", ".ipynb"):
        name, shown = "", file.relative_to(ROOT / "docs").as_posix() + "".join(query)
    elif SOURCES.match(relative):
        name, shown = file.name, page_of(file)
    if not shown:
        return text
    # Doxygen reads no Markdown in the text of a @ref.
    if name and "`" not in text:
        return f"[{text}](@ref {name})"
    return f'<a href="{shown}{f"#{name}" if anchor else ""}">{text}</a>'


def page_of(source: Path) -> str:
    """The site's page of a source file."""
    return source.name.replace("_", "__").replace(".", "_8") + ".html"


def is_below(page: Path, line: str, file: Path) -> bool:
    """Is the page in `file`, which `line` links to, below this one in the tree of the site?"""
    if "-tried" in file.stem:
        return file.stem == f"{page.stem}-tried"
    return page.name in CONTENTS and line.startswith("- [")


def html(text: str) -> str:
    return f"\\htmlonly {text} \\endhtmlonly"


def convert(page: Path, text: str) -> str:
    def image(match: re.Match) -> str:
        source = (page.parent / match[2]).resolve().relative_to(ROOT / "docs").as_posix()
        return html(f'<img class="picture" src="{source}" alt="{match[1]}">')

    def inline(line: str) -> str:
        line = re.sub(r"\$`([^`]*)`\$", lambda m: f"\\f$ {m[1]} \\f$", line)
        line = re.sub(rf"{CODE}|!\[([^\]]*)\]\(([^)\s]+)\)",
                      lambda m: image(m) if m[2] else m[0], line)
        # Doxygen does not know bold text that begins with code, except in HTML.
        line = re.sub(rf"{CODE}|\*\*((?:[^*`]|{CODE})+)\*\*",
                      lambda m: f"<b>{m[1]}</b>" if m[1] else m[0], line)
        line = re.sub(rf"{CODE}|(?<!!)\[((?:[^\[\]`]|{CODE})+)\]\(([^)\s]+)\)",
                      lambda m: link(page, line, m[1], m[2]) if m[1] else m[0], line)
        # An apostrophe ends Doxygen's `code', but not ``code``.
        return re.sub(CODE, lambda m: f"`{m[0]}`" if "'" in m[0] else m[0], line)

    lines, fence, margin, item = [], "", "", False
    source = iter(join_lines(text).split("\n"))
    for line in source:
        mark = re.match(r"^\s*(`{3,})\s*(\w*)", line)
        if fence:
            if mark and not mark[2]:
                line, fence = ("\\f]" if fence == "math" else line), ""
        elif mark:
            fence = mark[2] or "text"
            line = "\\f[" if fence == "math" else line
        elif line.startswith("<picture"):
            block = [line]
            while not block[-1].startswith("</picture"):
                block.append(next(source))
            line = html(" ".join(block).replace('"docs/', '"'))
        elif re.match(r"^\s*</?(details|summary)", line):
            # An answer belongs to the question before it, an item of a list.
            margin = "   " if item and line.startswith("<details") else margin
            line = html(line.strip())
        elif match := re.match(r"^(#{1,4}) (.*)$", line):
            anchor = slug(match[2]) if len(match[1]) > 1 else ""
            name = label(page, anchor)
            title = inline(match[2].replace("`", ""))  # Doxygen shows the tags of code in titles
            line = f"{match[1]} {title}" + (f" {{#{name}}}" if name != "index" else "")
        elif match := REGION.match(line):
            line = f"\\snippet{{lineno}} {match[1]} {match[2]}"
        else:
            line = inline(line)
        lines.append((margin + line).rstrip())
        if "</details>" in line:
            margin = ""
        elif re.match(r"(\d+\.|-) ", line) or (not margin and re.match(r"[^\s\\]", line)):
            item = bool(re.match(r"(\d+\.|-) ", line))
    return "\n".join(lines)


def split_members(text: str) -> str:
    """A header with one declaration of a member each, with comments on specialisations, and without
    the macros that have no comment, such as the one against reading it twice."""
    def split(match: re.Match) -> str:
        indent, kind, names, comment = match.groups()
        return indent + " ".join(f"{kind} {name.strip()}; {comment}" for name in names.split(","))

    def documented(match: re.Match) -> str:
        with_comment = "/**" in match[0] or text[:match.start()].endswith("*/\n")
        return match[0] if with_comment else "\n" * match[0].count("\n")

    text = MEMBERS.sub(split, text)
    text = re.sub(r"^#ifndef (\w+)\n#define \1\n", "#if 1\n\n", text, flags=re.MULTILINE)
    text = MACRO.sub(documented, text)
    return re.sub(r"^template <>", "/** As declared above, for one type. */ template <>", text,
                  flags=re.MULTILINE)


INSIDE = rf"(?:[^*\[\]`\n]|\n(?! *\n)|{CODE})+"  # within a paragraph
SPAN = re.compile(rf"{CODE}|\*\*{INSIDE}\*\*|\[{INSIDE}\]\(")
FENCED = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)


def join_lines(text: str) -> str:
    """Links and bold texts, each on one line."""
    parts = FENCED.split(text)
    for i in range(0, len(parts), 2):
        parts[i] = SPAN.sub(lambda span: re.sub(r"\n *", " ", span[0]), parts[i])
    return "".join(parts)


DEFINED = re.compile(r"(?:__device__|__global__|\bstatic|\bconstexpr|\bstruct|\benum|#define)\b[^;(={]*?"
                     r"(\w+)(?:\[[^\]]*\])*\s*[(={]")
CODE_LINK = re.compile(r'(\.|-&gt;)?<a class="code [^>]*>(\w+)</a>')


def unlink(site: Path) -> None:
    for step in (ROOT / "steps").glob("step*.cu"):
        text = step.read_text()
        own = {*DEFINED.findall(text), *re.findall(r"(?:int|typename) (\w+)(?=[,>])", text)}
        source = page_of(step).replace(".html", "_source.html")
        pages = [site / f"{step.stem.split('_')[0]}.html", site / source]
        for page in filter(Path.exists, pages):
            page.write_text(CODE_LINK.sub(lambda link: f"{link[1] or ''}{link[2]}" if link[1]
                                          or link[2] in own else link[0], page.read_text()))


ENTRY = re.compile(r'^ {4}\[ ("[^"]*"), ("[^"#]*"), ', re.MULTILINE)  # of the tree, below the main page


def list_pages(site: Path) -> None:
    """Doxygen's list of pages is empty, because all are below the main page."""
    menu = site / "menudata.js"
    text = menu.read_text()
    pages = [f"{{text:{title},url:{page}}},"
             for title, page in ENTRY.findall((site / "navtreedata.js").read_text())
             if page not in text]
    menu.write_text(text.replace('{text:"Related Pages",url:"pages.html"},', "\n".join(pages)))


if __name__ == "__main__":
    if sys.argv[1] == "--finish":
        unlink(Path(sys.argv[2]))
        sys.exit(list_pages(Path(sys.argv[2])))
    this = Path(sys.argv[1]).resolve()
    content = this.read_text()
    if this.suffix == ".md":
        print(convert(this, content), end="")
    else:
        print(content.split("*/")[0] + "*/" if this.suffix == ".cu" else split_members(content))
