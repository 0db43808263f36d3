"""What the pages say of steps in words holds for what the programs print of themselves."""

import re

from tests.budget import ADDED, CHAPTER, FUNCTION, LINES
from tests.lib.kinds import HOPPER_STEPS, MASK_STEPS, SCALAR_STEPS, SPAN_STEPS
from tests.lib.programs import REPOSITORY
from tests.lib.steps import every_step, step_names


def test_ranges_of_steps() -> None:
    """ "Before step 07", "from step 07 on", "steps 01 and 02", "from step 02b on"."""
    assert HOPPER_STEPS == [name for name in step_names() if name >= "step07"]
    assert SCALAR_STEPS == [name for name in step_names() if name < "step02b"]


def test_pages_lead_from_step_to_step() -> None:
    """Each page of a step ends with links to the pages before and after it, in the order of docs/steps.md.
    Step 05b is beside the way."""
    docs = REPOSITORY / "docs"
    order = re.findall(r"^- \[Step \w+\]\((step\w+)\.md\)", (docs / "steps.md").read_text(), re.MULTILINE)
    assert sorted(order) == every_step()
    order.remove("step05b")
    for name, before, after in zip(order, ["", *order], [*order[1:], "map"]):
        last = (docs / f"{name}.md").read_text().split("\n\n")[-1]
        links_before, _, links_after = last.partition("Next: ")
        assert before in re.findall(r"\((\w+)\.md\)", links_before) or not before, f"{name}: {last}"
        assert re.findall(r"\((\w+)\.md\)", links_after)[:1] == [after], f"{name}: {last}"


def test_steps_that_use_block_masks() -> None:
    last = (REPOSITORY / "docs/block-masks.md").read_text().splitlines()[-1]
    assert last.startswith("Used in: ")
    assert re.findall(r"\((step\w+)\.md\)", last) == sorted(MASK_STEPS + SPAN_STEPS)


def test_budget_of_lines() -> None:
    text = " ".join((REPOSITORY / "CONTRIBUTING.md").read_text().split())
    assert (
        f"it has at most {LINES} lines, and adds at most {ADDED} lines of code, or {CHAPTER} if its header says "
        f'that it "opens a chapter". No function has over {FUNCTION} lines of code.'
    ) in text
