"""One task of a comparison: who takes part, whose answer is right, who takes how long."""

from pathlib import Path

from compare_gpu import Gpu
from compare_rows import row_of, skipped_row
from compare_tasks import Task
from contest import QUICK, Measured, Plan, Stopwatch, measure, reason_of
from exact import Exact, Verdict
from peers import PEERS, Peer
from step_calls import Contestant, Inputs, rows_of, step_contestant, synchronize, takes
from step_library import StepLibrary


class Entries:
    """The contestants of a task, what they answered, and who could not take part."""

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs
        self.contestants: list[Contestant] = []
        self.answers: dict[str, object] = {}
        self.skipped: dict[Peer, str] = {}

    def add(self, contestant: Contestant) -> None:
        self.answers[contestant.name] = contestant.call()
        synchronize(self.inputs)
        self.contestants.append(contestant)

    def add_peer(self, peer: Peer) -> None:
        """Whatever goes wrong inside a peer is a reason to leave it out, and told."""
        try:
            self.add(peer.contestant(self.inputs))
        except Exception as error:  # pylint: disable=broad-except
            self.skipped[peer] = reason_of(error)

    def judge(self) -> dict[str, Verdict]:
        """By name."""
        exact = Exact(self.inputs.task, self.inputs.rows)
        return {contestant.name: self._judge(exact, contestant)
                for contestant in self.contestants}

    def _judge(self, exact: Exact, contestant: Contestant) -> Verdict:
        torch, o, lse = self.inputs.torch, self.answers[contestant.name], contestant.lse
        finite = bool(torch.isfinite(o).all())
        if lse is None:
            return exact.judge(lambda *row: rows_of(o, *row), None, finite)
        finite &= bool(torch.isfinite(lse).all())
        return exact.judge(lambda *row: rows_of(o, *row), lambda *row: rows_of(lse, *row), finite)

    def differences(self, name: str) -> dict[str, float]:
        """The largest relative difference of a row of O from each peer's, by short name."""
        peers = [x for x in self.contestants if x.short is not None and x.name != name]
        return {peer.short: largest_difference(self.answers[name], self.answers[peer.name])
                for peer in peers}


def largest_difference(o, expected) -> float:
    """Of all rows, the Euclidean distance as a share of the expected row's norm."""
    expected = expected.float()
    return ((o.float() - expected).norm(dim=-1) / expected.norm(dim=-1)).max().item()


class Comparison:
    """All that the tasks of one run share."""

    def __init__(self, torch, gpu: Gpu, environment: dict, libraries: list[Path],
                 shorts: list[str], quick: bool) -> None:
        self.torch, self.gpu, self.environment = torch, gpu, environment
        self.steps = [(StepLibrary(path), path) for path in libraries]
        wanted = [peer for peer in PEERS if peer.short in shorts]
        self.missing = {peer: peer.missing() for peer in wanted}
        self.peers = [peer for peer, reason in self.missing.items() if reason is None]
        self.plan = QUICK if quick else Plan()
        self.stopwatch = Stopwatch(torch)

    def notes(self) -> list[str]:
        """A line for each peer that is not there."""
        return [f"{peer.name}: not compared, {reason}"
                for peer, reason in self.missing.items() if reason is not None]

    def enter(self, inputs: Inputs) -> Entries:
        """Everybody who takes the task calls once, which also compiles what has to be compiled."""
        entries = Entries(inputs)
        for step, path in self.steps:
            if takes(step, inputs.task):
                entries.add(step_contestant(inputs, step, path))
        for peer in self.peers:
            if peer.takes(inputs.task):
                entries.add_peer(peer)
        return entries

    def rows(self, task: Task, date: str) -> list[dict]:
        """Of all contestants; the time of a wrong answer means nothing, so it is not taken."""
        entries = self.enter(Inputs(self.torch, task))
        verdicts = entries.judge()
        differences = {x.name: entries.differences(x.name) for x in entries.contestants}
        entries.answers.clear()
        entered = [x for x in entries.contestants if verdicts[x.name].right]
        conditions = {}
        found = self.measure(entered, conditions)
        environment = {**self.environment, "date": date, **conditions}
        measured = {x.short: x.name for x in entries.contestants
                    if x.short is not None and x.name in found.times}
        rows = [row_of(x, task, environment, verdicts[x.name], found.times, measured,
                       differences[x.name])
                for x in entries.contestants if x.name not in found.skipped]
        skipped = entries.skipped | {peer: found.skipped[peer.name] for peer in self.peers
                                     if peer.name in found.skipped}
        rows += [skipped_row(peer, task, environment, reason) for peer, reason in skipped.items()]
        del entries, entered
        self.torch.cuda.empty_cache()  # what the unfused peer took, and steps' memory, for the next
        return rows

    def measure(self, contestants: list[Contestant], conditions: dict) -> Measured:
        """Adds the flushes, and the clocks before and after. A peer that fails now is left out."""
        def before() -> None:
            conditions["sm_clock_before_mhz"] = self.gpu.clocks_mhz()[0]
        calls = {x.name: x.call for x in contestants}
        peers = {x.name for x in contestants if x.short is not None}
        found = measure(calls, self.stopwatch, self.plan, peers, before)
        conditions["flushes"] = found.flushes
        conditions["sm_clock_mhz"], conditions["memory_clock_mhz"] = self.gpu.clocks_mhz()
        return found
