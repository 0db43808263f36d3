"""Steps as operators of PyTorch: on a GPU by their libraries, on the CPU by the simulator."""

from __future__ import annotations

import ctypes
import functools
import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.compiler import is_compiling

from . import gallery
from .gallery import StepError
from .library import MASK_FILES, BackwardTensors, BlockMask, DecodeTensors, Shape, StepLibrary, block_mask, span_mask
from .steps import Step
from .steps import step as numpy_step

DTYPES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float8_e4m3fn: "e4m3"}
HALVES = (torch.float16, torch.bfloat16)
PROBLEM = "Tensor[] mask, bool causal, float scale, str step"
SIMULATED = 90  # the compute capability of the simulator
# The masks of a step, by the number of tensors that say what is masked.
FORMS = {0: ("full", "causal"), 1: ("full", "causal", "spans"), 5: ("full", "causal", "blocks")}
DECODE = ("full", "causal", "window")
NEW_QUERIES, GROUP_SIZE, PAGE_SIZES = 16, 16, (16, 32, 64, 128, 256)  # the most, and all, of decode.h
FULL, PARTIAL = 2, 3  # BlockType of block_mask.h

LIBRARY = torch.library.Library("attention_steps", "FRAGMENT")
for _schema in (
    f"attention(Tensor q, Tensor k, Tensor v, {PROBLEM}, str backward) -> (Tensor, Tensor)",
    "attention_backward(Tensor d_o, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, "
    f"{PROBLEM}) -> (Tensor, Tensor, Tensor)",
    "decode(Tensor q, Tensor k, Tensor v, Tensor lengths, Tensor? page_table, Tensor[] scales, bool causal,"
    " float scale, str step, Tensor? schedule) -> (Tensor, Tensor)",
):
    LIBRARY.define(_schema)


@functools.cache
def fastest(kind: str, head_dim: int, dtype: str, masks: tuple, capability: int, deterministic=False) -> str:
    """The last step in the order of reading that fits: those before it are slower. `dtype` is that of K and V of a
    decode step. `deterministic` is asked of a backward step alone; where none of either sort fits, the other is taken."""
    other = ""
    for name in reversed(gallery.names()):
        source = numpy_step(name).source  # says the kind; for its facts a step is compiled
        if kind != next((special for special in ("backward", "decode") if f"\n    .{special} =" in source), "forward"):
            continue
        facts = numpy_step(name).facts
        if facts["masks"] != [*masks]:
            continue
        needs = facts["needs_compute_capability"] or 0
        fits = needs == capability if needs == 90 else max(needs, 80 if needs and dtype == "bf16" else 0) <= capability
        fits = fits and (facts["head_dims"] == "any" or head_dim in facts["head_dims"])
        if fits and dtype in facts["kv_dtypes" if kind == "decode" else "dtypes"]:
            if kind != "backward" or facts["deterministic"] == deterministic:
                return name
            other = other or name
    if not other:
        what = f"D = {head_dim}, {dtype} and the masks {', '.join(masks)}"
        raise StepError(f"no {kind} step takes {what} with compute capability {capability / 10}")
    return other


@functools.cache
def _capability(device: int) -> int:
    return int("{}{}".format(*torch.cuda.get_device_capability(device)))


def _like(x: Tensor) -> Tensor:
    """A result with the strides of x, or compact if these are not dense or the last is not 1."""
    made = torch.empty_like(x)
    return made if made.stride(3) == 1 else torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _for_gradient(x: Tensor, keeps) -> Tensor:
    """Memory with the strides of x even if there are gaps, as between parts of a packed tensor, so that no copy of x
    without gaps is needed; `keeps` says whether they are kept."""
    return x.new_empty_strided(x.shape, x.stride()) if keeps(x.shape, x.stride()) else _like(x)


def _keeps(shape: tuple, strides: tuple) -> bool:
    """Whether rows are as kernels write them, do not overlap, and gaps take at most three times as much memory."""
    reach = 1
    for stride, n in sorted(zip(strides, shape)):
        if n > 1 and stride < reach:
            return False
        reach += (n - 1) * stride
    return _are_chunks.__wrapped__(shape, strides) and reach <= 4 * math.prod(shape)


_keeps_gaps = functools.lru_cache(4096)(_keeps)  # for numbers, not for symbols


