"""Prints a header as Doxygen understands it; Doxygen calls this for each: INPUT_FILTER in Doxyfile.

The comment after `int a, b;` is that of both. Macros without a comment, such as the one against reading a
header twice, are left out. What specialises a template is as the template says.
A `typedef struct` would be documented twice.
"""

import re
import sys
from pathlib import Path

# `int a, *b, c[2]; /**< what they are */`
MEMBERS = re.compile(
    r"^( +)((?:const )?\w+) ((?:\*?\w+(?:\[\w+\])?, )+\*?\w+(?:\[\w+\])?);[ \n]+"
    r"(/\*\*<(?:[^*]|\*(?!/))*\*/)",
    re.MULTILINE,
)
MACRO = re.compile(r"^#define (?:.*\\\n)*.*\n", re.MULTILINE)


def split(match: re.Match) -> str:
    indent, kind, names, comment = match.groups()
    return indent + " ".join(f"{kind} {name.strip()}; {comment}" for name in names.split(","))


def documented(match: re.Match) -> str:
    with_comment = "/**" in match[0] or match.string[: match.start()].endswith("*/\n")
    return match[0] if with_comment else "\n" * match[0].count("\n")


text = MEMBERS.sub(split, Path(sys.argv[1]).read_text())
text = re.sub(r"^typedef (struct|enum) (\w+) \{(.*?)^\} \2;", r"\1 \2 {\3};", text, flags=re.MULTILINE | re.DOTALL)
text = re.sub(r"(\*/\n)enum \{ (\w+) = (.*) \};", r"\1const int \2 = \3;", text)
text = re.sub(r"^#ifndef (\w+)\n#define \1\n", "#if 1\n\n", text, flags=re.MULTILINE)
text = MACRO.sub(documented, text)
print(re.sub(r"^template <>", "/** As declared above, for one type. */ template <>", text, flags=re.MULTILINE))
