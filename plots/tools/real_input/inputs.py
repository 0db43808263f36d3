"""The inputs that are compared: tensors of real models in tests/data, and random numbers."""

from dataclasses import dataclass

import numpy as np

from tests.lib.programs import REPOSITORY

SEED = 1


@dataclass(frozen=True)
class Input:
    """One input; `directory`, the value of --input, is relative to the repository."""

    name: str
    title: str
    directory: str
    mask: str

    def tensors(self) -> tuple[np.ndarray, ...]:
        """q, k and v as doubles, each [1, H, N, D]."""
        return tuple(np.load(REPOSITORY / self.directory / f"{name}.npy").astype(np.float64) for name in "qkv")


# Random inputs have the shape of the real input with the same head dimension.
RANDOM_64 = Input("random_64", "random, D=64", "build/real_input/random_64", "causal")
RANDOM_32 = Input("random_32", "random, D=32", "build/real_input/random_32", "full")
LONG = Input("random_long", "random, longer", "build/real_input/random_long", "causal")
INPUTS = (
    RANDOM_64,
    Input("smollm2_layer12", "SmolLM2, layer 12", "tests/data/smollm2_layer12", "causal"),
    Input("smollm2_layer18", "SmolLM2, layer 18", "tests/data/smollm2_layer18", "causal"),
    RANDOM_32,
    Input("minilm_layer0", "MiniLM, layer 0", "tests/data/minilm_layer0", "full"),
)


def draw(random: Input, heads: int, kv_heads: int, length: int, head_dim: int) -> None:
    """Writes q, k and v of standard normal numbers in half precision."""
    rng = np.random.default_rng(SEED)
    directory = REPOSITORY / random.directory
    directory.mkdir(parents=True)
    for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
        x = rng.standard_normal((1, count, length, head_dim))
        np.save(directory / f"{name}.npy", x.astype(np.float16))