# --- What calls with the same problem share -------------------------------------------------------------


class Plan(NamedTuple):
    """Of a step and a problem; `c` is the problem in C, `rows` a tensor of the shape of LSE without memory for it."""

    library: StepLibrary
    c: object
    workspace: int
    prepared: int  # the bytes of a prepared mask, or of a schedule
    rows: Tensor
    page_size: int


@functools.cache
def _library(name: str, device: int) -> StepLibrary:
    return StepLibrary(gallery.built(f"libstep{name}.so", backend=f"cuda-sm_{_capability(device)}")[0])


@functools.lru_cache(4096)
def _are_chunks(lengths: tuple, strides: tuple, chunk: int = 8) -> bool:
    """Whether rows are contiguous and begin at multiples of a chunk of 16 bytes, from an address that is one."""
    return strides[3] == 1 and all(n == 1 or (s > 0 and s % chunk == 0) for n, s in zip(lengths[:3], strides))


def _strides(lengths: tuple, strides: tuple) -> tuple[int, ...]:
    """Those of batch, head and row; of a dimension of 1 any that is right for copies of 16 bytes."""
    return tuple(s if n > 1 else lengths[3] * 8 for n, s in zip(lengths[:3], strides))


@functools.lru_cache(4096)
def _plan(
    kind: str, step: str, deterministic: bool, device: torch.device, dtype: torch.dtype, kv_dtype: torch.dtype,
    q: tuple, k: tuple, strides: tuple, masks: tuple, causal: bool, scale: float, table: tuple = (),
) -> Plan | None:  # fmt: skip
    """`strides` are those of q, k, v and perhaps o; `masks` and `table` are shapes, too. None if kernels cannot read a
    tensor where it is."""
    chunk = 16 // kv_dtype.itemsize
    if not all(map(_are_chunks, (q, k, k), strides, (16 // dtype.itemsize, chunk, chunk))):
        return None
    forms = DECODE if kind == "decode" else FORMS[len(masks)]
    name = numpy_step(step).name[4:] if step else ""
    name = name or fastest(kind, q[3], DTYPES[kv_dtype], forms, _capability(device.index), deterministic)
    library, (b, heads, n, d), (_, kv_heads, n_kv, _) = _library(name, device.index), q, k
    o = strides[3] if len(strides) > 3 else _like(torch.empty_strided(q, strides[0], device="meta")).stride()
    strides, page_size = [*strides[:3], o], 0
    if table:  # pages are [pages, page_size, kv_heads, head_dim]: page, head and key
        (pages, page_size, kv_heads, _), n_kv = k, table[1] * k[1]
        k, strides[1:3] = (pages, kv_heads, page_size, d), [(s[0], s[2], s[1], 1) for s in strides[1:3]]
    sizes, e4m3 = (b, heads, kv_heads, n, n_kv, d, dtype == torch.bfloat16, causal), kv_dtype == torch.float8_e4m3fn
    shape = Shape(*sizes, e4m3=e4m3, scale=scale, strides=sum(map(_strides, (q, k, k, q), strides), ()))
    if kind == "decode":
        workspace, prepared = library.decode_bytes(shape, page_size)
        workspace = -(-workspace // 256) * 256
    else:
        workspace = library.workspace_bytes(shape, 1 << 62)
        prepared = library.prepare(shape, _mask(masks, [256] * 5)) if masks else 0
    rows = torch.empty((), device=device).expand(q[:3])
    return Plan(library, ctypes.byref(shape), workspace, prepared, rows, page_size)


def _mask(shapes: tuple, addresses: list[int]) -> BlockMask:
    return span_mask(shapes[0], addresses[0]) if len(shapes) == 1 else block_mask(shapes, addresses)


def _plan_of(kind: str, step: str, q, k, v, mask: list[Tensor], problem: tuple, *o: Tensor) -> Plan | None:
    strides = tuple([x.stride() for x in (q, k, v, *o)])
    masks = tuple([x.shape for x in mask]) if mask else ()
    deterministic = kind == "backward" and torch.are_deterministic_algorithms_enabled()
    return _plan(kind, step, deterministic, q.device, q.dtype, k.dtype, q.shape, k.shape, strides, masks, *problem)


# --- On a GPU -------------------------------------------------------------------------------------------


def _compact(x: Tensor) -> Tensor:
    return x if x.data_ptr() % 16 == 0 and _are_chunks(x.shape, x.stride()) else x.new_empty(x.shape).copy_(x)


_zeroed: dict[tuple, Tensor] = {}


def _workspace(plan: Plan, device: torch.device, stream: int) -> Tensor:
    """It must be 0 before the first pass, and each leaves it so. Passes in one stream share one, and a graph has its
    own, because it may run beside other passes."""
    if torch._C._cuda_isCurrentStreamCapturing():
        return torch.zeros(plan.workspace, dtype=torch.uint8, device=device)
    key = plan.library.name, device.index, stream
    kept = _zeroed.get(key)
    if kept is None or kept.numel() < plan.workspace:
        kept = _zeroed[key] = torch.zeros(plan.workspace, dtype=torch.uint8, device=device)
    return kept


def _beside(plan: Plan, mask: list[Tensor], device: torch.device, stream: int) -> tuple:
    """What a pass needs beside the tensors: a mask, what is prepared of it, the workspace; and their memory."""
    found, prepared, memory = None, None, None
    if mask:
        found = _mask([x.shape for x in mask], [x.data_ptr() for x in mask])
        memory = torch.empty(max(plan.prepared, 1), dtype=torch.uint8, device=device)
        prepared = memory.data_ptr()
        plan.library.prepare(plan.c, found, prepared, stream)
    kept = _workspace(plan, device, stream) if plan.workspace else None
    return found, prepared, None if kept is None else kept.data_ptr(), (memory, kept)


def _on_its_device(function):
    # Calls a function with the device of its first tensor as the current one.
    def called(first, *others):
        if first.device.index == torch._C._cuda_getDevice():
            return function(first, *others)
        with torch.cuda.device(first.device):
            return function(first, *others)

    return called


def _attention(q, k, v, mask, causal, scale, step, backward):
    plan, device = _plan_of("forward", step, q, k, v, mask, (causal, scale)), q.device
    if plan is None or (q.data_ptr() | k.data_ptr() | v.data_ptr()) % 16:
        q, k, v = map(_compact, (q, k, v))
        plan = _plan_of("forward", step, q, k, v, mask, (causal, scale))
    o, lse = torch.empty_like(q), torch.empty_like(plan.rows)
    stream = torch._C._cuda_getCurrentRawStream(device.index)
    *beside, _kept = _beside(plan, mask, device, stream) if mask or plan.workspace else (None, None, None, None)
    addresses = q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr(), lse.data_ptr()
    plan.library.library.step_forward(plan.c, *beside, plan.workspace, *addresses, stream, None, None, None)
    return o, lse


def _backward(d_o, q, k, v, o, lse, mask, causal, scale, step):
    # A gradient has the strides of its tensor, and dO has those of O.
    outputs = _for_gradient(q, _keeps_gaps), _for_gradient(k, _keeps_gaps), _for_gradient(v, _keeps_gaps)
    q, k, v = map(_as, outputs, (q, k, v))
    o = _compact(o)
    d_o = _as(o, d_o)
    plan = _plan_of("backward", step, q, k, v, mask, (causal, scale), o)
    stream = torch._C._cuda_getCurrentRawStream(q.device.index)
    found, prepared, workspace, _kept = _beside(plan, mask, q.device, stream)
    tensors = BackwardTensors(*(x.data_ptr() for x in (q, k, v, o, lse, d_o, *outputs)), workspace)
    if found:
        tensors.block_mask.contents, tensors.prepared = found, prepared
    plan.library.library.step_backward(plan.c, tensors, plan.workspace, stream)
    return outputs


def _as(like: Tensor, x: Tensor) -> Tensor:
    """x, or a copy with the strides of another tensor."""
    if x.stride() == like.stride() and x.data_ptr() % 16 == 0:
        return x
    return like.new_empty_strided(like.shape, like.stride()).copy_(x)


def _decode_plan(q: Tensor, k: Tensor, v: Tensor, page_table: Tensor | None, causal, scale, step) -> tuple:
    """And q, which may be a copy."""
    problem = q.device, q.dtype, k.dtype, q.shape, k.shape
    more = (), causal, scale, () if page_table is None else page_table.shape
    plan = _plan("decode", step, False, *problem, (q.stride(), k.stride(), v.stride()), *more)
    if plan is None or q.data_ptr() % 16:
        q = _compact(q)
        plan = _plan("decode", step, False, *problem, (q.stride(), k.stride(), v.stride()), *more)
    if plan is None or (k.data_ptr() | v.data_ptr()) % 16:
        raise StepError("k, v: their rows must be contiguous, and all strides and addresses multiples of 16 bytes")
    return plan, q


def _decode(q, k, v, lengths, page_table, scales, causal, scale, step, schedule):
    plan, q = _decode_plan(q, k, v, page_table, causal, scale, step)
    o, lse = torch.empty_like(q), torch.empty_like(plan.rows)
    if schedule is None:
        schedule = _scheduled(q, plan, lengths, page_table)
    elif schedule.numel() != plan.workspace + plan.prepared:
        raise StepError("schedule: is of another step, or of tensors of other shapes")
    table, stride = (0, 0) if page_table is None else (page_table.data_ptr(), page_table.stride(0))
    cache = k.data_ptr(), v.data_ptr(), lengths.data_ptr(), table, stride
    factors = [x.data_ptr() for x in scales] if scales else (0, 0)
    outputs = o.data_ptr(), lse.data_ptr(), schedule.data_ptr(), schedule.data_ptr() + plan.workspace
    tensors = DecodeTensors.pack(q.data_ptr(), *cache, *factors, *outputs)
    stream = torch._C._cuda_getCurrentRawStream(q.device.index)
    plan.library.library.step_decode(plan.c, plan.page_size, tensors, stream)
    return o, lse


def _scheduled(q: Tensor, plan: Plan, lengths: Tensor, page_table: Tensor | None) -> Tensor:
    """A workspace, 0 as its passes leave it, and a schedule."""
    made = torch.zeros(plan.workspace + plan.prepared, dtype=torch.uint8, device=q.device)
    tensors = DecodeTensors(lengths=lengths.data_ptr(), schedule=made.data_ptr() + plan.workspace)
    stream = torch._C._cuda_getCurrentRawStream(q.device.index)
    plan.library.library.step_schedule(plan.c, plan.page_size, tensors, stream)
    return made


# --- On the simulator ---------------------------------------------------------------------------------


def _numpy(x: Tensor) -> np.ndarray:
    """A view of its numbers, where NumPy has none of its kind of their bits."""
    x, bits = x.detach().contiguous(), {torch.bfloat16: torch.uint16, torch.float8_e4m3fn: torch.uint8}
    return x.view(bits.get(x.dtype, x.dtype)).numpy()


def _tensor(x: np.ndarray, made: Tensor) -> Tensor:
    return made.copy_(torch.from_numpy(x).view(made.dtype))


def _simulated(kind: str, q: Tensor, dtype: torch.dtype, masks: tuple[str, ...], step: str) -> Step:
    deterministic = torch.are_deterministic_algorithms_enabled()
    return numpy_step(step or fastest(kind, q.shape[3], DTYPES[dtype], masks, SIMULATED, deterministic))


def _numpy_mask(mask: list[Tensor], causal: bool, q: Tensor, k: Tensor) -> object:
    if not mask:
        return "causal" if causal else "full"
    if len(mask) > 1:
        return {name: x.numpy() for name, x in zip(MASK_FILES, mask)}
    place, limits = np.arange(k.shape[2]), mask[0].numpy()
    return (place >= limits[..., :1]) & (place < limits[..., 1:])


def _attention_cpu(q, k, v, mask, causal, scale, step, backward):
    called = _simulated("forward", q, q.dtype, FORMS[len(mask)], step)
    o, lse = called(*map(_numpy, (q, k, v)), mask=_numpy_mask(mask, causal, q, k), scale=scale)
    return _tensor(o, _like(q)), torch.from_numpy(lse)


def _backward_cpu(d_o, q, k, v, o, lse, mask, causal, scale, step):
    called = _simulated("backward", q, q.dtype, FORMS[len(mask)], step)
    found = called(*map(_numpy, (q, k, v, d_o, o, lse)), mask=_numpy_mask(mask, causal, q, k), scale=scale)
    return tuple(_tensor(x, _for_gradient(like, _keeps)) for x, like in zip(found, (q, k, v)))


def _decode_cpu(q, k, v, lengths, page_table, scales, causal, scale, step, schedule):
    called = _simulated("decode", q, k.dtype, DECODE, step)
    cache = zip(("lengths", "k_scales", "v_scales"), map(_numpy, (lengths, *scales)))
    if page_table is not None:  # as many columns as the longest sequence needs
        cache = [*cache, ("page_table", _numpy(page_table[:, : -(-int(lengths.max()) // k.shape[1]) or None]))]
    o, lse = called(*map(_numpy, (q, k, v)), mask="causal" if causal else "full", scale=scale, **dict(cache))
    return _tensor(o, _like(q)), torch.from_numpy(lse)


for _name, _of_gpu, _of_cpu in (
    ("attention", _attention, _attention_cpu),
    ("attention_backward", _backward, _backward_cpu),
    ("decode", _decode, _decode_cpu),
):
    LIBRARY.impl(_name, _on_its_device(_of_gpu), "CUDA")
    LIBRARY.impl(_name, _of_cpu, "CPU")


# --- Shapes and gradients -----------------------------------------------------------------------------


@torch.library.register_fake("attention_steps::attention")
@torch.library.register_fake("attention_steps::decode")
def _forward_fake(q, *_others):
    return _like(q), q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.register_fake("attention_steps::attention_backward")
def _backward_fake(d_o, q, k, v, o, lse, mask, causal, scale, step):
    return _for_gradient(q, _keeps), _for_gradient(k, _keeps), _for_gradient(v, _keeps)


def _save(ctx, inputs, output):
    q, k, v, mask, ctx.causal, ctx.scale, _, ctx.step = inputs
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(q, k, v, *output, *mask)


def _gradients(ctx, d_o, _):
    q, k, v, o, lse, *mask = ctx.saved_tensors
    none = [None] * len(mask), None, None, None, None
    if d_o is None:
        return None, None, None, *none
    direct = _is_plain(q) and not torch.is_grad_enabled()  # no gradient of gradients
    backward = _backward if direct else torch.ops.attention_steps.attention_backward.default
    return *backward(d_o, q, k, v, o, lse, mask, ctx.causal, ctx.scale, ctx.step), *none


def _second_gradients(_ctx, *_others):
    raise StepError("attention: its gradients have no gradients")


torch.library.register_autograd("attention_steps::attention", _gradients, setup_context=_save)
torch.library.register_autograd("attention_steps::attention_backward", _second_gradients)


def _is_plain(q: Tensor) -> bool:
    """Whether kernels may be called without what the dispatcher does for each call."""
    special = is_compiling() or type(q) is not Tensor or torch._C._len_torch_dispatch_stack()
    special = special or torch._C._are_functorch_transforms_active()
    return not special and q.is_cuda and q.device.index == torch._C._cuda_getDevice()


class Eager(torch.autograd.Function):
    """What `register_autograd` makes, for such calls."""

    @staticmethod
    def forward(ctx, *inputs):
        output = _attention(*inputs)
        _save(ctx, inputs, output)
        return output

    @staticmethod
    def backward(ctx, *d_outputs):
        return *_gradients(ctx, *d_outputs)[:3], None, None, None, None, None


# --- What users call ----------------------------------------------------------------------------------


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, spans: Tensor | None = None,
    blocks: list[Tensor] | None = None, scale: float | None = None, step: str = "", backward: str = "",
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """O and LSE. Tensors are [B, Hq, Nq, D] and [B, Hkv, Nkv, D] of float16 or bfloat16, with any strides: those that
    a kernel cannot read are copied. The causal mask is aligned to the last key, as for new tokens with a cache.
    `spans`, int32 [B or 1, Hq or 1, Nq, 2], gives each query the first of its keys and the end of them, in place of
    a mask: `document_spans()` makes those of packed documents. `blocks` are the lists of a block mask, which
    `blocks_of()` makes of FlexAttention's; no backward step takes them. `step` and `backward` name steps, else the last that
    fit are called. dQ, dK and dV come from autograd; LSE has no gradient."""
    if q.dtype not in HALVES or not q.dtype == k.dtype == v.dtype:
        raise StepError(f"q, k, v: are {q.dtype}, {k.dtype}, {v.dtype}, must all be float16 or all bfloat16")
    of_q, of_k = q.shape, k.shape
    if not len(of_q) == len(of_k) == 4 or of_k != v.shape:
        raise StepError(f"q, k, v: have the shapes {[*q.shape]}, {[*k.shape]}, {[*v.shape]}, must be [B, H, N, D]")
    if of_k[0] != of_q[0] or of_k[3] != of_q[3] or not of_k[1] or of_q[1] % of_k[1]:
        raise StepError(f"k: has the shape {[*k.shape]}, must have B and D of q, {[*q.shape]}, and H must divide q's")
    if causal + (spans is not None) + bool(blocks) > 1:
        raise StepError("causal, spans, blocks: at most one may be given")
    if spans is not None:
        b, h, *rows = spans.shape if spans.dim() == 4 else (0, 0)
        if spans.dtype != torch.int32 or b not in (1, of_q[0]) or h not in (1, of_q[1]) or rows != [of_q[2], 2]:
            raise StepError(f"spans: {spans.dtype} {[*spans.shape]}, must be int32 [B or 1, Hq or 1, {of_q[2]}, 2]")
        blocks = [spans.contiguous()]
    elif blocks and len(blocks) != 5:
        raise StepError(f"blocks: has {len(blocks)} tensors, must have the 5 of blocks_of()")
    if any(x.device != q.device for x in (k, v, *(blocks or ()))):
        raise StepError(f"q, k, v: are on {q.device}, {k.device}, {v.device}; all tensors must be on one device")
    inputs = q, k, v, blocks or [], causal, of_q[3] ** -0.5 if scale is None else float(scale), step, backward
    if not _is_plain(q):
        return torch.ops.attention_steps.attention.default(*inputs)
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return Eager.apply(*inputs)
    return _attention(*inputs)


def decode(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, *, page_table: Tensor | None = None,
    k_scales: Tensor | None = None, v_scales: Tensor | None = None, causal: bool = True, scale: float | None = None,
    schedule: Tensor | None = None, step: str = "",
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """O and LSE of 1 to 16 new tokens at the end of a cache. q is [B, Hq, Nq, D] of float16 or bfloat16, D = 64, 128 or
    256. k and v are [B, Hkv, longest, D], or pages [pages, page size, Hkv, D] with `page_table`, int32 [B, pages of the
    longest]; they may be views whose strides are multiples of 16 bytes, of the type of q or float8_e4m3fn with
    `k_scales` and `v_scales`, float32 [B, Hkv]. `lengths`, int32 [B], has the keys of each sequence, the new ones
    included; what comes after them is not read. Lengths and page numbers are not checked, because they stay on the GPU.
    `schedule` is what `decode_schedule()` made of these lengths, else each call makes one. There is no gradient."""
    if q.dtype not in HALVES or k.dtype not in (q.dtype, torch.float8_e4m3fn) or v.dtype != k.dtype:
        raise StepError(f"q, k, v: are {q.dtype}, {k.dtype}, {v.dtype}, must be all of one 16-bit type, or k, v e4m3")
    if not q.dim() == k.dim() == v.dim() == 4 or k.shape != v.shape or k.shape[3] != q.shape[3]:
        raise StepError(f"q, k, v: have the shapes {[*q.shape]}, {[*k.shape]}, {[*v.shape]}, must have four and one D")
    b, heads, n, _ = q.shape
    kv_heads = k.shape[1 if page_table is None else 2]
    if not kv_heads or heads % kv_heads or heads // kv_heads > GROUP_SIZE or not 1 <= n <= NEW_QUERIES:
        raise StepError(f"q: has {heads} heads and {n} rows, must have 1 to 16 times {kv_heads} heads and 1 to 16 rows")
    if page_table is None and k.shape[0] != b or page_table is not None and k.shape[1] not in PAGE_SIZES:
        raise StepError(f"k: has the shape {[*k.shape]}, must be [{b}, Hkv, longest, D], or pages of 16 to 256 keys")
    scales = [x for x in (k_scales, v_scales) if x is not None]
    if len(scales) != 2 * (k.dtype == torch.float8_e4m3fn):
        raise StepError("k_scales, v_scales: must be given with a cache in e4m3, and with no other")
    for what, x, dtype, shape in (
        ("lengths", lengths, torch.int32, (b,)),
        ("page_table", page_table, torch.int32, page_table is not None and (b, page_table.shape[-1])),
        *(("k_scales, v_scales", x, torch.float32, (b, kv_heads)) for x in scales),
    ):
        if x is not None and (x.dtype != dtype or x.shape != shape or not x.is_contiguous() or x.device != q.device):
            raise StepError(f"{what}: {x.dtype} {[*x.shape]}, must be contiguous {dtype} {[*shape]} on {q.device}")
    if q.device != k.device or k.device != v.device:
        raise StepError(f"q, k, v: are on {q.device}, {k.device}, {v.device}; all tensors must be on one device")
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        raise StepError("q, k, v: decode has no gradient; call it under torch.no_grad()")
    scale = q.shape[3] ** -0.5 if scale is None else float(scale)
    call = _decode if _is_plain(q) else torch.ops.attention_steps.decode.default
    return call(q, k, v, lengths, page_table, scales, causal, scale, step, schedule)


def decode_schedule(
    q: Tensor, k: Tensor, lengths: Tensor, *, page_table: Tensor | None = None, causal: bool = True, step: str = ""
) -> Tensor | None:
    """What a pass needs of these lengths beside the tensors, and what its thread blocks tell each other: for all calls
    of `decode()` with tensors of these shapes, types and lengths that run one after the other, such as those of the
    layers of a model. With others a call may give wrong numbers or never end. None on the simulator."""
    if not q.is_cuda:
        return None
    plan, q = _decode_plan(q, k, k, page_table, causal, 1.0, step)
    return _on_its_device(_scheduled)(q, plan, lengths, page_table)


def document_spans(lengths: Tensor, total: int, causal: bool = True) -> Tensor:
    """The spans of documents of these lengths, int [count], in a sequence of `total` tokens; its rest is one, too."""
    ends = torch.nn.functional.pad(lengths.cumsum(0), (0, 1), value=total).cummax(0).values
    place = torch.arange(total, device=lengths.device)
    document = torch.searchsorted(ends, place, right=True)
    last = place + 1 if causal else ends[document]
    return torch.stack([torch.nn.functional.pad(ends, (1, 0))[document], last], -1).to(torch.int32)[None, None]


def blocks_of(flex: object) -> list[Tensor]:
    """The lists of a step's block mask, of a BlockMask of FlexAttention, whose rule is evaluated in its partial blocks:
    once, for all calls with this mask. The size of its blocks must be one that the step takes."""
    (n, n_kv), sizes, lists = flex.seq_lengths, flex.BLOCK_SIZE, [(flex.kv_num_blocks, flex.kv_indices, PARTIAL)]
    if flex.full_kv_num_blocks is not None:
        lists.append((flex.full_kv_num_blocks, flex.full_kv_indices, FULL))
    listed = [torch.arange(x.shape[3], device=x.device) < count[..., None] for count, x, _ in lists]
    first = torch.cat(listed, 3).to(torch.int8).argsort(dim=3, descending=True, stable=True)
    indices = torch.cat([x for _, x, _ in lists], 3).gather(3, first).to(torch.int32)
    types = torch.cat([torch.full_like(x, kind) for _, x, kind in lists], 3).gather(3, first).to(torch.int32)
    counts = sum(count for count, _, _ in lists).to(torch.int32)
    partial = (torch.arange(types.shape[3], device=types.device) < counts[..., None]) & (types == PARTIAL)
    b, h, row, slot = (x[:, None, None] for x in partial.nonzero(as_tuple=True))
    q = row * sizes[0] + torch.arange(sizes[0], device=row.device)[:, None]
    k = indices[b, h, row, slot] * sizes[1] + torch.arange(sizes[1], device=row.device)
    tiles = flex.mask_mod(b, h, q.clamp(max=n - 1), k.clamp(max=n_kv - 1)) & (q < n) & (k < n_kv)
    numbers = (partial.flatten().cumsum(0) - 1).view(partial.shape).to(torch.int32)
    return [x.contiguous() for x in (counts, indices, types, numbers, tiles)]


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """As `torch.nn.functional.scaled_dot_product_attention`. Refused are dropout, dense masks (`attention()` takes spans of
    keys), a scale that is not positive, and another D of V. As there, `is_causal` is aligned to the first key."""
    if dropout_p != 0:
        raise StepError(f"dropout_p={dropout_p}: must be 0")
    if attn_mask is not None:
        raise StepError("attn_mask: must be None; attention_steps.attention() takes spans of keys")
    if query.dim() < 4:
        more = (None,) * (4 - query.dim())
        o = scaled_dot_product_attention(query[more], key[more], value[more], None, 0.0, is_causal, scale, enable_gqa)
        return o.reshape(query.shape[:-1] + value.shape[-1:])
    if query.shape[1] != key.shape[1] and not enable_gqa:
        raise StepError(f"key: has {key.shape[1]} heads, query {query.shape[1]}: with enable_gqa=True they may differ")
    n, n_kv = query.shape[2], key.shape[2]
    if is_causal and n > n_kv:  # later queries attend to all keys
        first = attention(query[:, :, :n_kv], key, value, causal=True, scale=scale)[0]
        return torch.cat([first, attention(query[:, :, n_kv:], key, value, scale=scale)[0]], 2)
    key, value = (x[:, :, :n] if is_causal else x for x in (key, value))  # later keys have no query
    return attention(query, key, value, causal=is_causal, scale=scale)[0]


# --- transformers -------------------------------------------------------------------------------------


def use_in_transformers(name: str = "steps") -> None:
    """Lets models of transformers be loaded with `attn_implementation="steps"`, for prefill and decode with a cache.
    Sequences of a batch must have one length: padding is refused."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(name, _for_transformers)
    AttentionMaskInterface.register(name, _mask_for_transformers)


def _mask_for_transformers(batch_size, q_length, kv_length, q_offset=0, mask_function=None, **more) -> Tensor | None:
    """What the layers of a pass get as their mask: the lengths of the cache for a few new tokens, the spans of more
    tokens in a cache of fixed size, or nothing."""
    from transformers import masking_utils

    if mask_function not in (None, masking_utils.causal_mask_function, masking_utils.bidirectional_mask_function):
        raise StepError("steps take only the causal mask of transformers, and none")
    if more.get("attention_mask") is not None and not bool(more["attention_mask"].all()):
        raise StepError("attention_mask: padding is not taken; pack the sequences, or run them one by one")
    # The length of a cache of fixed size may be known on the GPU alone.
    fixed, device = isinstance(q_offset, Tensor) or kv_length != q_offset + q_length, more.get("device")
    if mask_function is masking_utils.bidirectional_mask_function or not fixed and q_offset == 0:
        return None
    if q_length <= NEW_QUERIES:
        return torch.zeros(batch_size, dtype=torch.int32, device=device) + (q_offset + q_length)
    ends = torch.arange(1, q_length + 1, dtype=torch.int32, device=device) + q_offset
    return torch.stack([0 * ends, ends], -1).to(torch.int32)[None, None] if fixed else None


def _for_transformers(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **more):
    if dropout or more.get("softcap") or more.get("sliding_window"):
        raise StepError("steps take no dropout, softcap or sliding window of transformers")
    if attention_mask is not None and attention_mask.dtype != torch.int32:
        raise StepError("attention_mask: steps take no mask of four dimensions")
    if attention_mask is None or attention_mask.dim() == 4:
        causal = more.get("is_causal")
        causal = attention_mask is None and (getattr(module, "is_causal", True) if causal is None else causal)
        o = attention(query, key, value, causal=causal, spans=attention_mask, scale=scaling)[0]
    else:
        kept = _kept_schedule(query, key, attention_mask)
        o, _ = decode(query, key, value, attention_mask, scale=scaling, schedule=kept)
    return o.transpose(1, 2), None


def _kept_schedule(q: Tensor, k: Tensor, lengths: Tensor, step: str = "") -> Tensor | None:
    """That of the first layer; in compiled code each layer makes its own."""
    if is_compiling():
        return None
    kept, problem = lengths.__dict__.setdefault("schedules", {}), (q.shape, k.shape, q.dtype, step)
    if problem not in kept:
        kept[problem] = decode_schedule(q, k, lengths, step=step)
    return kept[problem]
