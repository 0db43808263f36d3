"""Turns of a comparison: who comes when, who is left out, which samples count."""

import re
from collections.abc import Iterator
from itertools import chain, repeat
from types import SimpleNamespace

import pytest


from contest import (MOST_FLUSHES, SLOW_TURNS, Measured, Plan, Stopwatch,
                     measure)


class FakeStopwatch:
    """Tells what each contestant is said to take, and notes who was called."""

    def __init__(self, milliseconds: dict[str, float], fails: str = "", fails_at: int = 0) -> None:
        self.milliseconds, self.log = milliseconds, []
        self.fails, self.fails_at, self.flushes = fails, fails_at, 1

    def time_ms(self, name: str, call: object, learn: bool = False) -> float:
        self.log.append((name, learn))
        if name == self.fails and len(self.log) >= self.fails_at:
            raise RuntimeError("out of\n  memory")
        return self.milliseconds[name]


def test_contestants_take_turns() -> None:
    """After three warm-ups each, all once a round, not always in the same order."""
    watch = FakeStopwatch({"a": 100.0, "b": 90.0, "c": 80.0})
    done: list[int] = []
    times = measure(dict.fromkeys("abc"), watch, Plan(10, 100.0),
                    warmed_up=lambda: done.append(len(watch.log))).times
    assert done == [9] and [learn for _, learn in watch.log] == 9 * [True] + 30 * [False]
    rounds = ["".join(name for name, _ in watch.log[i:i + 3]) for i in range(9, 39, 3)]
    assert {"".join(sorted(names)) for names in rounds} == {"abc"} and len(set(rounds)) > 2
    assert {name: len(found) for name, found in times.items()} == {"a": 10, "b": 10, "c": 10}


def test_slow_contestants_have_fewer_turns_spread_over_the_rounds() -> None:
    watch = FakeStopwatch({"fast": 0.5, "slow": 50.0, "slowest": 301.0})
    times = measure(dict.fromkeys(watch.milliseconds), watch, Plan()).times
    assert list(times["fast"]) == list(range(1000))  # half a second
    assert 10 <= len(times["slow"]) < 20 and max(times["slow"]) > 900
    assert SLOW_TURNS <= len(times["slowest"]) < 2 * SLOW_TURNS
    assert set(times["slowest"]) < set(times["slow"]) < set(times["fast"])
    assert times["slow"].ratios_to(times["slowest"]) == len(times["slowest"]) * [301 / 50]


@pytest.mark.parametrize("fails_at", [1, 5, 20])
def test_who_fails_while_it_is_timed_is_left_out(fails_at: int) -> None:
    """In the warm-ups or later; but only who may fail."""
    def contest(may_fail: str) -> tuple[FakeStopwatch, Measured]:
        watch = FakeStopwatch({"a": 100.0, "b": 90.0, "c": 80.0}, "b", fails_at)
        return watch, measure(dict.fromkeys("abc"), watch, Plan(10, 100.0), may_fail)
    watch, found = contest("bc")
    assert found.skipped == {"b": "out of memory"}
    assert {name: len(times) for name, times in found.times.items()} == {"a": 10, "c": 10}
    failed = max(i for i, (name, _) in enumerate(watch.log) if name == "b")
    assert failed >= fails_at - 1 and len(watch.log) == 2 * 13 + sum(
        name == "b" for name, _ in watch.log)
    with pytest.raises(RuntimeError, match="out of"):
        contest("ac")


def test_contest_of_nobody() -> None:
    """All failed."""
    found = measure({"a": None}, FakeStopwatch({}, "a"), Plan(), "a")
    assert found == Measured({}, {"a": "out of memory"})


def stopwatch_with_waits(waits: Iterator[bool]) -> tuple[Stopwatch, list[str]]:
    """A stopwatch whose GPU has or has not been waiting, sample by sample; and what was done."""
    done: list[str] = []
    event = SimpleNamespace(record=lambda: done.append("event"), query=lambda: next(waits),
                            synchronize=lambda: None, elapsed_time=lambda end: 5.0)
    watch = object.__new__(Stopwatch)
    watch.torch = SimpleNamespace(cuda=SimpleNamespace(Event=lambda enable_timing: event))
    watch.flush = SimpleNamespace(zero_=lambda: done.append("flush"))
    watch.flushes = 1
    return watch, done


def test_sample_in_which_the_gpu_waits_is_repeated() -> None:
    """With more to do before it; for good, and for all, only if that was seen in the warm-up."""
    watch, done = stopwatch_with_waits(iter([True, True, False, True, False, False]))
    assert watch.time_ms("a", lambda: done.append("call"), learn=True) == 5.0
    sample = ["event", "call", "event"]
    assert done == ["flush", *sample, *2 * ["flush"], *sample, *4 * ["flush"], *sample]
    for expected in (4 + 8, 4):
        done.clear()
        watch.time_ms("b", lambda: None)
        assert done.count("flush") == expected


def test_all_contestants_have_as_many_flushes() -> None:
    """As many as the one that needs most, in this task."""
    watch, done = stopwatch_with_waits(chain(3 * [False], [True, True], repeat(False)))
    watch.flushes = 32  # of the task before
    calls = {name: lambda name=name: done.append(name) for name in "ab"}
    found = measure(calls, watch, Plan(10, 1.0), warmed_up=done.clear)
    assert found.flushes == 4
    assert re.fullmatch(r"(flush flush flush flush event [ab] event ?){20}", " ".join(done))


def test_call_that_no_flush_covers_is_refused() -> None:
    watch, _ = stopwatch_with_waits(iter(lambda: True, None))
    with pytest.raises(RuntimeError, match=f"a: .* takes longer than {MOST_FLUSHES} flushes of L2"):
        watch.time_ms("a", lambda: None)
