"""How far a sweep is, and how long the rest will take."""

import sys
import time
from collections import defaultdict
from typing import TextIO

BAR_WIDTH = 24
# A line that wraps cannot be drawn over.
LINE_WIDTH = 79
# Before anything is measured: half a second of samples, inputs, check, and a share of a start.
FIRST_GUESS_S = 1.2


def in_words(seconds: float) -> str:
    """`50 s`, `7 min`."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


class Progress:
    """A bar on a terminal; elsewhere a line for each group."""

    def __init__(self, steps_left: list[str], done: int, out: TextIO = sys.stderr) -> None:
        """`steps_left` has the step of each case still to measure."""
        self.left = defaultdict(int)
        for step in steps_left:
            self.left[step] += 1
        self.done, self.total = done, done + len(steps_left)
        self.taken = defaultdict(list)
        self.out = out
        self.started = self.last = time.monotonic()

    def seconds_left(self) -> float:
        """From what cases of the same step took so far; of any step where it had none."""
        all_taken = [seconds for taken in self.taken.values() for seconds in taken]
        usual = sum(all_taken) / len(all_taken) if all_taken else FIRST_GUESS_S
        return sum(count * (sum(self.taken[step]) / len(self.taken[step])
                            if self.taken[step] else usual)
                   for step, count in self.left.items())

    def state(self) -> str:
        """`120 of 390, about 5 min left`"""
        return f"{self.done} of {self.total}, about {in_words(self.seconds_left())} left"

    def case_done(self, step: str, text: str) -> None:
        """One more, measured or not."""
        now = time.monotonic()
        self.taken[step].append(now - self.last)
        self.last = now
        self.left[step] -= 1
        self.done += 1
        self.draw(text)

    def draw(self, text: str) -> None:
        """`text` says what is being measured."""
        if not self.out.isatty():
            return
        filled = BAR_WIDTH * self.done // self.total
        line = f"[{'#' * filled}{' ' * (BAR_WIDTH - filled)}] {self.state()}, {text}"
        self.out.write(f"\r{line[:LINE_WIDTH]:{LINE_WIDTH}}")
        self.out.flush()

    def group_done(self, name: str) -> None:
        """For logs."""
        if not self.out.isatty():
            print(f"{name}: {self.state()}", file=self.out, flush=True)

    def clear(self) -> None:
        """Takes the bar away, so that something can be said."""
        if self.out.isatty():
            self.out.write(f"\r{'':{LINE_WIDTH}}\r")
            self.out.flush()

    def elapsed(self) -> str:
        """Since the start."""
        return in_words(time.monotonic() - self.started)
