"""Checks that a model was run right: it gives its known results, and wrong variants do not."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.activations.bert import Bert
from tests.activations.layers import Activations
from tests.activations.llama import Llama
from tests.activations.rotary import rotate_neighbours
from tests.activations.texts import packed_mask, packed_positions

# The number of tokens on which right and wrong models are compared.
PROVED_TOKENS = 256
# Perplexity on the book of Ruth: the right model's is lower, each wrong one's is higher.
PERPLEXITY_BOUND = 25.0
# Perplexities of packed and of single documents differ by rounding only; a token that attended
# another document would change them by several per cent.
PACKING_BOUND = 1e-4

# Cosines of sentences as published for all-MiniLM-L6-v2: in the documentation of its library, to
# four digits, and as the standard example of a public inference service.
PUBLISHED_COSINES = (
    ("The weather is lovely today.", "It's so sunny outside!", 0.6660),
    ("The weather is lovely today.", "He drove to the stadium.", 0.1046),
    ("It's so sunny outside!", "He drove to the stadium.", 0.1411),
    ("That is a happy person", "That is a happy dog", 0.69457734),
    ("That is a happy person", "That is a very happy person", 0.94291508),
    ("That is a happy person", "Today is a sunny day", 0.25687608),
)
# Half-precision q, k and v, as here, change a cosine by about 1e-5.
COSINE_BOUND = 1e-4


def _unturned(x: np.ndarray, positions: np.ndarray, base: float) -> np.ndarray:
    return x


def _strided(heads: int, kv_heads: int) -> np.ndarray:
    return np.arange(heads) % kv_heads


WRONG: dict[str, dict[str, Callable]] = {
    "no rotary embedding": {"rotate": _unturned},
    "rotary pairs of the wrong columns": {"rotate": rotate_neighbours},
    "query head h on key/value head h % 3": {"kv_heads_of": _strided},
}


def _losses(model: Llama, tokens: list[int]) -> np.ndarray:
    """The loss of each next token, where a token attends all before it."""
    count = len(tokens)
    hidden, _ = model.run(tokens, np.arange(count), np.tri(count, dtype=bool))
    return model.next_token_losses(hidden, tokens)


def perplexity(losses: np.ndarray) -> float:
    return float(np.exp(losses.mean()))


def prove_llama(path: Path, tokens: list[int], say: Callable[[str], None]) -> dict[str, float]:
    """Perplexities of the right model and of wrong ones, on the first tokens.

    Ends the program unless the right one is below the bound and the others are above it.
    """
    tokens = tokens[:PROVED_TOKENS]
    perplexities = {}
    for name, changes in {"as it should be": {}, **WRONG}.items():
        found = perplexity(_losses(Llama(path, **changes), tokens))
        say(f"  perplexity of {len(tokens)} tokens, {name}: {found:.4g} (bound {PERPLEXITY_BOUND})")
        if (found < PERPLEXITY_BOUND) != (not changes):
            raise SystemExit(
                f"{path.name}, {name}: perplexity {found:.4g}, must be "
                f"{'above' if changes else 'below'} {PERPLEXITY_BOUND}"
            )
        perplexities[name] = float(f"{found:.4g}")
    return perplexities


def prove_packing(
    model: Llama, documents: list[list[int]], layer: int, say: Callable[[str], None]
) -> tuple[Activations, float]:
    """Activations and perplexity of packed documents; they must equal those of each alone."""
    lengths = [len(tokens) for tokens in documents]
    tokens = sum(documents, [])
    hidden, kept = model.run(tokens, packed_positions(lengths), packed_mask(lengths), (layer,))
    # The last token of a document does not predict the first one of the next document.
    ends = np.cumsum(lengths)[:-1]
    packed = perplexity(np.delete(model.next_token_losses(hidden, tokens), ends - 1))
    alone = perplexity(np.concatenate([_losses(model, document) for document in documents]))
    say(f"  perplexity of {len(documents)} documents, packed: {packed:.6g}, alone: {alone:.6g}")
    if not abs(packed / alone - 1) < PACKING_BOUND:
        raise SystemExit(f"packed documents: perplexity {packed}, alone {alone}")
    return kept[layer], packed


def prove_bert(model: Bert, say: Callable[[str], None]) -> list[list]:
    """For each pair: both sentences, their cosine and the published cosine.

    Ends the program if they differ by more than the bound.
    """
    cosines = []
    for first, second, published in PUBLISHED_COSINES:
        found = float(model.embedding(first) @ model.embedding(second))
        say(f"  cosine of {first!r} and {second!r}: {found:.5f}, published {published:.5g}")
        if not abs(found - published) <= COSINE_BOUND:
            raise SystemExit(
                f"all-MiniLM-L6-v2, {first!r} and {second!r}: cosine {found:.5f}, "
                f"must be within {COSINE_BOUND} of {published}"
            )
        cosines.append([first, second, round(found, 5), published])
    return cosines
