"""A sentence encoder of the BERT family from a safetensors file, run in NumPy."""

import json
from math import erf
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from tests.activations.layers import Activations, attend, join_heads, split_heads

# NumPy has no error function.
_erf = np.frompyfunc(erf, 1, 1)


def _gelu(x: np.ndarray) -> np.ndarray:
    return x * (1 + _erf(x / np.sqrt(2)).astype(np.float64)) / 2


class Bert:
    """`directory` holds config.json, model.safetensors and tokenizer.json."""

    def __init__(self, directory: Path) -> None:
        config = json.loads((directory / "config.json").read_text())
        self.layers = config["num_hidden_layers"]
        self.heads = config["num_attention_heads"]
        self.head_dim = config["hidden_size"] // self.heads
        self._epsilon = config["layer_norm_eps"]
        self._weights = {
            name: tensor.astype(np.float64)
            for name, tensor in load_file(directory / "model.safetensors").items()
            if tensor.dtype.kind == "f"
        }
        self.tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()

    def run(self, tokens: list[int], wanted: tuple[int, ...] = ()) -> tuple[np.ndarray, dict[int, Activations]]:
        """The last hidden states, [N, width], and the activations of the requested layers."""
        kept = {}
        table = {
            name: self._weights[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")
        }
        x = self._normed(
            table["word"][tokens] + table["position"][: len(tokens)] + table["token_type"][0], "embeddings"
        )
        for layer in range(self.layers):
            at = f"encoder.layer.{layer}"
            now = self._attention(x, f"{at}.attention.self")
            if layer in wanted:
                kept[layer] = now
            x = self._normed(
                x + self._dense(join_heads(now.o), f"{at}.attention.output.dense"), f"{at}.attention.output"
            )
            wide = _gelu(self._dense(x, f"{at}.intermediate.dense"))
            x = self._normed(x + self._dense(wide, f"{at}.output.dense"), f"{at}.output")
        return x, kept

    def _attention(self, x: np.ndarray, at: str) -> Activations:
        q, k, v = (split_heads(self._dense(x, f"{at}.{name}"), self.heads) for name in ("query", "key", "value"))
        return attend(q, k, v, np.ones((len(x), len(x)), bool), np.arange(self.heads))

    def _dense(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]

    def _normed(self, x: np.ndarray, at: str) -> np.ndarray:
        centred = x - x.mean(axis=-1, keepdims=True)
        deviation = np.sqrt(np.mean(centred * centred, axis=-1, keepdims=True) + self._epsilon)
        return centred / deviation * self._weights[f"{at}.LayerNorm.weight"] + self._weights[f"{at}.LayerNorm.bias"]

    def embedding(self, sentence: str) -> np.ndarray:
        """The mean of the last hidden states, scaled to length 1."""
        hidden, _ = self.run(self.tokenizer.encode(sentence).ids)
        mean = hidden.mean(axis=0)
        return mean / np.linalg.norm(mean)
