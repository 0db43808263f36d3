"""What the pages say of steps in words holds for what the programs print of themselves."""

import re

from tests.budget import ADDED, CHAPTER, FUNCTION, LINES
from tests.lib.kinds import HOPPER_STEPS, MASK_STEPS, SCALAR_STEPS, SPAN_STEPS
from tests.lib.programs import REPOSITORY
from tests.lib.steps import step_names


def test_ranges_of_steps() -> None:
    """ "Before step 07", "from step 07 on", "steps 01 and 02", "from step 02b on"."""
    assert HOPPER_STEPS == [name for name in step_names() if name >= "step07"]
    assert SCALAR_STEPS == [name for name in step_names() if name < "step02b"]


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
