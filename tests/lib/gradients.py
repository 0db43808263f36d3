"""The backward pass in NumPy, in fp64 by its definition; no code is shared with the C sources."""

from pathlib import Path

import numpy as np

from tests.lib.masks import preset
from tests.lib.problem import Problem
from tests.lib.programs import Program, read_records, write_inputs

NAMES = ("dq", "dk", "dv")


def forward(p: Problem, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """P, O and LSE; k and v have as many heads as q."""
    s = np.where(preset(p), p.scale_used() * q @ k.swapaxes(-1, -2), -np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        lse = np.log(np.exp(s - s.max(-1, keepdims=True)).sum(-1, keepdims=True)) + s.max(-1, keepdims=True)
    lse = np.where(np.isnan(lse), -np.inf, lse)
    probs = np.exp(s - np.where(np.isinf(lse), 0, lse))
    return probs, probs @ v, lse[..., 0]


def gradients(p: Problem, q: np.ndarray, k: np.ndarray, v: np.ndarray, d_o: np.ndarray) -> list[np.ndarray]:
    """dQ, dK and dV by the Jacobian of the softmax, without O and LSE of a kernel."""
    group = p.heads // p.kv_heads
    k, v = (np.repeat(x, group, axis=1) for x in (k, v))
    probs, _, _ = forward(p, q, k, v)
    d_probs = d_o @ v.swapaxes(-1, -2)
    ds = probs * (d_probs - (probs * d_probs).sum(-1, keepdims=True))
    dq = p.scale_used() * ds @ k
    dk, dv = p.scale_used() * ds.swapaxes(-1, -2) @ q, probs.swapaxes(-1, -2) @ d_o
    return [dq, *(x.reshape(p.batch, p.kv_heads, group, *x.shape[2:]).sum(2) for x in (dk, dv))]


def draw(p: Problem, seed: int) -> list[np.ndarray]:
    """Q, K, V and dO: normal numbers, exact in fp16 and in bf16."""
    rng = np.random.default_rng(seed)
    shapes = p.q_shape(), p.kv_shape(), p.kv_shape(), p.q_shape()
    return [np.round(rng.normal(size=shape) * 32).clip(-128, 127) / 32 for shape in shapes]


def write(directory: Path, tensors: list[np.ndarray]) -> Path:
    """The directory that --input reads."""
    write_inputs(directory, *tensors[:3])
    np.save(directory / "do.npy", tensors[3])
    return directory


def solve(step: Program, directory: Path, *options: object, **more) -> tuple[list[np.ndarray], dict]:
    """Solves one problem, checked in full by the program: dQ, dK and dV, and the JSON record."""
    json_path = directory / "record.json"
    directory.mkdir(parents=True, exist_ok=True)
    step.run_right("--check", "all", "--output", directory, "--json", json_path, *options, **more)
    (record,) = read_records(json_path)
    return [np.load(directory / f"{name}.npy") for name in NAMES], record


def distances(found: list[np.ndarray], expected: list[np.ndarray]) -> list[float]:
    """Of each gradient, relative to its length."""
    return [float(np.linalg.norm(x.astype(np.float64) - y) / max(np.linalg.norm(y), 1e-30))
            for x, y in zip(found, expected, strict=True)]
