"""What the threads of a block do, and when, in the steps whose tables have a section [roles].

A step linked with record_events.c writes down what the threads of a block did. Here these events
are executed once more, by a thread of each warpgroup, with the waits and the arrivals of the step.
They get times by a simple rule: the lengths below, one product at a time in the order of their
issue, and no wait is longer than it must be."""

import os
import subprocess
import tempfile
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from plots.figures.pictures_loops import Shape, shape_of
from tests.lib.steps import settings

HEAD_DIM, TILES = 128, 3  # of keys, for each tile of queries
COPY, PRODUCT, SOFTMAX = 1, 1, 2  # lengths
WARPGROUP = 128
MULTIPROCESSORS = 4  # of the CPU backend


@dataclass(frozen=True)
class Kind:
    """A step: tiles of queries of the recorded thread block, its idea, and who computes."""

    idea: str
    computes: str  # what a warpgroup that multiplies is called
    loads: str  # who asks for tiles
    query_tiles: int = 1


def kind_of(step: str) -> Kind:
    """The section [roles] of the table beside the step."""
    return Kind(**settings(step, "roles"))


# --- What the step did ----------------------------------------------------------------------------

Event = tuple[str, list[str]]


def shape_and_problem(step: str, program: Path) -> tuple[Shape, tuple[str, ...]]:
    """Queries for one thread block; if it takes several tiles of them, for one more tile than there
    are blocks, which the first one takes, as blocks run one after another."""
    shape, query_tiles = shape_of(program, "-d", str(HEAD_DIM)), kind_of(step).query_tiles
    tiles = 1 if query_tiles == 1 else MULTIPROCESSORS + query_tiles - 1
    return shape, ("-H", "1", "-d", str(HEAD_DIM), "-n", str(tiles * shape.block_m), "-k", str(TILES * shape.block_n))


def record(step: str, program: Path) -> tuple[Shape, dict[int, list[Event]]]:
    """The events of each thread."""
    shape, problem = shape_and_problem(step, program)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "events"
        subprocess.run(
            [program, *problem],
            check=True,
            capture_output=True,
            env={**os.environ, "EVENTS": str(file), "SIMT_THREADS": "1"},
        )
        events = defaultdict(list)
        for line in file.read_text().splitlines():
            thread, action, *rest = line.split()
            events[int(thread)].append((action, rest))
    return shape, events


# --- The same, with times -------------------------------------------------------------------------


@dataclass
class Barrier:
    """An mbarrier, with the time at which each of its phases ended."""

    arrivals: int
    left: int = 0
    latest: float = 0
    ended: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.left = self.arrivals

    def arrive(self, at: float, weight: int) -> None:
        self.left -= weight
        self.latest = max(self.latest, at)
        assert self.left >= 0
        if self.left == 0:
            self.ended.append(self.latest)
            self.left = self.arrivals

    def passes(self, parity: int, at: float) -> float | None:
        phase = len(self.ended)
        if phase % 2 == parity:
            return None
        return max(at, self.ended[-1]) if phase else at


@dataclass
class Named:
    """A named barrier."""

    arrived: int = 0
    latest: float = 0
    opened: list[float] = field(default_factory=list)

    def arrive(self, at: float, threads: int, needed: int) -> None:
        self.arrived += threads
        self.latest = max(self.latest, at)
        if self.arrived == needed:
            self.opened.append(self.latest)
            self.arrived = 0


@dataclass
class Bar:
    """Something that lasts, in a row of the chart. Before `start` it waits in line from `issue`
    on; a tile stays in its buffer until `end`, and has arrived at `arrival`."""

    row: str
    look: str
    text: str
    issue: float
    start: float
    end: float
    arrival: float = 0
    beside: bool = False  # a softmax, beside a product of the same warpgroup


@dataclass
class Role:
    """A thread that stands for its warpgroup."""

    thread: int
    events: list[Event]
    weights: Counter  # by event: how many threads of the warpgroup do it, when this one does
    at: float = 0
    next: int = 0
    waited: str = ""  # the barrier at which it has waited last
    waits_since: float | None = None  # for its turn
    opened: Counter = field(default_factory=Counter)  # how often it has passed each named barrier
    products: list[Bar] = field(default_factory=list)
    committed: list[float] = field(default_factory=list)  # when each group of products ends
    softmaxes: int = 0
    stores: list[Bar] = field(default_factory=list)


