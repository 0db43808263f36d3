"""What a step gives a whole model: the time of a pass with PyTorch's attention, with the step, and without attention,
so that attention's share is seen, too. It needs PyTorch, transformers and a GPU; `make model STEP=10c`.

A forward step is timed in a forward pass, a backward step in a forward and a backward pass, a decode step in the pass
of one token.
The model has the form of Llama and random weights, which take the same time as others.

Usage: python3 -m plots.tools.model STEP [--lengths 1024 4096 16384] [--tokens 16384] [--layers 4] [--width 2048]
"""

import argparse
import contextlib
import functools
from collections.abc import Callable

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from common.python import attention_steps
from common.python.attention_steps import StepError, torch_ops
from plots.tools import generate

KINDS = {"forward": "a forward pass", "backward": "a forward and a backward pass", "decode": "a pass of one token"}


def by_step(name: str, kind: str, takes_spans: bool) -> Callable:
    """Attention by a step, in the form of transformers."""

    @functools.cache
    def causal_spans(n: int, device: torch.device) -> torch.Tensor:
        return attention_steps.document_spans(torch.tensor([n], device=device), n)

    def attend(module, query, key, value, attention_mask, scaling=None, **more):
        if attention_mask is not None and attention_mask.dim() == 1:  # the lengths of a cache
            more = {"scale": scaling, "schedule": torch_ops._kept_schedule(query, key, attention_mask, name)}
            o, _ = attention_steps.decode(query, key, value, attention_mask, step=name, **more)
        else:
            spans = causal_spans(query.shape[2], query.device) if takes_spans else attention_mask
            more = {"forward": {"step": name}, "backward": {"backward": name}, "decode": {}}[kind]
            o, _ = attention_steps.attention(
                query, key, value, causal=spans is None, spans=spans, scale=scaling, **more
            )
        return o.transpose(1, 2), None

    return attend


def by_nothing(module, query, key, value, attention_mask, **more):
    return query.transpose(1, 2), None


def llama(head_dim: int, options: argparse.Namespace) -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=options.width, intermediate_size=11 * options.width // 4, num_hidden_layers=options.layers,
        num_attention_heads=options.width // head_dim, head_dim=head_dim, vocab_size=32000, max_position_embeddings=max(options.lengths) + 64,
    )  # fmt: skip
    with torch.device(options.device):
        return LlamaForCausalLM._from_config(config, attn_implementation="sdpa", dtype=torch.bfloat16)


def a_pass(model: torch.nn.Module, implementation: str, kind: str, length: int, tokens: int) -> Callable[[], object]:
    """A call that enqueues one pass; that of a token is a CUDA graph."""
    if kind == "decode":
        return generate.token(model, implementation, length, max(1, tokens // length), graph=True)
    text = torch.randint(0, 32000, (max(1, tokens // length), length), device=model.device)

    def forward() -> None:
        with torch.no_grad():
            model(text, use_cache=False, logits_to_keep=1)

    def both() -> None:
        model(text, use_cache=False, logits_to_keep=1).logits.float().mean().backward()
        model.zero_grad()

    return forward if kind == "forward" else both


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("step")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096, 16384])
    for name, default in (("tokens", 16384), ("layers", 4), ("width", 2048)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    options.device = "cuda"
    facts = attention_steps.step(options.step).facts
    name, kind, dims, masks = facts["step"], facts["kind"], facts["head_dims"], facts["masks"]
    if facts["fp8"] or "blocks" in masks or "bf16" not in facts["dtypes"]:
        raise SystemExit(f"{name}: must take causal masks or spans, in bf16")
    head_dim = 128 if dims == "any" or 128 in dims else dims[0]
    model = llama(head_dim, options)
    names = {"PyTorch": "sdpa", name: "step", "without": "nothing"}
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register("step", by_step(name.removeprefix("step"), kind, "spans" in masks))
    AttentionInterface.register("nothing", by_nothing)
    for registered in ("step", "nothing"):
        AttentionMaskInterface.register(registered, torch_ops._mask_for_transformers)
    print(f"{KINDS[kind]} of a model of {options.layers} layers, width {options.width}, D = {head_dim}, bf16, causal")
    for length in options.lengths:
        calls = {}
        for who, implementation in names.items():
            run = a_pass(model, implementation, kind, length, options.tokens)
            calls[who] = functools.partial(with_attention, model, implementation, run)
        ms = {who: us / 1000 for who, us in generate.microseconds(calls, rounds=7, each=3).items()}
        share = 1 - ms["without"] / ms["PyTorch"]
        print(
            f"N = {length:6}: PyTorch {ms['PyTorch']:.2f} ms, of which {100 * share:.0f} % attention; "
            f"{name} {ms[name]:.2f} ms: {ms['PyTorch'] / ms[name]:.2f} x, without attention {ms['without']:.2f} ms",
            flush=True,
        )


def with_attention(model: torch.nn.Module, implementation: str, run: Callable[[], object]) -> None:
    """Runs it with this attention; PyTorch's is FlashAttention-2 where that takes the problem."""
    model.set_attn_implementation(implementation)
    backends = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    with sdpa_kernel(backends, set_priority=True) if implementation == "sdpa" else contextlib.nullcontext():
        run()


if __name__ == "__main__":
    try:
        main()
    except StepError as error:
        raise SystemExit(str(error)) from None
