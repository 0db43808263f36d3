"""The list of mutants whose behaviour is equivalent, each with the reason."""

from pathlib import Path

LIST = Path(__file__).with_name("equivalents.txt")


def read_equivalents(path: Path = LIST) -> dict[str, str]:
    """From the name of a mutant to the reason, which is the comment above it."""
    reasons, reason, after_names = {}, [], False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.startswith("#"):
            reason = [] if after_names else reason
            reason.append(line.lstrip("# "))
            after_names = False
        elif line.strip():
            assert reason, f"{path}:{number}: no reason stands above it"
            assert line not in reasons, f"{path}:{number}: is listed twice"
            reasons[line], after_names = " ".join(reason), True
    return reasons
