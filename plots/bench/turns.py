"""Measures steps and baselines in interleaved runs, in one process. In a round each runs at most
once, after the same number of L2 flushes, in a random order, so a change of the clocks affects all
of them. Ratios are taken between times of the same round.
"""

import math
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from plots.bench.device import Device, DeviceError

WARM_UPS = 2
FLUSH_BYTES = 512 << 20  # either half is larger than any L2
MOST_FLUSHES, TRIES = 64, 8

Call = Callable[[], object]


@dataclass(frozen=True)
class Plan:
    """How many rounds a call takes part in: `milliseconds` of calls, between `least` and `most`."""

    milliseconds: float = 250.0
    least: int = 3
    most: int = 51

    def turns_for(self, call_ms: float) -> int:
        return min(self.most, max(self.least, math.ceil(self.milliseconds / max(call_ms, 1e-3))))


QUICK = Plan(30.0, most=11)


class Times(dict[int, float]):
    """Milliseconds by round."""

    def summary(self) -> dict[str, float]:
        """Fields of a record."""
        return {
            "rounds": len(self),
            "median_ms": statistics.median(self.values()),
            **deciles("p{}_ms", list(self.values())),
        }

    def speed_over(self, name: str, other: "Times") -> dict[str, float]:
        """Fields of a record: the speedup over the other in the rounds of both."""
        ratios = [other[turn] / self[turn] for turn in self if turn in other]
        return {f"speed_over_{name}": statistics.median(ratios), **deciles(f"speed_over_{name}_p{{}}", ratios)}


def deciles(name: str, values: list[float]) -> dict[str, float]:
    """The first and the last decile; `name` has {} for 10 or 90."""
    cuts = statistics.quantiles(values if len(values) > 1 else 2 * values, n=10, method="inclusive")
    return {name.format(10): cuts[0], name.format(90): cuts[-1]}


@dataclass
class Measured:
    """The times by name, or the reasons why there are none."""

    times: dict[str, Times] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def reason_of(error: Exception) -> str:
    """The error as one line of at most 200 characters."""
    return (" ".join(str(error).split()) or type(error).__name__)[:200]


def strides(turns: dict[str, int]) -> dict[str, int]:
    """The distance of the rounds of each call, which is larger if it needs fewer. Powers of two, so
    that of any two calls, one takes part in all rounds of the other."""
    rounds = max(turns.values(), default=0)
    return {name: 2 ** int(math.log2(rounds / count)) for name, count in turns.items()}


def measure(calls: dict[str, Call], stopwatch: "Stopwatch", plan: Plan) -> Measured:
    """Measures all calls in interleaved rounds, after warm-up calls. A call that raises an
    exception is left out from then on; a DeviceError ends the measurement."""
    found, turns = Measured(), {}

    def time_ms(name: str) -> float | None:
        try:
            return stopwatch.time_ms(calls[name])
        except DeviceError:
            raise
        except Exception as error:  # pylint: disable=broad-except
            found.times.pop(name, None)
            found.failed[name] = reason_of(error)
            return None

    for name in calls:
        for _ in range(WARM_UPS):
            call_ms = time_ms(name)
            if call_ms is None:
                break
            turns[name] = plan.turns_for(call_ms)
    found.times = {name: Times() for name in turns if name not in found.failed}
    every, draw = strides({name: turns[name] for name in found.times}), random.Random(1)
    for turn in range(max(map(turns.get, found.times), default=0)):
        present = [name for name in found.times if turn % every[name] == 0]
        for name in draw.sample(present, len(present)):
            if (milliseconds := time_ms(name)) is not None:
                found.times[name][turn] = milliseconds
    return found


class Stopwatch:
    """Times calls in which the GPU did not wait for the host.

    Flushing L2 keeps the GPU busy while a call is enqueued. If one flush is too short for that, the
    sample is repeated with more flushes, and all later calls use as many.
    """

    def __init__(self, device: Device, flush_bytes: int = FLUSH_BYTES, is_asynchronous: bool = True) -> None:
        self.device, self.is_asynchronous = device, is_asynchronous
        self.flush = device.allocate(flush_bytes)
        self.flushes = 1

    def time_ms(self, call: Call) -> float:
        for _ in range(TRIES):
            for _ in range(self.flushes):
                self.flush.flush_l2()
            self.device.start()
            call()
            milliseconds, late = self.device.stop()
            if not (late and self.is_asynchronous):
                return milliseconds
            self.flushes = min(2 * self.flushes, MOST_FLUSHES)
        raise RuntimeError(
            f"enqueueing a call takes longer than {self.flushes} flushes of L2, so its time would be that of the host"
        )
