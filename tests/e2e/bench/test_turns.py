"""How the benchmark takes turns: how often each kernel is measured, ratios, and failures."""

from collections import Counter
from dataclasses import dataclass, field

import pytest

from plots.bench.device import DeviceError
from plots.bench.turns import MOST_FLUSHES, Plan, Stopwatch, Times, measure


@dataclass
class Clock:
    """A simulated device whose calls advance the time. For each flush it is busy for `busy`; a call
    that takes longer to enqueue than all flushes together is late."""

    log: list[str] = field(default_factory=list)
    now: float = 0.0
    busy: float = 1.0
    enqueued: float = 0.0
    flushes: int = 0

    def allocate(self, size: int) -> "Clock":
        return self

    def flush_l2(self) -> None:
        self.flushes += 1

    def start(self) -> None:
        self.began, self.enqueued = self.now, 0.0

    def stop(self) -> tuple[float, bool]:
        late = self.enqueued > self.busy * self.flushes
        self.flushes = 0
        return self.now - self.began, late

    def call(self, name: str, milliseconds: float, enqueueing: float = 0.0):
        def call() -> None:
            self.log.append(name)
            self.now += milliseconds
            self.enqueued += enqueueing

        return call


def test_kernels_are_called_once_a_round_and_slow_ones_in_fewer() -> None:
    clock = Clock()
    calls = {"fast": clock.call("fast", 1), "other": clock.call("other", 1.5), "slow": clock.call("slow", 100)}
    found = measure(calls, Stopwatch(clock), Plan(40, least=3, most=32))
    counts = Counter(clock.log)
    assert counts == {"fast": 2 + 32, "other": 2 + 32, "slow": 2 + 4}
    assert {name: len(times) for name, times in found.times.items()} == {"fast": 32, "other": 32, "slow": 4}
    rounds = [frozenset(clock.log[i : i + 2]) for i in range(7, 20, 2)]
    assert {"fast", "other"} in rounds
    assert found.times["fast"].speed_over("slow", found.times["slow"])["speed_over_slow"] == 100
    orders = {tuple(clock.log[i : i + 2]) for i in range(20, 60)}
    assert {("fast", "other"), ("other", "fast")} <= orders


def test_ratios_are_of_the_same_rounds() -> None:
    """The device is half as fast in the first three rounds."""
    ours, theirs = Times(enumerate([2, 2, 2, 1, 1])), Times({0: 4, 3: 2})
    found = ours.speed_over("fa2", theirs)
    assert found == {"speed_over_fa2": 2, "speed_over_fa2_p10": 2, "speed_over_fa2_p90": 2}
    assert ours.summary()["median_ms"] == 2 and ours.summary()["rounds"] == 5


def test_a_baseline_that_fails_is_left_out() -> None:
    clock, calls_left = Clock(), [4]

    def fails() -> None:
        calls_left[0] -= 1
        if calls_left[0] == 0:
            raise RuntimeError("out of\n memory")

    found = measure({"fails": fails, "fine": clock.call("fine", 1)}, Stopwatch(clock), Plan(10, most=10))
    assert found.failed == {"fails": "out of memory"} and list(found.times) == ["fine"]
    assert len(found.times["fine"]) == 10


def test_a_device_that_fails_ends_everything() -> None:
    def breaks() -> None:
        raise DeviceError("an illegal memory access was encountered")

    with pytest.raises(DeviceError):
        measure({"breaks": breaks}, Stopwatch(Clock()), Plan())


def test_late_samples_are_repeated_with_more_flushes() -> None:
    clock = Clock()
    stopwatch = Stopwatch(clock)
    assert stopwatch.time_ms(clock.call("slow to enqueue", 1, enqueueing=3.5)) == 1
    assert stopwatch.flushes == 4 and len(clock.log) == 3
    with pytest.raises(RuntimeError, match="would be that of the host"):
        stopwatch.time_ms(clock.call("far too slow", 1, enqueueing=MOST_FLUSHES + 1))
