"""Makes pictures and pages of the site smaller without a visible change: smaller.py STYLE.css PICTURE.svg PAGE.html ...

matplotlib writes six decimals, of which two can be seen, a line for each point of a path, and the same styles at each
element, which become classes here. The templates of a page indent it, name classes that have no style, hold icons
that it does not show, say what HTML knows or what they have said, end what ends by itself, and quote single words. Each
has the list of all pages, whose links need no class if the styles of the theme name what they are.
"""

import re
import sys
from collections import Counter
from pathlib import Path

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def name_of(number: int) -> str:
    """The names of classes: a to z, ba to zz, ..."""
    return (name_of(number // len(LETTERS)) if number >= len(LETTERS) else "") + LETTERS[number % len(LETTERS)]


def rounded(match: re.Match) -> str:
    return f"{float(match[0]):.2f}".rstrip("0").rstrip(".").replace("-0.", "-.").removeprefix("0") or "0"


def smaller(text: str) -> str:
    if 'id="figure_1"' not in text:  # drawn by hand or by other code
        return text
    text = re.sub(r"<[^>]+>", lambda tag: re.sub(r"-?\d+\.\d{3,}", rounded, tag[0]), text)  # not in texts
    text = re.sub(r' transform="rotate\(-0 [^"]*"', "", text)
    text = re.sub(r'(?<= d=")[^"]*', lambda path: re.sub(r"\s*([A-Za-z])\s*", r"\1", path[0]).strip(), text)
    text = re.sub(r">\s+<", "><", text)
    used = dict.fromkeys(re.findall(r'(?:href="|url\()#([\w.-]+)', text))
    ids = {old: name_of(i) for i, old in enumerate(used)}
    text = re.sub(r' id="([^"]*)"', lambda own: f' id="{ids[own[1]]}"' if own[1] in ids else "", text)
    text = re.sub(r'((?:href="|url\()#)([\w.-]+)', lambda target: target[1] + ids[target[2]], text)
    styles = Counter(re.findall(r' style="([^"]*)"', text))
    names = [style for style, count in styles.most_common() if count > 1]
    text = re.sub(r"<g>(<(?:use|text|path)[^<>]*/>)</g>", r"\1", text)
    text = re.sub(
        r' style="([^"]*)"',
        lambda style: f' class="{name_of(names.index(style[1]))}"' if style[1] in names else style[0],
        text,
    )
    rules = "".join(f".{name_of(i)}{{{re.sub(': |; ', lambda m: m[0][0], style)}}}" for i, style in enumerate(names))
    return text.replace("</style>", f"{rules}</style>", 1)


def smaller_icon(icon: str) -> str:
    return re.sub(r"></(?:circle|line|path|polyline|rect)>", "/>", re.sub(r'\s+class="[^"]*"', "", icon))


def smaller_page(text: str) -> str:
    shown = set(re.findall(r'<use href="#([^"]*)"', text))
    text = re.sub(
        r'<symbol id="([^"]*)".*?</symbol>',
        lambda icon: smaller_icon(icon[0]) if icon[1] in shown else "",
        text,
        flags=re.S,
    )
    text = re.sub(r'<!-- Generated with .*?-->| type="text/css"', "", text)
    text = re.sub(
        r'(<meta name="viewport"[^<>]*>)(.*?)<meta name="viewport"[^<>]*>', r"\1\2", text, count=1, flags=re.S
    )
    text = re.sub(r"<style>.*?</style>", lambda style: re.sub(r"\s+", " ", style[0]), text, flags=re.S)
    text = text.replace('class="reference internal"', 'class="reference"')
    text = text.replace(' xmlns="http://www.w3.org/2000/svg"', "")  # HTML knows what an svg is
    text = re.sub(
        r'<div class="sidebar-tree">.*?</aside>',
        lambda tree: tree[0].replace(' class="reference"', ""),
        text,
        flags=re.S,
    )
    # Spaces count in the elements that are split off.
    parts = re.split(r"(<(pre|script|style|textarea)\b.*?</\2>)", text, flags=re.S)
    text = "".join(part if i % 3 else smaller_text(part) for i, part in enumerate(parts) if i % 3 < 2)
    text = re.sub(r'<span class="w">(\s*)</span>', r"\1", text)  # spaces in code
    return re.sub(r'(<[a-z]+\d?\b[^<>]*) class="([\w-]+)"(?=[ >])', r"\1 class=\2", text)


def style_of_links(text: str) -> str:
    """In the list of pages, all links are references."""
    return re.sub(r"\.sidebar-tree [^{}]*(?={)", lambda selector: selector[0].replace(".reference", "a"), text)


def smaller_text(text: str) -> str:
    """HTML lets the end of an item of a list follow from what comes next; each page has hundreds, in its list of pages.
    It needs no quotes around one word either, and code has a class for each token."""
    text = re.sub(r"\s*\n\s*", "\n", text)
    return re.sub(r"</li>\s*(?=<li\b|</[uo]l>)", "", text)


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        text = path.read_text(encoding="utf-8")
        change = {".svg": smaller, ".css": style_of_links}.get(path.suffix, smaller_page)
        path.write_text(change(text), encoding="utf-8")
