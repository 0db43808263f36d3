"""The kernels of others that steps are compared with, as far as PyTorch and its like have them."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from compare_tasks import Task
from step_calls import MASK_BLOCK, Contestant, Inputs

Build = Callable[[Inputs], Callable[[], object]]


@dataclass(frozen=True)
class Peer:
    """`build` makes a call that returns O [B, H, N, D]; `modules`: one of them must be there."""

    short: str
    name: str
    build: Build
    modules: tuple[str, ...]
    takes_all_masks: bool = False

    def takes(self, task: Task) -> bool:
        return task.plain() or self.takes_all_masks

    def missing(self) -> str | None:
        """Why it cannot take part at all, or None."""
        if first_module(self.modules) is not None:
            return None
        return f"cannot import {' or '.join(self.modules)}"

    def contestant(self, inputs: Inputs) -> Contestant:
        return Contestant(self.name, self.build(inputs), short=self.short)


def first_module(names: tuple[str, ...]):
    """The first of these modules that can be imported, or None."""
    for name in names:
        try:
            return import_module(name)
        except (ImportError, OSError):  # OSError: a library that it was built with is not there
            continue
    return None


# --- scaled_dot_product_attention -----------------------------------------------------------------

def sdpa(backend: str) -> Build:
    """By one backend of PyTorch's own. is_causal is aligned to the top left, which is the same
    where there are as many queries as keys."""
    def build(inputs: Inputs) -> Callable[[], object]:
        torch = inputs.torch
        attention = torch.nn.attention
        backends = [getattr(attention.SDPBackend, backend)]
        causal = inputs.task.mask == "causal"

        def call():
            with attention.sdpa_kernel(backends):
                return torch.nn.functional.scaled_dot_product_attention(
                    inputs.q, inputs.k, inputs.v, is_causal=causal)
        return call
    return build


# --- FlexAttention --------------------------------------------------------------------------------

def flex_attention(inputs: Inputs) -> Callable[[], object]:
    """Compiled anew for each task: a cache of variants would be full after a few."""
    torch, task = inputs.torch, inputs.task
    flex = import_module("torch.nn.attention.flex_attention")
    torch._dynamo.reset()
    blocks = None
    if task.mask != "full":
        blocks = flex.create_block_mask(task.rule(), None, None, task.seqlen, task.seqlen,
                                        device=inputs.device, BLOCK_SIZE=MASK_BLOCK)
    compiled = torch.compile(flex.flex_attention, dynamic=False)
    return lambda: compiled(inputs.q, inputs.k, inputs.v, block_mask=blocks)


# --- FlashAttention-3 -----------------------------------------------------------------------------

# It installs the first; later versions have the second too.
FA3_MODULES = ("flash_attn_interface", "flash_attn_3.flash_attn_interface")


def flash_attention_3(inputs: Inputs) -> Callable[[], object]:
    """It wants [B, N, H, D], and gets its inputs so."""
    function = first_module(FA3_MODULES).flash_attn_func
    q, k, v = (x.transpose(1, 2).contiguous() for x in (inputs.q, inputs.k, inputs.v))
    causal = inputs.task.mask == "causal"

    def call():
        found = function(q, k, v, causal=causal)
        o = found[0] if isinstance(found, tuple) else found  # some versions return LSE too
        return o.transpose(1, 2)
    return call


PEERS = (
    Peer("fa2", "FlashAttention-2", sdpa("FLASH_ATTENTION"), ("torch.nn.attention",)),
    Peer("cudnn", "cuDNN", sdpa("CUDNN_ATTENTION"), ("torch.nn.attention",)),
    Peer("math", "unfused SDPA", sdpa("MATH"), ("torch.nn.attention",)),
    Peer("flex", "FlexAttention", flex_attention, ("torch.nn.attention.flex_attention",), True),
    Peer("fa3", "FlashAttention-3", flash_attention_3, FA3_MODULES),
)
