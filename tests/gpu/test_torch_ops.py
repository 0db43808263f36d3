"""Steps as operators of PyTorch. Where there is no GPU, the simulator runs what needs none.

Run it where PyTorch is: python3 -m pytest tests/gpu/test_torch_ops.py
"""

import argparse
import ctypes
import functools
import math
import random
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from common.python import attention_steps  # noqa: E402
from common.python.attention_steps import StepError, torch_ops  # noqa: E402
from common.python.attention_steps.library import DecodeTensors  # noqa: E402
from plots.tools import packed, train  # noqa: E402

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
NEEDS_GPU = pytest.mark.skipif(not GPU, reason="needs a GPU")
CALLS = 300 if GPU else 12
# Relative distances of right results, as tests/lib/gradients.py has them.
MOST = {torch.float16: 1.5e-3, torch.bfloat16: 1.2e-2}
OPERATOR = torch.ops.attention_steps.attention.default
BACKWARD = torch.ops.attention_steps.attention_backward.default
DECODE = torch.ops.attention_steps.decode.default


def reference(q, k, v, attended):
    """O in fp64, differentiable."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
    s = (q.double() @ k.transpose(-1, -2) * q.shape[3] ** -0.5).masked_fill(~attended, -torch.inf)
    return s.softmax(-1).nan_to_num() @ v


def distance(found, expected) -> float:
    return float((found.double() - expected).norm() / expected.norm().clamp(min=1e-30))


def draw(*shape: int, dtype=torch.float16, seed: int = 0, device: str = DEVICE):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(device, dtype)


def inputs(b=2, h=4, h_kv=2, n=70, n_kv=101, d=64, dtype=torch.float16):
    return (
        draw(b, h, n, d, dtype=dtype),
        draw(b, h_kv, n_kv, d, dtype=dtype, seed=1),
        draw(b, h_kv, n_kv, d, dtype=dtype, seed=2),
    )


def causal(n: int, n_kv: int):
    return torch.ones(n, n_kv, dtype=torch.bool, device=DEVICE).tril(n_kv - n)


def attended_by(spans, n_kv: int):
    place = torch.arange(n_kv, device=DEVICE)
    return (place >= spans[..., :1]) & (place < spans[..., 1:])


# --- Results --------------------------------------------------------------------------------------------


def as_view(x, kind: str):
    """The numbers of x in memory of another form."""
    if kind == "rows first":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if kind == "part of a packed tensor":
        return torch.stack([x, -x, x], 3).movedim(3, 0)[0]
    if kind == "every other row":
        return torch.stack([x, -x], 3).flatten(2, 3)[:, :, ::2]
    if kind == "odd address":
        return torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)
    if kind == "columns first":
        return x.transpose(2, 3).contiguous().transpose(2, 3)
    return x


VIEWS = ("compact", "rows first", "part of a packed tensor", "every other row", "odd address", "columns first")


def problem(number: int) -> dict:
    draw_from = random.Random(number)
    h_kv = draw_from.choice([1, 2, 3])
    spans = draw_from.random() < 0.2
    longest = 300 if GPU else 60
    return {
        "sizes": (
            draw_from.choice([1, 2]),
            h_kv * draw_from.choice([1, 1, 2, 4]),
            h_kv,
            draw_from.randint(1, longest),
            # With one key dQ and dK are 0 but for rounding, so that no distance is relative to them.
            max(2, draw_from.randint(1, longest)),
            draw_from.choice([64, 128] if spans else [16, 32, 40, 64, 64, 96, 128, 128, 200, 256]),
        ),
        "dtype": draw_from.choice(list(MOST)),
        "mask": "spans" if spans else draw_from.choice(["full", "causal"]),
        "views": [draw_from.choice(VIEWS) for _ in range(4)],
        "gradients": [draw_from.random() < 0.7 for _ in range(3)],
        "scale": draw_from.choice([None, None, 0.2]),
    }


def run(number: int) -> str:
    """Empty if O and all gradients that were asked for are right, or what is wrong with them."""
    p = problem(number)
    b, h, h_kv, n, n_kv, d = p["sizes"]
    wanted = [x.requires_grad_(asked) for x, asked in zip(inputs(*p["sizes"], p["dtype"]), p["gradients"], strict=True)]
    tensors = [as_view(x, kind) for x, kind in zip(wanted, p["views"], strict=False)]
    more = {}
    if p["mask"] == "spans":
        ends = torch.randint(0, n_kv + 1, (2, b, 1, n), generator=torch.Generator().manual_seed(number))
        more["spans"] = torch.stack([ends.amin(0), ends.amax(0)], -1).to(DEVICE, torch.int32)
        attended = attended_by(more["spans"], n_kv)
    else:
        more["causal"] = p["mask"] == "causal"
        attended = causal(n, n_kv) if more["causal"] else causal(n, n_kv) | True
    try:
        o, lse = attention_steps.attention(*tensors, scale=p["scale"], **more)
        expected = [x.detach().double().requires_grad_(x.requires_grad) for x in wanted]
        factor = 1 if p["scale"] is None else p["scale"] * d**0.5
        right = reference(expected[0] * factor, *expected[1:], attended)
        far = [("O", distance(o.detach(), right.detach()))]
        if any(p["gradients"]):
            d_o = as_view(draw(b, h, n, d, dtype=p["dtype"], seed=3), p["views"][3])
            o.backward(d_o)
            right.backward(d_o.double())
            far += [
                (name, distance(x.grad, y.grad))
                for name, x, y in zip("QKV", wanted, expected, strict=True)
                if x.requires_grad
            ]
    except StepError as refused:
        return f"refused: {refused}"
    too_far = [f"{name} {error:.2g}" for name, error in far if not error <= MOST[p["dtype"]]]
    return f"{number} {p}: {', '.join(too_far)}" if too_far else ""


def test_random_calls_are_right() -> None:
    """Against fp64: views, strides, grouped heads, masks, types, subsets of the gradients."""
    found = [run(number) for number in range(CALLS)]
    assert [text for text in found if text and not text.startswith("refused")] == []
    refused = [text for text in found if text.startswith("refused")]
    assert len(refused) <= CALLS // 10, refused


@pytest.mark.parametrize("n, n_kv", [(70, 70), (40, 70), (70, 40)])
def test_the_signature_of_pytorch(n: int, n_kv: int) -> None:
    q, k, v = inputs(n=n, n_kv=n_kv)
    for causally in (False, True):
        found = attention_steps.scaled_dot_product_attention(q, k, v, is_causal=causally, enable_gqa=True)
        own = [x.double() for x in (q, *(x.repeat_interleave(2, 1) for x in (k, v)))]
        expected = torch.nn.functional.scaled_dot_product_attention(*own, is_causal=causally)
        assert distance(found, expected) < MOST[torch.float16]
    flat = attention_steps.scaled_dot_product_attention(q[0, 0], k[0, 0], v[0, 0])
    whole = attention_steps.scaled_dot_product_attention(q[:1, :1], k[:1, :1], v[:1, :1])
    assert torch.equal(flat, whole[0, 0])


def test_documents_attend_to_themselves() -> None:
    spans = attention_steps.document_spans(torch.tensor([3, 1, 2], device=DEVICE), 6)
    assert spans.tolist() == [[[[0, 1], [0, 2], [0, 3], [3, 4], [4, 5], [4, 6]]]]
    both = attention_steps.document_spans(torch.tensor([2, 2], device=DEVICE), 4, causal=False)
    assert both.tolist() == [[[[0, 2], [0, 2], [2, 4], [2, 4]]]]
    rest = attention_steps.document_spans(torch.tensor([1, 1], device=DEVICE), 4, causal=False)
    assert rest.tolist() == [[[[0, 1], [1, 2], [2, 4], [2, 4]]]]
    cut = attention_steps.document_spans(torch.tensor([1, 5], device=DEVICE), 3)
    assert cut.tolist() == [[[[0, 1], [1, 2], [1, 3]]]]


def dense(tensors, q_len: int, kv_len: int):
    """The boolean mask of the five tensors of a block mask."""
    counts, indices, types, tile_indices, tiles = (x.cpu() for x in tensors)
    q_block, kv_block = tiles.shape[1:]
    batches, heads, q_blocks = counts.shape
    found = torch.zeros(batches, heads, q_blocks * q_block, -(-kv_len // kv_block) * kv_block, dtype=torch.bool)
    for b, h, row in np.ndindex(counts.shape):
        for slot in range(counts[b, h, row]):
            at, first_q, first_k = (b, h, row, slot), row * q_block, indices[b, h, row, slot] * kv_block
            block = tiles[tile_indices[at]] if types[at] == torch_ops.PARTIAL else types[at] == torch_ops.FULL
            found[b, h, first_q : first_q + q_block, first_k : first_k + kv_block] = block
    return found[..., :q_len, :kv_len].to(DEVICE)


def test_masks_of_flex_attention() -> None:
    """A rule that is no span of keys, and lengths that no block divides."""
    flex = pytest.importorskip("torch.nn.attention.flex_attention")

    def rule(b, h, q, k):
        return ((q >= k) & ((q - k) % 7 < 4)) | (k < 20 * (h + 1)) | (q > 500)

    n, n_kv = 700, 900
    blocks = attention_steps.blocks_of(flex.create_block_mask(rule, None, 4, n, n_kv, device=DEVICE, BLOCK_SIZE=128))
    place = torch.arange(n_kv, device=DEVICE)
    attended = rule(0, torch.arange(4, device=DEVICE)[:, None, None], place[:n, None], place)
    assert torch.equal(dense(blocks, n, n_kv)[0], attended) and {2, 3} <= {*blocks[2].unique().tolist()}
    q, k, v = inputs(n=n, n_kv=n_kv)
    found = attention_steps.attention(q, k, v, blocks=blocks)[0]
    assert distance(found, reference(q, k, v, attended)) < MOST[torch.float16]
    with pytest.raises(StepError, match="no backward step takes D = 64, fp16 and the masks full, causal, blocks"):
        attention_steps.attention(q.requires_grad_(), k, v, blocks=blocks)[0].sum().backward()


def test_refusals() -> None:
    q, k, v, lengths = *inputs(), small_cache()[3]
    for call, why in (
        (lambda: attention_steps.attention(q.float(), k.float(), v.float()), "must all be float16 or all bfloat16"),
        (lambda: attention_steps.attention(q[:, :3], k, v), "H must divide q's"),
        (lambda: attention_steps.scaled_dot_product_attention(q, k, v), "with enable_gqa=True they may differ"),
        (lambda: attention_steps.scaled_dot_product_attention(q, k, v, dropout_p=0.1), "dropout_p=0.1: must be 0"),
        (lambda: attention_steps.attention(q, k, v, step="99"), "there is none of this name"),
        (lambda: attention_steps.attention(q, k[:, :, :0], v[:, :, :0]), "dimension .*is 0"),
        (lambda: attention_steps.attention(q[:, :, :0], k, v), "dimension .*is 0"),
        (lambda: attention_steps.attention(q, k, v, scale=-1.0), "scale -1.*: must be positive"),
        (lambda: attention_steps.attention(q, k, v, blocks=[lengths] * 3), "blocks: has 3 tensors, must have the 5"),
        (lambda: attention_steps.attention(q, k[:, :0], v[:, :0]), "H must divide q's"),
        (lambda: attention_steps.attention(q, k.to("meta"), v.to("meta")), "all tensors must be on one device"),
        (lambda: attention_steps.attention(q, k, v, spans=lengths.to("meta")), "must be int32"),
        (lambda: attention_steps.scaled_dot_product_attention(q, q, q, causal(70, 70)), "attn_mask: must be None"),
    ):
        with pytest.raises(StepError, match=why):
            call()


def test_gradients_have_no_gradients() -> None:
    q, k, v = (x.requires_grad_() for x in inputs())
    (d_q,) = torch.autograd.grad(attention_steps.attention(q, k, v)[0].sum(), q, create_graph=True)
    with pytest.raises(StepError, match="its gradients have no gradients"):
        d_q.sum().backward()


# --- Decode ---------------------------------------------------------------------------------------------


def cache(number: int) -> tuple[list, dict, list, str]:
    """A random call of decode(): q, k, v and lengths; the other arguments; K and V in fp64; and what it is."""
    draw_from = random.Random(number)
    kind, d = draw_from.choice(["contiguous", "rows first", "pages", "view of pages"]), draw_from.choice([64, 128, 256])
    dtype, e4m3 = draw_from.choice([torch.float16, torch.bfloat16]), draw_from.random() < 0.3
    b, h_kv, n = draw_from.randint(1, 4), draw_from.choice([1, 2, 3]), draw_from.choice([1, 1, 1, 2, 5, 16])
    h = h_kv * draw_from.choice([1, 2, 4, 8, 16])
    longest = draw_from.randint(n, 2000 if GPU else 150)
    lengths = torch.tensor([draw_from.choice([longest, draw_from.randint(0, longest)]) for _ in range(b)])
    more = {"causal": draw_from.random() < 0.8, "scale": draw_from.choice([None, 0.2])}
    k, v = (draw(b, h_kv, longest, d, seed=number + i, dtype=dtype) for i in (1, 2))
    exact = [k.double(), v.double()]
    if e4m3:
        k, v = (x.to(torch.float8_e4m3fn) for x in (k, v))
        scales = [0.5 + torch.rand(b, h_kv, generator=torch.Generator().manual_seed(i)).to(DEVICE) for i in (1, 2)]
        more |= {"k_scales": scales[0], "v_scales": scales[1]}
        exact = [scale.double()[:, :, None, None] * x.double() for scale, x in zip(scales, (k, v), strict=True)]
    for b_, length in enumerate(lengths.tolist()):  # what comes after a length is not read
        for x in (k, v):
            x[b_, :, length:].view(torch.uint8).fill_(0x7F)  # NaN
    if kind == "rows first":
        k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v))
    elif kind != "contiguous":
        size = draw_from.choice([16, 32, 64, 128, 256])
        count = -(-longest // size)
        order = torch.randperm(b * count, generator=torch.Generator().manual_seed(number))
        more["page_table"] = order.view(b, count).to(DEVICE, torch.int32)
        pages = []
        for x in (k, v):
            whole = torch.zeros(b, h_kv, count * size, d, dtype=dtype, device=DEVICE).to(x.dtype)
            whole[:, :, :longest] = x
            made = torch.empty_like(whole.view(b * count, size, h_kv, d))
            made[order.to(DEVICE)] = whole.view(b, h_kv, count, size, d).permute(0, 2, 3, 1, 4).flatten(0, 1)
            pages.append(made)
        k, v = torch.stack(pages, 1).unbind(1) if kind == "view of pages" else pages
    q = as_view(draw(b, h, n, d, dtype=dtype, seed=number), draw_from.choice(VIEWS))
    what = (
        f"{number} {kind} {dtype} e4m3={e4m3} B={b} heads {h}/{h_kv} Nq={n} D={d} lengths {lengths.tolist()} {[*more]}"
    )
    return [q, k, v, lengths.to(DEVICE, torch.int32)], more, exact, what


def decoded(q, k, v, lengths, more: dict):
    """O in fp64 of K and V [B, Hkv, longest, D]."""
    key = torch.arange(k.shape[2], device=DEVICE)
    ends = lengths[:, None]
    if more["causal"]:
        ends = ends - q.shape[2] + 1 + torch.arange(q.shape[2], device=DEVICE)
    attended = (key < ends[..., None])[:, None].expand(-1, -1, q.shape[2], -1)
    factor = 1 if more["scale"] is None else more["scale"] * q.shape[3] ** 0.5
    return reference(q.double() * factor, k, v, attended)


def test_random_decode_calls_are_right() -> None:
    """Views, pages, caches in e4m3, lengths that differ, several new tokens; with a schedule and without."""
    found = []
    for number in range(CALLS // 3):
        tensors, more, exact, what = cache(number)
        o, lse = attention_steps.decode(*tensors, **more)
        expected = decoded(tensors[0], *exact, tensors[3], more)
        if not distance(o, expected) <= MOST[o.dtype]:
            found.append(f"{what}: {distance(o, expected):.2g}")
        of_lengths = {name: more[name] for name in ("page_table", "causal") if name in more}
        schedule = attention_steps.decode_schedule(tensors[0], tensors[1], tensors[3], **of_lengths)
        again = [attention_steps.decode(*tensors, **more, schedule=schedule) for _ in range(2)]
        if not all(torch.equal(o, x) and torch.equal(lse, y) for x, y in again):
            found.append(f"{what}: other bits with a schedule")
    assert not found, "\n".join(found)


def test_which_decode_step_is_called() -> None:
    """On Hopper one for every cache; and one line where there is none."""
    names = {torch_ops.fastest("decode", 128, kv, torch_ops.DECODE, 90) for kv in ("fp16", "bf16", "e4m3")}
    assert len(names) == 1
    with pytest.raises(StepError, match="no decode step takes D = 80, fp16"):
        torch_ops.fastest("decode", 80, "fp16", torch_ops.DECODE, 90)


def small_cache() -> tuple:
    """q, k, v and lengths."""
    q, k, v = inputs(n=2)
    return q, k, v, torch.tensor([101, 40], dtype=torch.int32, device=DEVICE)


def test_what_decode_refuses() -> None:
    q, k, v, lengths = small_cache()
    byte, pages = k.to(torch.float8_e4m3fn), k.transpose(1, 2)[:, :64]
    for call, why in (
        (lambda: attention_steps.decode(q, k, v, lengths.long()), r"lengths: torch.int64 \[2\], must be"),
        (lambda: attention_steps.decode(q.repeat(1, 1, 9, 1), k, v, lengths), "18 rows, must have"),
        (lambda: attention_steps.decode(q, byte, byte, lengths), "must be given with a cache in e4m3"),
        (lambda: attention_steps.decode(q, k[:1], v[:1], lengths), "longest, D], or pages of 16"),
        (lambda: attention_steps.decode(q, k, v, lengths, scale=0.0), "scale 0.*: must be positive"),
        (lambda: attention_steps.decode(q, k[:, :0], v[:, :0], lengths), "1 to 16 times 0 heads"),
        (lambda: attention_steps.decode(q, k, v.to("meta"), lengths), "all tensors must be on one device"),
        (lambda: attention_steps.decode(q, pages, pages, lengths, page_table=lengths), "page_table: torch.int32"),
        (lambda: attention_steps.decode(q.requires_grad_(), k, v, lengths), "decode has no gradient"),
    ):
        with pytest.raises(StepError, match=why):
            call()


# --- What PyTorch asks of an operator -------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["rows first", "part of a packed tensor"])
def test_opcheck(kind: str) -> None:
    q, k, v = (as_view(x, kind).detach().requires_grad_() for x in inputs())
    spans = torch.stack([torch.zeros(70), torch.arange(70)], -1).to(DEVICE, torch.int32)[None, None]
    for mask in ([], [spans]):
        torch.library.opcheck(OPERATOR, (q, k, v, mask, not mask, 0.125, "", ""))
        o, lse = (x.detach() for x in OPERATOR(q, k, v, mask, not mask, 0.125, "", ""))
        tensors = (o, q.detach(), k.detach(), v.detach(), o, lse)
        torch.library.opcheck(BACKWARD, (*tensors, mask, not mask, 0.125, ""))


def test_opcheck_of_decode() -> None:
    torch.library.opcheck(DECODE, (*small_cache(), None, [], True, 0.125, "", None))


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=NEEDS_GPU)])
def test_compiled_without_a_graph_break(backend: str) -> None:
    def layer(q, k, v):
        return attention_steps.scaled_dot_product_attention(2 * q, k, v, is_causal=True, enable_gqa=True).sin()

    results = []
    for function in (layer, torch.compile(layer, fullgraph=True, backend=backend)):
        tensors = [x.requires_grad_() for x in inputs(n=70, n_kv=70)]
        function(*tensors).float().sum().backward()
        results.append([x.grad for x in tensors])
    assert max(distance(x, y.double()) for x, y in zip(*results, strict=True)) < MOST[torch.float16]


def test_views_are_read_where_they_are() -> None:
    x = draw(2, 4, 70, 64)
    for kind in VIEWS:
        view = as_view(x, kind)
        copied = kind in ("odd address", "columns first")
        assert (torch_ops._compact(view).data_ptr() != view.data_ptr()) == copied, kind
        assert torch.equal(torch_ops._compact(view), x)
        gradient = torch_ops._for_gradient(view, torch_ops._keeps_gaps)
        assert (gradient.stride() == view.stride()) == (kind != "columns first"), kind


def test_gradients_of_views_that_overlap_or_have_large_gaps() -> None:
    """Memory with their strides would be written twice, or be mostly gaps."""
    x = draw(2, 2, 50, 320).requires_grad_()
    for view in (x[0].flatten().as_strided((2, 2, 40, 64), (6400, 3200, 32, 1)), x[..., 40:][..., :64]):
        assert torch_ops._for_gradient(view, torch_ops._keeps_gaps).stride() != view.stride()
        copy = view.detach().clone().requires_grad_()
        found, right = (torch.autograd.grad(attention_steps.attention(y, y, y)[0].sum(), y)[0] for y in (view, copy))
        assert distance(found, right.double()) < MOST[torch.float16]


# --- On a GPU -------------------------------------------------------------------------------------------


@NEEDS_GPU
def test_the_current_stream() -> None:
    """The inputs are written late in a stream of their own: a pass in another stream would read zeros."""
    q, k, v = inputs()
    expected = attention_steps.attention(q, k, v, causal=True)[0]
    late, stream = [torch.zeros_like(x) for x in (q, k, v)], torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        for x, y in zip(late, (q, k, v), strict=True):
            x.copy_(y)
        found = attention_steps.attention(*late, causal=True)[0]
    stream.synchronize()
    assert torch.equal(found, expected)


@NEEDS_GPU
@pytest.mark.parametrize("masked", [False, True])
def test_a_cuda_graph(masked: bool) -> None:
    """Forward and backward pass, captured once and replayed with other numbers."""
    torch.use_deterministic_algorithms(not masked)  # the same bits, where a step gives them
    try:
        tensors = [x.requires_grad_() for x in inputs(n=300, n_kv=300, d=128)]
        spans = attention_steps.document_spans(torch.tensor([100, 200], device=DEVICE), 300) if masked else None

        def step() -> list:
            o = attention_steps.attention(*tensors, causal=not masked, spans=spans)[0]
            return [o, *torch.autograd.grad(o, tensors, torch.ones_like(o))]

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = step()
        for seed in (5, 6):
            with torch.no_grad():
                for x in tensors:
                    x.copy_(draw(*x.shape, seed=seed))
            graph.replay()
            torch.cuda.synchronize()
            replayed = [x.clone() for x in captured]
            expected = step()
            assert torch.equal(replayed[0], expected[0])
            far = max(distance(x, y.double()) for x, y in zip(replayed, expected, strict=True))
            assert far <= (MOST[torch.float16] if masked else 0)
    finally:
        torch.use_deterministic_algorithms(False)


@NEEDS_GPU
@pytest.mark.parametrize("scheduled", [False, True])
def test_a_cuda_graph_of_decode(scheduled: bool) -> None:
    """Captured once, and replayed when the cache is longer, by the schedule that the graph makes."""
    q, k, v, lengths = small_cache()

    def layers() -> list:
        schedule = attention_steps.decode_schedule(q, k, lengths) if scheduled else None
        return [attention_steps.decode(q + i, k, v, lengths, schedule=schedule)[0] for i in range(3)]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        layers()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = layers()
    for longer in ([101, 40], [3, 101], [77, 2]):
        lengths.copy_(torch.tensor(longer, dtype=torch.int32))
        for _ in range(2):
            graph.replay()
        assert all(torch.equal(x, y) for x, y in zip(captured, layers(), strict=True))


@NEEDS_GPU
def test_two_streams_at_once() -> None:
    """Steps whose blocks take tiles from a counter need one for each stream."""
    q, k, v = inputs(b=8, n=2000, n_kv=2000, d=128)
    expected = attention_steps.attention(q, k, v)[0]
    torch.cuda.synchronize()
    found, streams = [], [torch.cuda.Stream() for _ in range(4)]
    for _ in range(5):
        for stream in streams:
            with torch.cuda.stream(stream):
                found.append(attention_steps.attention(q, k, v)[0])
    torch.cuda.synchronize()
    assert all(torch.equal(o, expected) for o in found)


def host_us(call, repeats: int = 300) -> float:
    """Microseconds that a call takes on the host: the least of several rounds, each enqueued on an idle GPU."""
    best = math.inf
    for _ in range(7):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        best = min(best, time.perf_counter() - start)
    return 1e6 * best / repeats


@NEEDS_GPU
def test_host_time_of_a_call() -> None:
    """At most 25 us more than the call of the library with everything at hand."""
    q, k, v = inputs(b=1, h=1, h_kv=1, n=64, n_kv=64)
    o, lse = attention_steps.attention(q, k, v)
    plan = torch_ops._plan_of("forward", "", q, k, v, [], (False, 0.125))
    workspace = torch.zeros(max(plan.workspace, 1), dtype=torch.uint8, device=DEVICE)
    addresses = [x.data_ptr() for x in (workspace, q, k, v, o, lse)]
    function, c, stream = plan.library.library.step_forward, plan.c, torch.cuda.current_stream().cuda_stream

    def direct() -> None:
        assert function(c, None, None, addresses[0], plan.workspace, *addresses[1:], stream, None, None, None) is None

    wanted = [x.requires_grad_() for x in inputs(b=1, h=1, h_kv=1, n=64, n_kv=64)]
    times = {
        "library": host_us(direct),
        "attention()": host_us(lambda: attention_steps.attention(q, k, v)),
        "with autograd": host_us(lambda: attention_steps.attention(*wanted)),
        "and backward": host_us(lambda: torch.autograd.grad(attention_steps.attention(*wanted)[0], wanted, o)),
        "by torch.ops": host_us(lambda: OPERATOR(q, k, v, [], False, 0.125, "", "")),
        "PyTorch's": host_us(lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v)),
        "PyTorch's with autograd": host_us(lambda: torch.nn.functional.scaled_dot_product_attention(*wanted)),
        "PyTorch's and backward": host_us(
            lambda: torch.autograd.grad(torch.nn.functional.scaled_dot_product_attention(*wanted), wanted, o)
        ),
    }
    print("\nhost us:", ", ".join(f"{what} {us:.1f}" for what, us in times.items()))
    assert max(times["attention()"], times["by torch.ops"]) - times["library"] <= 25


@NEEDS_GPU
def test_host_time_of_decode() -> None:
    """Likewise, with a schedule."""
    q, k, v, lengths = small_cache()
    o, lse = attention_steps.decode(q, k, v, lengths)
    schedule = attention_steps.decode_schedule(q, k, lengths)
    plan, _ = torch_ops._decode_plan(q, k, v, None, True, 0.125, "")
    kept = schedule.data_ptr(), schedule.data_ptr() + plan.workspace
    cache = q.data_ptr(), k.data_ptr(), v.data_ptr(), lengths.data_ptr(), None, 0, None, None
    tensors = ctypes.byref(DecodeTensors(*cache, o.data_ptr(), lse.data_ptr(), *kept))
    function, stream = plan.library.library.step_decode, torch.cuda.current_stream().cuda_stream

    def direct() -> None:
        assert function(plan.c, 0, tensors, stream) is None

    times = {
        "library": host_us(direct),
        "by torch.ops": host_us(lambda: DECODE(q, k, v, lengths, None, [], True, 0.125, "", schedule)),
        "decode()": host_us(lambda: attention_steps.decode(q, k, v, lengths, schedule=schedule)),
        "without a schedule": host_us(lambda: attention_steps.decode(q, k, v, lengths)),
    }
    print("\nhost us of decode:", ", ".join(f"{what} {us:.1f}" for what, us in times.items()))
    assert max(times["decode()"], times["by torch.ops"]) - times["library"] <= 25


def settings(**changed) -> argparse.Namespace:
    """Of a small model and a short training."""
    return argparse.Namespace(
        **{"iterations": 20, "length": 64, "batch": 1, "layers": 1, "width": 128, "seed": 1, "eager": True} | changed
    )


@pytest.mark.parametrize("eager", [True, pytest.param(False, marks=NEEDS_GPU)])
def test_a_model_learns_the_same(eager: bool) -> None:
    """The training script, with the attention of the steps and with PyTorch's, eager and as a CUDA graph."""
    text = torch.tensor(list(b"In the beginning was the word, and it was read by bytes. " * 20), device=DEVICE)
    runs = {name: train.Run(name, text, settings(eager=eager)) for name in ("steps", "math")}
    assert all(seconds > 0 for seconds in train.in_turns(runs, 20).values())
    own, expected = (run.loss(2) for run in runs.values())
    assert expected < 4.5 and abs(own - expected) < 0.01


