"""A model of the Llama family from a GGUF file, run in NumPy."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.activations.layers import Activations, attend, join_heads, split_heads
from tests.activations.rotary import halves_from_neighbours, rotate_halves


@dataclass(frozen=True)
class Config:
    """The parameters in the file."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rotary_base: float
    epsilon: float


def grouped(heads: int, kv_heads: int) -> np.ndarray:
    """The key/value head of each query head: neighbours share one."""
    return np.arange(heads) // (heads // kv_heads)


def _rms_norm(x: np.ndarray, weight: np.ndarray, epsilon: float) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + epsilon) * weight


def _silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


class Llama:
    """Model weights are dequantised when used: all of them in double precision would take 1 GB.

    A test can replace `rotate` and `kv_heads_of` by wrong ones.
    """

    def __init__(self, path: Path, rotate: Callable = rotate_halves, kv_heads_of: Callable = grouped) -> None:
        reader = gguf.GGUFReader(path)
        self._fields = {name: field.contents() for name, field in reader.fields.items()}
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        field = {name.removeprefix("llama."): x for name, x in self._fields.items()}
        heads = field["attention.head_count"]
        self.config = Config(
            field["block_count"],
            heads,
            field["attention.head_count_kv"],
            field["embedding_length"] // heads,
            field["rope.freq_base"],
            field["attention.layer_norm_rms_epsilon"],
        )
        self._rotate = rotate
        self._kv_heads = kv_heads_of(heads, self.config.kv_heads)

    def tokenizer(self) -> Tokenizer:
        """The tokenizer in the file: byte-level pairs, digits one by one."""
        words = self._fields["tokenizer.ggml.tokens"]
        merges = [tuple(merge.split(" ")) for merge in self._fields["tokenizer.ggml.merges"]]
        tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer

    def _weights(self, name: str) -> np.ndarray:
        tensor = self._tensors[name]
        return gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)

    def run(
        self, tokens: list[int], positions: np.ndarray, attended: np.ndarray, wanted: tuple[int, ...] = ()
    ) -> tuple[np.ndarray, dict[int, Activations]]:
        """The last hidden states, [N, width], and the activations of the requested layers.

        `positions`, [N], are for the rotary embedding; `attended`, bool, is [N, N].
        """
        kept = {}
        x = self._weights("token_embd.weight")[tokens]
        for layer in range(self.config.layers):
            now = self._attention(x, positions, attended, layer)
            if layer in wanted:
                kept[layer] = now
            x = x + join_heads(now.o) @ self._weights(f"blk.{layer}.attn_output.weight").T
            x = x + self._feed_forward(x, layer)
        return _rms_norm(x, self._weights("output_norm.weight"), self.config.epsilon), kept

    def _attention(self, x: np.ndarray, positions: np.ndarray, attended: np.ndarray, layer: int) -> Activations:
        c = self.config
        x = _rms_norm(x, self._weights(f"blk.{layer}.attn_norm.weight"), c.epsilon)
        # llama.cpp stores the two columns of each rotated pair side by side.
        wq = halves_from_neighbours(self._weights(f"blk.{layer}.attn_q.weight"), c.heads)
        wk = halves_from_neighbours(self._weights(f"blk.{layer}.attn_k.weight"), c.kv_heads)
        wv = self._weights(f"blk.{layer}.attn_v.weight")
        q = self._rotate(split_heads(x @ wq.T, c.heads), positions, c.rotary_base)
        k = self._rotate(split_heads(x @ wk.T, c.kv_heads), positions, c.rotary_base)
        return attend(q, k, split_heads(x @ wv.T, c.kv_heads), attended, self._kv_heads)

    def _feed_forward(self, x: np.ndarray, layer: int) -> np.ndarray:
        x = _rms_norm(x, self._weights(f"blk.{layer}.ffn_norm.weight"), self.config.epsilon)
        gate, up, down = (self._weights(f"blk.{layer}.ffn_{name}.weight") for name in ("gate", "up", "down"))
        return (_silu(x @ gate.T) * (x @ up.T)) @ down.T

    def next_token_losses(self, hidden: np.ndarray, tokens: list[int]) -> np.ndarray:
        """-ln P of each token except the first, given those before it."""
        embedding = self._weights("token_embd.weight")  # the output layer shares it
        losses = []
        for first in range(0, len(tokens) - 1, 256):  # 256 rows of logits are 100 MB
            following = tokens[first + 1 : first + 257]
            logits = hidden[first : first + len(following)] @ embedding.T
            row_max = logits.max(axis=-1)
            total = np.exp(logits - row_max[:, None]).sum(axis=-1)
            losses.append(row_max + np.log(total) - logits[np.arange(len(following)), following])
        return np.concatenate(losses)