class Machine:
    """Executes the events of a block, always the earliest that can be."""

    def __init__(self, step: str, program: Path) -> None:
        self.kind = kind_of(step)
        self.shape, threads = record(step, program)
        self.threads = threads
        self.barriers = {rest[0]: Barrier(int(rest[1])) for action, rest in threads[0] if action == "init"}
        self.named: dict[str, Named] = defaultdict(Named)
        self.bars: list[Bar] = []
        self.turns: list[tuple[int, float, float]] = []  # thread, waiting from, since
        self.passed = {
            rest[0] for events in threads.values() for action, rest in events if action == "pass"
        }  # named barriers for turns
        self.tensor_cores = 0.0  # when they are free
        self.uses: Counter = Counter()  # of each buffer
        self.held: list[tuple[Bar, str, int]] = []  # the empty barrier and its phase
        self.read_places()
        self.roles = [self.role(first) for first in range(0, self.shape.threads, WARPGROUP) if threads[first]]
        while any(role.next < len(role.events) for role in self.roles):
            ready = [(at, i) for i, role in enumerate(self.roles) if (at := self.earliest(role)) is not None]
            assert ready, "no role can go on"
            at, i = min(ready)
            self.roles[i].at = at
            self.execute(self.roles[i])
        self.end = max([role.at for role in self.roles] + [bar.end for bar in self.bars])
        for bar, barrier, phase in self.held:
            ended = self.barriers[barrier].ended if barrier else []
            bar.end = ended[phase] if phase < len(ended) else self.end  # the last is not released
        self.bars.sort(key=lambda bar: bar.issue)
        for role in self.roles:
            for bar in self.bars:
                bar.beside |= bar.row == f"{self.name(role)}: softmax" and any(
                    other.start < bar.end and bar.start < other.end for other in role.products
                )

    def role(self, first: int) -> Role:
        """Of a warpgroup: its first thread, and how many threads arrive when this one does."""
        whole, own = Counter(), Counter()
        for thread in range(first, first + WARPGROUP):
            for action, rest in self.threads.get(thread, ()):
                if action in ("arrive", "sync", "pass"):
                    whole[action, rest[0]] += 1
                    own[action, rest[0]] += thread == first
        weights = Counter({key: whole[key] // own[key] for key in whole if own[key]})
        events = [event for event in self.threads[first] if event[0] != "init"]
        return Role(first, events, weights)

    def read_places(self) -> None:
        """Which of the tensor maps is that of Q, K and V, by the products that read its boxes."""
        read = {"Q": set(), "K": set(), "V": set()}
        for events in self.threads.values():
            for action, rest in events:
                if action == "qk":
                    read["Q"].add(rest[0])
                    read["K"].add(rest[1])
                elif action == "pv":
                    read["V"].add(rest[0])
        loads = [rest for action, rest in self.threads[0] if action == "load"]
        self.maps = {a_map: matrix for a_map, place, _ in loads for matrix in read if place in read[matrix]}
        self.buffers = {matrix: sorted({int(place) for place in read[matrix]}) for matrix in read}

    def products(self) -> list[Bar]:
        return [bar for bar in self.bars if bar.look in ("s", "o") and ":" in bar.row]

    def name(self, role: Role) -> str:
        first = 0 if self.kind.computes == "group" else 1
        return f"{self.kind.computes} {role.thread // WARPGROUP - first}"

    def label(self, number: int) -> str:
        """Of the tile of keys that is number so and so of all that the block computes."""
        tile = str(number % TILES)
        return tile if self.kind.query_tiles == 1 else "ab"[number // TILES] + tile

    # --- Single events --------------------------------------------------------------------------

    def earliest(self, role: Role) -> float | None:
        """When the next event of a role can be; None if another role has to do something first."""
        if role.next == len(role.events):
            return None
        action, rest = role.events[role.next]
        if action == "wait":
            return self.barriers[rest[0]].passes(int(rest[1]), role.at)
        if action == "sync" and role.waits_since is not None:
            opened, before = self.named[rest[0]].opened, role.opened[rest[0]]
            return max(role.at, opened[before]) if before < len(opened) else None
        if action == "wait_products":
            pending = int(rest[0])
            done = role.committed[: len(role.committed) - pending]
            return max([role.at, *done])
        if action == "wait_stores":
            done = role.stores[: len(role.stores) - int(rest[0])]
            return max([role.at, *(bar.end for bar in done)])
        return role.at

    def execute(self, role: Role) -> None:
        action, rest = role.events[role.next]
        if action == "sync" and role.waits_since is None:  # it arrives, and will wait
            role.waits_since = role.at
            self.named[rest[0]].arrive(role.at, role.weights[action, rest[0]], int(rest[1]))
            return
        role.next += 1
        if action == "sync":
            if rest[0] in self.passed:
                self.turns.append((role.thread, role.waits_since, role.at))
            role.opened[rest[0]] += 1
            role.waits_since = None
        elif action == "pass":
            self.named[rest[0]].arrive(role.at, role.weights[action, rest[0]], int(rest[1]))
        elif action == "wait":
            role.waited = rest[0]
        elif action == "arrive":
            self.barriers[rest[0]].arrive(role.at, role.weights[action, rest[0]])
        elif action == "ask":
            barrier = self.barriers[rest[0]]
            barrier.latest = max(barrier.latest, role.at + COPY)
            barrier.arrive(role.at, 1)
        elif action == "load":
            self.load(role, *rest)
        elif action in ("qk", "pv"):
            self.multiply(role, action, rest)
        elif action == "stored":
            bar = Bar(f"O, {self.name(role)}", "o", "ab"[len(role.stores)], role.at, role.at, role.at + COPY)
            role.stores.append(bar)
            self.bars.append(bar)
        elif action == "lanes" and role.softmaxes < sum(bar.look == "s" for bar in role.products):
            self.bars.append(
                Bar(f"{self.name(role)}: softmax", "n", self.label(role.softmaxes), role.at, role.at, role.at + SOFTMAX)
            )
            role.softmaxes += 1
            role.at += SOFTMAX

    def load(self, role: Role, a_map: str, place: str, row: str) -> None:
        """A box that begins a tile; the other boxes of the tile come with it."""
        matrix, several = self.maps[a_map], self.kind.query_tiles > 1
        if int(place) not in self.buffers[matrix]:
            return
        buffer = self.buffers[matrix].index(int(place))
        use = self.uses[matrix, buffer]
        self.uses[matrix, buffer] += 1
        empty = role.waited
        if matrix != "Q":
            number = sum(self.uses[matrix, i] for i in range(len(self.buffers[matrix]))) - 1
            assert int(row) == number % TILES * self.shape.block_n
            name, text = f"{matrix}, stage {buffer}", self.label(number)
        elif several:
            name, text = f"Q, consumer {buffer}", "ab"[use]
        elif buffer == 0:  # one barrier for the Q of all, and no other Q comes: drawn as one
            name, text, empty = "Q", "Q", ""
        else:
            return
        bar = Bar(name, matrix.lower(), text, role.at, role.at, role.at + COPY, role.at + COPY)
        self.bars.append(bar)
        self.held.append((bar, empty, use))

    def multiply(self, role: Role, action: str, rest: list[str]) -> None:
        """A group of products, behind those that were issued before."""
        look, name = ("s", "Q K^T") if action == "qk" else ("o", "P V")
        number = sum(bar.look == look for bar in role.products)
        matrix, place = ("K", rest[1]) if action == "qk" else ("V", rest[0])
        stages = self.buffers[matrix]
        assert stages.index(int(place)) == number % len(stages)
        start = max(role.at, self.tensor_cores)
        bar = Bar(f"{self.name(role)}: {name}", look, self.label(number), role.at, start, start + PRODUCT)
        self.tensor_cores = bar.end
        role.products.append(bar)
        role.committed.append(bar.end)
        self.bars.append(bar)

    def idle(self) -> float:
        """How long no product runs, from the first one to the end of the last."""
        first = min(bar.start for bar in self.products())
        return self.tensor_cores - first - PRODUCT * len(self.products())
