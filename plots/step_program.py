"""The programs of the steps, called by others."""

import subprocess
from pathlib import Path

from run_file import RunError


def first_line(text: str) -> str:
    """What a program said, without its name."""
    return text.strip().splitlines()[0] if text.strip() else "it said nothing"


def commits_of(programs: list[Path]) -> dict[str, list[str]]:
    """The names of the programs by the commit that each says it is of."""
    commits: dict[str, list[str]] = {}
    for program in programs:
        try:
            done = subprocess.run([program, "--version"], capture_output=True, text=True,
                                  check=False)
        except OSError as error:
            raise RunError(f"{program}: {error.strerror}; make all BACKEND=cuda") from error
        if done.returncode != 0:
            raise RunError(f"{program} --version: {first_line(done.stderr)}", 3)
        if len(done.stdout.split()) != 2:
            raise RunError(f"{program} --version: must print its name and commit, not: "
                           f"{first_line(done.stdout)}", 3)
        commits.setdefault(done.stdout.split()[1], []).append(program.name)
    return commits


def in_words(commits: dict[str, list[str]]) -> str:
    """`step01 step02 of 0123456789ab; step03 of ba9876543210`"""
    return "; ".join(f"{' '.join(names)} of {commit}" for commit, names in commits.items())
