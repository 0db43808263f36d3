"""Trains a small language model from scratch, with the attention of the steps and with PyTorch's, and prints the loss
and the tokens per second of each. It needs PyTorch and a GPU; `make train TEXT=FILE`.

The model reads bytes. All runs start from the same weights and see the same batches, so what differs is attention: two
kernels that round in another order end with losses that differ a little, and so may the steps.

Usage: python3 -m plots.tools.train TEXT [--iterations 500] [--length 4096] [--batch 4] [--layers 4] [--width 512]
"""

import argparse
import contextlib
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from common.python import attention_steps

HEAD_DIM = 64
SEED = 1
PYTORCH = {"fa2": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION, "math": SDPBackend.MATH}


class Layer(nn.Module):
    """Attention and an MLP, each added to what it reads."""

    def __init__(self, width: int, attend) -> None:
        super().__init__()
        self.attend = attend
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.projections, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, width = x.shape
        # [B, N, 3, H, D]: Q, K and V of all heads are views of it.
        packed = self.projections(self.before(x)).view(b, n, 3, -1, HEAD_DIM)
        q, k, v = packed.permute(2, 0, 3, 1, 4)
        o = self.attend(q, k, v).transpose(1, 2).reshape(b, n, width)
        x = x + self.output(o)
        return x + self.mlp(self.between(x))


class Model(nn.Module):
    def __init__(self, width: int, layers: int, length: int, attend) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(length, width)
        for table in (self.bytes, self.places):
            nn.init.normal_(table.weight, std=0.02)
        self.layers = nn.Sequential(*(Layer(width, attend) for _ in range(layers)))
        self.end = nn.LayerNorm(width)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.layers(self.bytes(text) + self.places.weight[: text.shape[1]])
        return self.end(x) @ self.bytes.weight.T


def attention_of(name: str):
    """Causal attention by the steps, or by a kernel of PyTorch."""
    if name == "steps":
        return lambda q, k, v: attention_steps.scaled_dot_product_attention(q, k, v, is_causal=True)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(PYTORCH[name]):
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    return attend


def train(name: str, text: torch.Tensor, options: argparse.Namespace) -> tuple[float, float]:
    """The mean loss of the last tenth of the iterations, and tokens per second after the first tenth."""
    device = text.device
    torch.manual_seed(SEED)
    model = Model(options.width, options.layers, options.length, attention_of(name)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95))
    starts = torch.Generator().manual_seed(SEED)
    place, tenth, losses = torch.arange(options.length + 1, device=device), max(1, options.iterations // 10), []
    wait = torch.cuda.synchronize if device.type == "cuda" else contextlib.nullcontext
    for i in range(options.iterations):
        if i == tenth:
            wait()
            begin = time.perf_counter()
        first = torch.randint(0, len(text) - options.length - 1, (options.batch, 1), generator=starts).to(device)
        batch = text[first + place]
        with torch.autocast(device.type, torch.bfloat16):
            scores = model(batch[:, :-1])
        loss = functional.cross_entropy(scores.float().flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
    wait()
    tokens = (options.iterations - tenth) * options.batch * options.length
    return float(torch.stack(losses[-tenth:]).mean()), tokens / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("text", type=Path)
    for name, default in (("iterations", 500), ("length", 4096), ("batch", 4), ("layers", 4), ("width", 512)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--attention", nargs="+", default=["steps", "fa2", "cudnn"], choices=["steps", *PYTORCH])
    options = parser.parse_args()
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    text = torch.frombuffer(bytearray(options.text.read_bytes()), dtype=torch.uint8).to(device, torch.long)
    for name in options.attention:
        loss, speed = train(name, text, options)
        print(f"{name:6} loss {loss:.4f}, {speed:.4g} tokens a second", flush=True)


if __name__ == "__main__":
    main()
