"""Backward passes: steps and baselines that compute dQ, dK and dV, and whether these are right."""

import ctypes
from collections.abc import Callable
from importlib import import_module

import numpy as np

from common.python.attention_steps.library import BackwardTensors
from plots.bench.cases import DENSE, MASK_BLOCK, Case
from plots.bench.contestants import BaselineCall, Inputs, Mask, Outputs, StepCall, head_of
from plots.bench.device import Device, Memory, StepLibrary
from plots.bench.exact import sampled_rows
from tests.lib.gradients import answers
from tests.lib.problem import Problem

Gradients = tuple[np.ndarray, ...]  # dQ, dK and dV of one head, each [N, D]


class BackwardInputs(Inputs):
    """Also dO, and O and LSE, which a forward step computes that is in the library of each backward step: of one
    that takes the mask, if there is any. The memory is that of Q, K, V, dO and O."""

    count = 4

    def __init__(self, device: Device, step: StepLibrary, case: Case, mask: Mask | None = None) -> None:
        super().__init__(device, case)
        self.forward = Outputs(device, case)
        tensors = (*self.memory[:3], self.forward.o, self.forward.lse)
        self.memory = [*self.memory, self.forward.o]
        form = mask.form_for(step) if mask is not None else None
        step.forward(case.shape(), *(memory.address for memory in tensors), mask=form)


class BackwardOutputs:
    """dQ, dK and dV of a case on the device, which all steps share."""

    def __init__(self, device: Device, case: Case) -> None:
        self.case, self.memory = case, [device.allocate(2 * case.elements()) for _ in range(3)]

    def poison(self) -> None:
        for memory in self.memory:
            memory.fill(0xFF)

    def head(self, batch: int, head: int) -> Gradients:
        return tuple(head_of(memory, self.case, batch, head) for memory in self.memory)


class BackwardCall(StepCall):
    """A backward pass of a step, with all the memory that it needs."""

    def tensors(self) -> list[Memory]:
        """In the order of BackwardTensors."""
        q, k, v, d_o, o = self.inputs.memory
        return [q, k, v, o, self.inputs.forward.lse, d_o, *self.outputs.memory]

    def __call__(self) -> None:
        tensors = BackwardTensors(*(memory.address for memory in self.tensors()), self.more.get("workspace"))
        if self.mask is not None:
            tensors.block_mask, tensors.prepared = ctypes.pointer(self.more["mask"]), self.more["prepared"]
        self.step.backward(self.shape, tensors, self.more.get("workspace_bytes", 0))


class BackwardBaseline(BaselineCall):
    """A backward pass of a kernel of PyTorch."""

    def head(self, batch: int, head: int) -> Gradients:
        return tuple(x[batch, head].to(self.torch.float64).cpu().numpy() for x in self.o)


def sdpa_backward(torch, case: Case, tensors: list, backend: str) -> Callable[[], object]:
    """The backward pass of a backend of scaled_dot_product_attention. Its forward pass is run once, and its O is
    replaced by that of the steps, from which the exact gradients are computed. All tensors are [B, N, H, D] in
    memory, because PyTorch would copy O and dO to this order in each call."""
    *leaves, d_o, o_of_steps = (tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in tensors)
    leaves = [tensor.requires_grad_() for tensor in leaves]
    with torch.nn.attention.sdpa_kernel([getattr(torch.nn.attention.SDPBackend, backend)]):
        o = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=case.mask == "causal")
    o.data.copy_(o_of_steps)  # by `data`, or autograd would refuse
    return lambda: torch.autograd.grad(o, leaves, d_o, retain_graph=True)


def fa3_backward(torch, case: Case, tensors: list) -> Callable[[], object]:
    """The backward pass of FlashAttention-3. LSE is that of FlashAttention-2, because a library of
    FlashAttention-3 may have been built for backward passes alone."""
    q, k, v, d_o, o = (tensor.transpose(1, 2).contiguous() for tensor in tensors)  # [B, N, H, D]
    causal, gradients = case.mask == "causal", [torch.empty_like(x) for x in (q, k, v)]
    lse = torch.ops.aten._scaled_dot_product_flash_attention(*tensors[:3], 0.0, causal)[1]

    def call() -> list:
        torch.ops.flash_attn_3.bwd(d_o, q, k, v, o, lse, *gradients, is_causal=causal)
        return [gradient.transpose(1, 2) for gradient in gradients]

    return call


