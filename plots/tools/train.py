"""Trains a small language model from scratch, with the attention of the steps and with PyTorch's, and prints the loss
and the tokens per second of each. It needs PyTorch and a GPU; `make train TEXT=FILE`.

The model reads bytes. All runs start from the same weights and see the same batches, so what differs is attention: two
kernels that round in another order end with losses that differ a little, and so may the steps.

Usage: python3 -m plots.tools.train TEXT [--iterations 500] [--length 4096] [--batch 4] [--layers 4] [--width 512]
                                    [--seed 1] [--attention steps fa2 cudnn math] [--eager]
"""

import argparse
import contextlib
import functools
import statistics
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from common.python import attention_steps

HEAD_DIM = 64
WARM_UP = 3  # iterations in which PyTorch and its libraries take the memory that they keep
PYTORCH = {"fa2": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION, "math": SDPBackend.MATH}


class Layer(nn.Module):
    """Attention and an MLP, each added to what it reads."""

    def __init__(self, width: int, attend) -> None:
        super().__init__()
        self.attend = attend
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.projections, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        b, n, width = x.shape
        # [B, N, 3, H, D]: Q, K and V of all heads are views of it.
        packed = self.projections(self.before(x)).view(b, n, 3, -1, HEAD_DIM)
        q, k, v = packed.permute(2, 0, 3, 1, 4)
        o = self.attend(q, k, v, mask).transpose(1, 2).reshape(b, n, width)
        x = x + self.output(o)
        return x + self.mlp(self.between(x))


class Model(nn.Module):
    def __init__(self, width: int, layers: int, length: int, attend) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(length, width)
        for table in (self.bytes, self.places):
            nn.init.normal_(table.weight, std=0.02)
        self.layers = nn.ModuleList(Layer(width, attend) for _ in range(layers))
        self.end = nn.LayerNorm(width)

    def forward(self, text: torch.Tensor, place: torch.Tensor | None = None, spans: torch.Tensor | None = None):
        """The scores of the byte that follows each. Documents that are packed one after the other have the `place` of
        each byte in its document, and the `spans` of keys that are of the same one."""
        x = self.bytes(text) + (self.places.weight[: text.shape[1]] if place is None else self.places(place))
        for layer in self.layers:
            x = layer(x, spans)
        return self.end(x) @ self.bytes.weight.T


def attention_of(name: str):
    """Causal attention by the steps, which also take spans, or by a kernel of PyTorch."""

    def by_steps(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spans: torch.Tensor | None) -> torch.Tensor:
        return attention_steps.attention(q, k, v, causal=spans is None, spans=spans)[0]

    def by_pytorch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, _) -> torch.Tensor:
        with sdpa_kernel(PYTORCH[name]):
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    return by_steps if name == "steps" else by_pytorch


