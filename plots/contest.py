"""Contestants measured in turns, in one process.

In a round each has at most one turn, after as many L2 flushes as all the others have, in an order
that is drawn anew: what the clocks do meanwhile meets all alike, who is slow to enqueue gets no
longer pause at little power, and nobody always comes after the same one. Ratios are taken
between times of the same round.
"""

import math
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

WARM_UPS = 3
# A call this slow gets so many turns, whatever the plan says.
SLOW_MS, SLOW_TURNS = 300.0, 3
# Several times any L2.
FLUSH_BYTES = 512 << 20
MOST_FLUSHES = 64
TRIES = 8

Call = Callable[[], object]


@dataclass(frozen=True)
class Plan:
    """So many turns and so many milliseconds at least for each contestant."""

    turns: int = 10
    milliseconds: float = 500.0

    def turns_for(self, call_ms: float) -> int:
        if call_ms > SLOW_MS:
            return SLOW_TURNS
        return max(self.turns, math.ceil(self.milliseconds / call_ms))


QUICK = Plan(5, 30.0)


class Times(dict[int, float]):
    """Milliseconds by round."""

    def ratios_to(self, other: "Times") -> list[float]:
        """How many times as fast as the other, in each round that both took part in."""
        return [other[turn] / self[turn] for turn in self if turn in other]


@dataclass
class Measured:
    """What came of all turns, by name: times, or why there are none. And how many flushes there
    were before each; None if there were no turns."""

    times: dict[str, Times] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    flushes: int | None = None


def reason_of(error: Exception) -> str:
    """One line, not too long."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:197]}..."


def strides(turns: dict[str, int]) -> dict[str, int]:
    """Who wants fewer turns has one only every so many rounds: a power of two, so that who is
    there more seldom never misses who is there more often."""
    rounds = max(turns.values())
    return {name: 2 ** int(math.log2(rounds / wanted)) for name, wanted in turns.items()}


def measure(calls: dict[str, Call], stopwatch: "Stopwatch", plan: Plan,
            may_fail: Collection[str] = (),
            warmed_up: Callable[[], None] = lambda: None) -> Measured:
    """All in turns, after some that warm up; `warmed_up` is called in between. One of `may_fail`
    whose call raises is left out from then on."""
    found, turns = Measured(), {}
    stopwatch.flushes = 1

    def time_ms(name: str, learn: bool = False) -> float | None:
        try:
            return stopwatch.time_ms(name, calls[name], learn)
        except Exception as error:  # pylint: disable=broad-except
            if name not in may_fail:
                raise
            found.times.pop(name, None)
            found.skipped[name] = reason_of(error)
            return None

    for name in calls:
        warm_ups = 0
        while name not in found.skipped and warm_ups < WARM_UPS:
            call_ms = time_ms(name, learn=True)
            warm_ups += 1
        if name not in found.skipped:
            turns[name] = plan.turns_for(call_ms)
    if not turns:
        return found
    warmed_up()
    found.flushes = stopwatch.flushes
    every, draw = strides(turns), random.Random(1)
    found.times = {name: Times() for name in turns}
    for turn in range(max(turns.values())):
        present = [name for name in found.times if turn % every[name] == 0]
        for name in draw.sample(present, len(present)):
            milliseconds = time_ms(name)
            if milliseconds is not None:
                found.times[name][turn] = milliseconds
    return found


class Stopwatch:
    """Times a call by events of PyTorch, in samples in which the GPU had not to wait for Python.

    Overwriting the flushed memory keeps it busy while the call is enqueued. Where once is too short
    for that it is done more often: before every call as often as the one that needed most, which
    the warm-ups show. A sample that was in vain all the same is repeated with more.
    """

    def __init__(self, torch) -> None:
        self.torch = torch
        self.flush = torch.empty(FLUSH_BYTES, device="cuda", dtype=torch.uint8)
        self.flushes = 1

    def time_ms(self, name: str, call: Call, learn: bool = False) -> float:
        flushes = self.flushes
        for _ in range(TRIES):
            milliseconds = self._sample_ms(call, flushes)
            if milliseconds is not None:
                if learn:
                    self.flushes = flushes
                return milliseconds
            flushes = min(2 * flushes, MOST_FLUSHES)
        raise RuntimeError(f"{name}: enqueueing a call takes longer than {flushes} flushes of L2, "
                           f"so its time would be that of Python")

    def _sample_ms(self, call: Call, flushes: int) -> float | None:
        """None if the GPU got to the call before it was enqueued."""
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(flushes):
            self.flush.zero_()
        begin.record()
        call()
        end.record()
        waited = begin.query()
        end.synchronize()
        return None if waited else begin.elapsed_time(end)
