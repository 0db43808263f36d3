"""Prints a file as Doxygen understands it; Doxygen calls this for each: INPUT_FILTER in Doxyfile.

Pages are Markdown as repositories show it. Of a step only the comment at its head is documentation;
the site shows the rest as source. In headers, the comment after `int a, b;` is that of both, and
macros without a comment are left out.

Usage: for_doxygen.py PAGE.md|STEP.cu|HEADER.h|HEADER.cuh
       for_doxygen.py --unlink SITE

Doxygen finds a name in a listing without its scope. The second form removes links from names that
the step itself defines and from members, as these may be others of the same name.
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
    if file.suffix == ".md" and (file.parent == ROOT or ROOT / "docs" in file.parents):
        if page.name in CONTENTS and line.startswith("- [") and not anchor:
            return f"@subpage {label(file)} \"{text}\""
        return f"[{text}](@ref {label(file, anchor)})"
    if file.suffix in (".html", ".ipynb"):
        return f"<a href=\"{file.relative_to(ROOT / 'docs')}{''.join(query)}\">{text}</a>"
    relative = file.relative_to(ROOT).as_posix()
    return f"[{text}](@ref {file.name})" if SOURCES.match(relative) else text


def html(text: str) -> str:
    return f"\\htmlonly {text} \\endhtmlonly"


def convert(page: Path, text: str) -> str:
    def image(match: re.Match) -> str:
        source = (page.parent / match[2]).resolve().relative_to(ROOT / "docs").as_posix()
        return html(f'<img class="picture" src="{source}" alt="{match[1]}">')

    def inline(line: str) -> str:
        line = re.sub(r"\$`([^`]*)`\$", lambda m: f"\\f$ {m[1]} \\f$", line)
        parts = re.split(r"(`[^`]*`)", line)  # no pictures in code
        for i in range(0, len(parts), 2):
            parts[i] = re.sub(r"!\[([^\]]*)\]\(([^)\s]+)\)", image, parts[i])
        line = "".join(parts)
        return re.sub(r"(?<!!)\[((?:[^\[\]`]|`[^`]*`)+)\]\(([^)\s]+)\)",
                      lambda m: link(page, line, m[1], m[2]), line)

    lines, fence, margin, item = [], "", "", False
    source = iter(join_links(text).split("\n"))
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
            line = f"{match[1]} {inline(match[2])}" + (f" {{#{name}}}" if name != "index" else "")
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


def join_links(text: str) -> str:
    """A link whose text is broken over two lines, on one line."""
    return re.sub(r"\[([^\]\n`]*)\n\s*([^\]\n`]*)\]\(", r"[\1 \2](", text)


DEFINED = re.compile(r"(?:__device__|__global__|\bstatic|\bconstexpr|\bstruct|\benum|#define)\b[^;(={]*?"
                     r"(\w+)(?:\[[^\]]*\])*\s*[(={]")
CODE_LINK = re.compile(r'(\.|-&gt;)?<a class="code [^>]*>(\w+)</a>')


def unlink(site: Path) -> None:
    for step in (ROOT / "steps").glob("step*.cu"):
        text = step.read_text()
        own = {*DEFINED.findall(text), *re.findall(r"(?:int|typename) (\w+)(?=[,>])", text)}
        source = step.name.replace("_", "__").replace(".", "_8") + "_source"
        pages = [site / f"{name}.html" for name in (step.stem.split("_")[0], source)]
        for page in filter(Path.exists, pages):
            page.write_text(CODE_LINK.sub(lambda link: f"{link[1] or ''}{link[2]}" if link[1]
                                          or link[2] in own else link[0], page.read_text()))


if __name__ == "__main__":
    if sys.argv[1] == "--unlink":
        sys.exit(unlink(Path(sys.argv[2])))
    this = Path(sys.argv[1]).resolve()
    content = this.read_text()
    if this.suffix == ".md":
        print(convert(this, content), end="")
    else:
        print(content.split("*/")[0] + "*/" if this.suffix == ".cu" else split_members(content))