class Run:
    """A model that learns a text with the attention of this name."""

    def __init__(self, name: str, text: torch.Tensor, options: argparse.Namespace) -> None:
        self.text, self.options, self.losses = text, options, []
        torch.manual_seed(options.seed)
        self.place = torch.arange(options.length + 1, device=text.device)
        self.model = Model(options.width, options.layers, options.length, attention_of(name)).to(text.device)
        on_gpu = text.device.type == "cuda"
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=6e-4, betas=(0.9, 0.95), fused=True, capturable=on_gpu
        )
        self.graph = torch.cuda.CUDAGraph() if on_gpu and not options.eager else None

    @functools.cached_property
    def starts(self) -> torch.Tensor:
        """Of the sequences of all batches: a copy to the GPU in each iteration would wait for what it still computes."""
        draw, last = torch.Generator().manual_seed(self.options.seed), len(self.text) - self.options.length - 1
        count = self.options.iterations, self.options.batch, 1
        return torch.randint(0, last, count, generator=draw).to(self.text.device)

    def step(self) -> None:
        """One batch of sequences that begin anywhere in the text. The kernels of an iteration are recorded once, as a
        CUDA graph, because the host takes longer to start them one by one than the GPU takes for most of them."""
        iteration = len(self.losses)
        batch = self.text[self.starts[iteration] + self.place]
        if self.graph is None:
            self.losses.append(self.learn(batch[:, 1:], batch[:, :-1]))
        elif iteration < WARM_UP:
            # What runs before a recording must run beside the default stream, which cannot be recorded.
            beside = torch.cuda.Stream()
            beside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(beside):
                self.losses.append(self.learn(batch[:, 1:], batch[:, :-1]))
            torch.cuda.current_stream().wait_stream(beside)
        else:
            if iteration == WARM_UP:
                self.batch = batch
                with torch.cuda.graph(self.graph):
                    self.learned = self.learn(self.batch[:, 1:], self.batch[:, :-1])
            self.batch.copy_(batch)
            self.graph.replay()
            self.losses.append(self.learned.clone())

    def learn(self, following: torch.Tensor, *inputs) -> torch.Tensor:
        """Makes the bytes that follow the inputs more likely; those that are -100 do not count. Returns the loss."""
        with torch.autocast(self.text.device.type, torch.bfloat16):
            scores = self.model(*inputs)
        loss = functional.cross_entropy(scores.float().flatten(0, 1), following.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach()

    def loss(self, last: int) -> float:
        """The mean of the last iterations."""
        return float(torch.stack(self.losses[-last:]).mean())


def seconds(run: Run, iterations: int) -> float:
    """The time of so many iterations."""
    wait = torch.cuda.synchronize if run.text.device.type == "cuda" else contextlib.nullcontext
    wait()
    begin = time.perf_counter()
    for _ in range(iterations):
        run.step()
    wait()
    return time.perf_counter() - begin


def in_turns(runs: dict[str, Run], iterations: int) -> dict[str, float]:
    """Lets the runs do a tenth of the iterations by turns, so that a change of the GPU's clock meets all of them.
    Returns the median time of an iteration of each; the first tenth is not counted."""
    tenth, times = max(1, iterations // 10), []
    for turn in range(1, iterations // tenth + 1):
        times.append({name: seconds(run, tenth) for name, run in runs.items()})
        losses = ", ".join(f"{name} {run.loss(tenth):.4f}" for name, run in runs.items())
        print(f"{turn * tenth} iterations, loss: {losses}", flush=True)
    return {name: statistics.median(turn[name] for turn in times[1:]) / tenth for name in runs}


def parser_of(text: str) -> argparse.ArgumentParser:
    """The options of a script that begins with this text."""
    parser = argparse.ArgumentParser(description=text.split("\n\n")[0])
    parser.add_argument("text", type=Path)
    for name, default in (
        ("iterations", 500),
        ("length", 4096),
        ("batch", 4),
        ("layers", 4),
        ("width", 512),
        ("seed", 1),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser


def text_of(options: argparse.Namespace, parser: argparse.ArgumentParser) -> torch.Tensor:
    """The bytes of a file, as numbers on the GPU if there is one, after a check of the options."""
    device, text = "cuda" if torch.cuda.is_available() else "cpu", options.text.read_bytes()
    if options.width % HEAD_DIM or options.iterations < 2:
        parser.error(f"--width must be a multiple of {HEAD_DIM}, --iterations at least 2")
    if len(text) < options.length + 2:
        parser.error(f"{options.text}: has {len(text)} bytes, must have more than --length, {options.length}")
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).to(device, torch.long)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--attention", nargs="+", default=["steps", "fa2", "cudnn"], choices=["steps", *PYTORCH])
    parser.add_argument("--eager", action="store_true", help="start each kernel by the host, not as a CUDA graph")
    options = parser.parse_args()
    text = text_of(options, parser)
    runs = {name: Run(name, text, options) for name in options.attention}
    for name, time_of_one in in_turns(runs, options.iterations).items():
        loss, tokens = runs[name].loss(max(1, options.iterations // 10)), options.batch * options.length
        print(f"{name:6} loss {loss:.4f}, {tokens / time_of_one:.4g} tokens a second", flush=True)


if __name__ == "__main__":
    main()