def flex_backward(torch, case: Case, tensors: list) -> Callable[[], object]:
    """The backward pass of FlexAttention, compiled for each case."""
    flex = import_module("torch.nn.attention.flex_attention")
    torch._dynamo.reset()
    *leaves, d_o, o_of_steps = tensors
    leaves = [tensor.requires_grad_() for tensor in leaves]
    blocks = flex.create_block_mask(
        case.rule(), None, None, case.seqlen, case.seqlen, device="cuda", BLOCK_SIZE=MASK_BLOCK
    )
    o = torch.compile(flex.flex_attention, dynamic=False)(*leaves, block_mask=blocks)
    o.data.copy_(o_of_steps)  # as above
    return lambda: torch.autograd.grad(o, leaves, d_o, retain_graph=True)


def dense(case: Case) -> bool:
    return case.mask in DENSE


# As BASELINES of contestants.py.
BACKWARD_BASELINES = (
    (
        "fa2",
        "FlashAttention-2",
        dense,
        lambda torch, case, tensors: sdpa_backward(torch, case, tensors, "FLASH_ATTENTION"),
    ),
    ("fa3", "FlashAttention-3", dense, fa3_backward),
    ("cudnn", "cuDNN", dense, lambda torch, case, tensors: sdpa_backward(torch, case, tensors, "CUDNN_ATTENTION")),
    ("flex", "FlexAttention", lambda case: not dense(case), flex_backward),
)


class ExactGradients:
    """Exact rows of dQ, dK and dV, in double precision on the host, in the same four heads that Exact compares.
    The rule of docs/correctness.md holds for steps and baselines."""

    def __init__(self, case: Case, inputs: BackwardInputs, mask: Mask | None = None) -> None:
        sampled = sampled_rows(case)
        self.heads, self.rows = [(batch, head) for batch, head, _ in sampled], sampled[0][2]
        q, k, v, d_o, o, lse = (
            np.stack(x)[:, None]
            for x in zip(*((*inputs.head(*head), *inputs.forward.head(*head)) for head in self.heads), strict=True)
        )
        p = Problem(batch=len(self.heads), head_dim=case.head_dim, dtype=case.dtype)
        some, every = self.rows, np.arange(case.seqlen)

        def attended(queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
            if not dense(case):
                return mask.dense[np.ix_(queries, keys)]
            return (keys <= queries[:, None]) | (case.mask == "full")

        self.answers = [
            *answers(
                p, q[:, :, some], k, v, d_o[:, :, some], o[:, :, some], lse[:, :, some], attended(some, every), ("dq",)
            ),
            *answers(p, q, k[:, :, some], v[:, :, some], d_o, o, lse, attended(every, some), ("dk", "dv")),
        ]

    def judge(self, result_of: Callable[[int, int], Gradients]) -> dict:
        """Fields of a record for the results of `result_of(batch, head)`; numbers are of the gradient with the
        largest share, and None if they are not finite."""
        results = [result_of(*head) for head in self.heads]
        right = all(bool(np.isfinite(x).all()) for result in results for x in result)
        found = []
        for gradient, answer in enumerate(self.answers):
            x = np.stack([result[gradient][self.rows] for result in results])[:, None]
            norms = np.linalg.norm(answer.value, axis=-1)
            distance = np.linalg.norm(x - answer.value, axis=-1)
            error = np.divide(distance, norms, out=np.zeros_like(norms), where=norms > 0)
            found.append((float((distance / answer.tolerance).max()), float(error.max()), answer.allowed_error))
        share, error, allowed = max(found) if right else (np.nan, np.nan, found[0][2])
        numbers = {"max_error": error, "allowed_error": float(allowed), "max_error_share": share, "max_lse_error": None}
        return {
            "right": right and share <= 1,
            "rows_checked": 3 * len(self.heads) * len(self.rows),
            **{name: x if x is not None and np.isfinite(x) else None for name, x in numbers.items()},
        }
