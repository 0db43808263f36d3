"""What the pages of the exercises are made from.

Usage: catalogue.py course     (the tables of docs/exercises.md)
       catalogue.py wrong      (the tables of docs/wrong-answers.md)

Wrong answers to ex07 are in ex07_NAME.wrong.toml. `edits` change the solution, or of a broken kernel
the starting file, and must have their old text in it; `says` is what each part gives: its points and,
after a colon, words that the check prints, with ... between pieces.
"""

import re
import sys
import tomllib
from typing import NamedTuple

from classroom import ROOT, file_of, title_of
from course import COURSE
from table import EXERCISES

LINK = re.compile(r"\[([^]]*)\]\(([^)\s]*)\)")


class Entry(NamedTuple):
    name: str
    level: int
    minutes: int
    trains: str

    @property
    def number(self) -> str:
        return title_of(self.name).split(": ", 1)[0]  # "Exercise 5"

    @property
    def title(self) -> str:
        return title_of(self.name).split(": ", 1)[1]

    @property
    def step(self) -> str:
        return EXERCISES[self.name].step

    @property
    def page(self) -> str:
        return file_of(self.name, ".md").stem

    @property
    def read(self) -> list[str]:
        """The links of the sentence that says what to read first, as a page in docs/ has them."""
        first = file_of(self.name, ".md").read_text().split("\n\n")[1]
        sentence = re.match(r"(?:Read first: )?(.*?\))[^)]*?\.\s", f"{first} ", re.DOTALL)[0]
        return [
            f"[{' '.join(text.split())}]({target.removeprefix('../../docs/').replace('../../', '../')})"
            for text, target in LINK.findall(sentence)
        ]

    @property
    def facts(self) -> str:
        lesson = f"Lesson {LESSONS[self.name]} · level" if self.name in LESSONS else "Level"
        return (
            f"{lesson} {self.level} · about {self.minutes} minutes · "
            f"{EXERCISES[self.name].points} points · `make {self.name}` "
            "([how to work on an exercise](../../docs/classroom.md))"
        )


def plan() -> dict[str, list[str]]:
    """Of the slides of each lesson the row of the table in docs/teaching.md: number, slides, read before, in class,
    read afterwards, at home, broken kernels."""
    rows = re.findall(
        r"^\| (\d+ \|.*\(slides/(\w+)\.md\).*) \|$", (ROOT / "docs/teaching.md").read_text(), re.MULTILINE
    )
    return {deck: row.split(" | ") for row, deck in rows}


def lessons() -> dict[str, str]:
    """ "1, class" or "1, home" for an exercise; of the broken kernels of a lesson the first is for the class.
    Nothing for those of no lesson."""
    found = {}
    for number, _, _, in_class, _, at_home, broken in plan().values():
        found |= {name: f"{number}, home" for name in re.findall(r"exf?\d\d[a-z]?", at_home)}
        found |= {name: f"{number}, class" for name in re.findall(r"exf?\d\d[a-z]?", in_class)}
        kernels = [
            i
            for first, last in re.findall(r"(\d+)(?: to (\d+))?", broken)
            for i in range(int(first), int(last or first) + 1)
        ]
        found |= {f"broken{i:02}": f"{number}, class" if i == kernels[0] else number for i in kernels}
    return found


LESSONS = lessons()
ENTRIES = [Entry(*entry) for chapter in COURSE for entry in chapter.entries]


def course() -> str:
    lines = []
    for chapter in COURSE:
        lines += [
            f"## {chapter.title}",
            "",
            "| exercise | step | lesson | level | minutes | points | trains | read first |",
            "|---|---|---|---:|---:|---:|---|---|",
        ]
        for entry in map(Entry._make, chapter.entries):
            lines.append(
                f"| [{entry.name}](../steps/exercises/{entry.page}.md): {entry.title} | "
                f"[{entry.step.removeprefix('step')}]({entry.step}.md) | {LESSONS.get(entry.name, '–')} | {entry.level} | "
                f"{entry.minutes} | "
                f"{EXERCISES[entry.name].points} | {entry.trains} | {', '.join(entry.read)} |"
            )
        lines.append("")
    return "\n".join(lines).rstrip()


def wrong_answers(name: str) -> list[dict]:
    path = file_of(name, ".wrong.toml")
    return tomllib.loads(path.read_text())["answer"] if path else []


def said(name: str, says: list[str]) -> str:
    """ "2 of 4: part 1 right; part 2: `words`" """
    if len(says) == 1 < len(EXERCISES[name].parts):
        return f"does not compile: `{says[0].split(': ', 1)[1]}`"
    parts, right = [], []
    for number, (told, part) in enumerate(zip(says, EXERCISES[name].parts, strict=True), 1):
        points, _, words = told.partition(": ")
        if float(points) == part.points:
            right.append(str(number))
        elif words:
            parts.append(f"part {number}: " + ", ".join(f"`{piece}`" for piece in words.split(" ... ")))
    if len(right) == len(says):
        return "all points"
    reached = sum(float(told.partition(":")[0]) for told in says)
    head = f"{reached:g} of {EXERCISES[name].points}"
    return f"{head}; " + "; ".join(parts)


def wrong() -> str:
    lines = []
    for entry in ENTRIES:
        answers = wrong_answers(entry.name)
        if answers:
            lines += [
                f"## {title_of(entry.name)}",
                "",
                "| wrong answer | what the check says | what it tells |",
                "|---|---|---|",
            ]
            lines += [
                f"| {answer['what']} | {said(entry.name, answer['says'])} | {answer['tells']} |" for answer in answers
            ]
            lines.append("")
    return "\n".join(lines).rstrip()


if __name__ == "__main__":
    print({"course": course, "wrong": wrong}[sys.argv[1]]())