def test_packed_documents_learn_the_same() -> None:
    """Documents that are packed, with spans, and padded, without: the same loss, from the same weights."""
    text = b"".join(b"%d:1 verse\n%d:2 verses of chapter %d\n" % (3 * (n,)) for n in range(30)) + b"a line\n"
    assert packed.documents_of(text, 20)[-2:] == [b"29:1 verse\n29:2 verse", b"a line\n"]
    text = torch.tensor(list(text), device=DEVICE)
    runs = [packed.Documents(kind, text, settings(length=96)) for kind in ("packed", "padded math")]
    for run in runs:
        train.seconds(run, 8)
    assert runs[0].tokens == runs[1].tokens and max(runs[0].tokens) > 64
    own, expected = (torch.stack(run.losses).tolist() for run in runs)
    assert max(abs(x - y) for x, y in zip(own, expected, strict=True)) < 0.02 and own[-1] < own[0] - 0.3


@functools.cache
def transformers():
    return pytest.importorskip("transformers")


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_a_model_of_transformers(cache: str) -> None:
    """Random weights: prefill, and more tokens with the cache, as with PyTorch's attention."""
    attention_steps.use_in_transformers()
    config = transformers().LlamaConfig(
        vocab_size=50, hidden_size=128, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    tokens = torch.randint(0, 50, (2, 30), device=DEVICE)
    logits, state = [], None
    for implementation in ("sdpa", "steps"):
        model = transformers().LlamaForCausalLM._from_config(config, attn_implementation=implementation)
        state = state or {name: 0.2 * torch.randn_like(x) for name, x in model.state_dict().items()}
        model.load_state_dict(state)
        model = model.to(DEVICE, torch.float16).eval()
        kept = transformers().DynamicCache() if cache == "dynamic" else transformers().StaticCache(config, 40)
        with torch.no_grad():
            parts = tokens.split([20, 3, 1, 1, 5], 1)
            logits.append(torch.cat([model(x, past_key_values=kept, use_cache=True).logits for x in parts], 1))
    assert distance(logits[1], logits[0].double()) < 10 * MOST[torch.float16]
    with torch.no_grad(), pytest.raises(StepError, match="padding is not taken"):
        model(tokens, attention_mask=torch.ones_like(tokens).index_fill(1, torch.tensor([0], device=DEVICE), 0))
    packed = torch.arange(30, device=DEVICE).remainder(15)[None].expand(2, -1)
    with torch.no_grad(), pytest.raises(StepError, match="only the causal mask"):
        model(tokens, position_ids=packed, use_cache=False)
