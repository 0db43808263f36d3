"""Trains the model of train.py on whole documents: packed one after the other, with a mask that keeps them apart, and
padded to the length of the longest. It needs PyTorch and a GPU; `make packed TEXT=FILE`.

Both see the same documents in the same order and compute the same loss. Lines that begin with the same word up to a
colon, as the verses of a chapter do, are a document; any other line is one.

Usage: python3 -m plots.tools.packed TEXT [--iterations 100] [--length 16384] ...; the length is that of a packed batch
"""

import itertools
import random
from collections.abc import Iterator

import torch

from common.python import attention_steps
from plots.tools import train

NONE = -100  # the target that cross_entropy leaves out


def documents_of(text: bytes, longest: int) -> list[bytes]:
    """The documents, cut off after the longest length."""
    groups = itertools.groupby(text.splitlines(keepends=True), lambda line: line.partition(b":")[0])
    return [b"".join(lines)[: longest + 1] for _, lines in groups]


def batches(documents: list[bytes], length: int, seed: int) -> Iterator[list[torch.Tensor]]:
    """As many documents at a time, in random order, as fit in a packed sequence."""
    draw, batch, used = random.Random(seed), [], 0
    while True:
        document = draw.choice(documents)
        if len(document) < 2:
            continue
        if used + len(document) - 1 > length:
            yield batch
            batch, used = [], 0
        batch.append(torch.frombuffer(bytearray(document), dtype=torch.uint8).long())
        used += len(document) - 1


class Documents(train.Run):
    """A run on batches of documents, which are made beforehand, as a loader makes them beside the training."""

    def __init__(self, kind: str, text: torch.Tensor, options) -> None:
        name, self.packed = ("steps", True) if kind == "packed" else (kind.removeprefix("padded "), False)
        super().__init__(name, text, options)
        documents = documents_of(bytes(text.tolist()), options.length)
        drawn = list(itertools.islice(batches(documents, options.length, options.seed), options.iterations))
        self.tokens = [sum(len(document) - 1 for document in batch) for batch in drawn]
        # In pinned memory, so that a copy to the GPU does not wait for what it still computes.
        pin = torch.Tensor.pin_memory if text.device.type == "cuda" else torch.clone
        self.batches = iter([[pin(x) for x in self.made_of(batch)] for batch in drawn])

    def made_of(self, batch: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """What learn() takes."""
        lengths = [len(document) - 1 for document in batch]
        if not self.packed:
            rows = torch.nn.utils.rnn.pad_sequence(batch, batch_first=True, padding_value=NONE)
            return rows[:, 1:].contiguous(), rows[:, :-1].clamp(min=0)
        rest = self.options.length - sum(lengths)  # the end of the sequence is filled, and does not count
        fill = torch.zeros(rest, dtype=torch.long)
        inputs, following, place = (
            torch.cat([*parts, last])[None]
            for parts, last in (
                ([x[:-1] for x in batch], fill),
                ([x[1:] for x in batch], fill + NONE),
                ([torch.arange(n) for n in lengths], fill),
            )
        )
        return following, inputs, place, attention_steps.document_spans(torch.tensor(lengths), self.options.length)

    def step(self) -> None:
        batch = (x.to(self.text.device, non_blocking=True) for x in next(self.batches))
        self.losses.append(self.learn(*batch))


def main() -> None:
    parser = train.parser_of(__doc__)
    parser.set_defaults(length=16384, iterations=100, eager=True)  # the batches differ in shape
    options = parser.parse_args()
    text = train.text_of(options, parser)
    runs = {kind: Documents(kind, text, options) for kind in ("packed", "padded steps", "padded fa2", "padded cudnn")}
    for kind, seconds in train.in_turns(runs, options.iterations).items():
        run, tenth = runs[kind], max(1, options.iterations // 10)
        speed = sum(run.tokens[tenth:]) / len(run.tokens[tenth:]) / seconds
        print(f"{kind:12} loss {run.loss(tenth):.4f}, {speed:.4g} tokens a second", flush=True)


if __name__ == "__main__":
    main()
