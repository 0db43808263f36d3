"""Masks of one span of keys for each query, in the backward steps that take them."""

from dataclasses import replace

import numpy as np
import pytest

from tests.lib import masks
from tests.lib.gradients import MOST, distances, draw, gradients, solve, write
from tests.lib.problem import Problem
from tests.lib.programs import USAGE, Program, read_records

PROBLEMS = [
    Problem(heads=2, seqlen=200, seqlen_kv=330, mask="window:70"),
    Problem(heads=4, kv_heads=2, seqlen=300, seqlen_kv=300, mask="document:1,130,169", dtype="bf16", layout="bnhd"),
    Problem(heads=3, kv_heads=1, seqlen=330, seqlen_kv=200, head_dim=128, mask="prefix:60"),
    Problem(seqlen=270, seqlen_kv=400, head_dim=128, mask="interleaved:3", dtype="bf16"),
    Problem(seqlen=130, seqlen_kv=130, mask="empty"),
]


def options(p: Problem) -> list:
    return ["--mask", p.mask, "--dtype", p.dtype, "--layout", p.layout, "--scale", p.scale_used()]


@pytest.fixture
def span_step(step: Program) -> Program:
    if "spans" not in step.facts["masks"]:
        pytest.skip("full and causal only")
    return step


def random_spans(p: Problem, seed: int) -> np.ndarray:
    """Another mask for each head of each batch entry; one query in five attends to no key, and some heads have
    tiles of queries without any."""
    rng = np.random.default_rng(seed)
    shape = p.batch, p.heads, p.seqlen, 1
    first, end = np.sort(rng.integers(0, p.seqlen_kv + 1, (2, *shape)), axis=0)
    q, k, head = np.arange(p.seqlen)[:, None], np.arange(p.seqlen_kv), np.arange(p.heads)[:, None, None]
    some = (rng.random(shape) > 0.2) & ((head % 2 == 0) | (q < 40) | (q > 200))
    return (first <= k) & (k < end) & some


@pytest.mark.parametrize("p", PROBLEMS, ids=str)
def test_gradients_are_those_of_numpy(span_step: Program, p: Problem, tmp_path) -> None:
    tensors = draw(p, 1)
    found, record = solve(span_step, tmp_path, "--input", write(tmp_path / "in", tensors), *options(p))
    assert max(distances(found, gradients(p, *tensors))) < MOST[p.dtype]
    attended = masks.preset(p)
    assert not found[0][:, :, ~attended.any(1)].any()
    assert not any(x[:, :, ~attended.any(0)].any() for x in found[1:])
    assert record["flops"] == 10 * p.head_dim * p.batch * p.heads * attended.sum()
    assert record["mask_form"] == "row spans"


@pytest.mark.parametrize("head_dim", [64, 128])
def test_each_head_may_have_a_mask_of_its_own(span_step: Program, head_dim: int, tmp_path) -> None:
    p = Problem(batch=2, heads=4, kv_heads=2, seqlen=270, seqlen_kv=330, head_dim=head_dim)
    tensors, attended = draw(p, 3), random_spans(p, 4)
    np.save(tmp_path / "mask.npy", attended)
    p = replace(p, mask=str(tmp_path / "mask.npy"))
    found, _ = solve(span_step, tmp_path, "--input", write(tmp_path / "in", tensors), *options(p))
    assert max(distances(found, gradients(p, *tensors, attended))) < MOST[p.dtype]


def test_other_masks_are_refused(span_step: Program) -> None:
    done = span_step.run("--mask", "random:0.5")
    assert done.returncode == USAGE and "at most one span of keys for each query" in done.stderr


@pytest.mark.cpu_only("the lab is part of the CPU backend")
@pytest.mark.parametrize("mask", ["full", "causal", "window:100", "document:3", "prefix:150", "a file"])
def test_only_tiles_with_an_unmasked_entry_are_visited(span_step: Program, mask: str, tmp_path) -> None:
    """TMA loads K and V in two boxes for each block of keys; for each tile of queries Q, dO, LSE and D, and spans
    if some element has to be masked. The file has queries that attend to nothing between two others."""
    p = Problem(heads=2, seqlen=700, seqlen_kv=600, mask=mask)
    attended = masks.preset(p) if mask != "a file" else np.zeros((p.seqlen, p.seqlen_kv), bool)
    if mask == "a file":
        attended[::3, :130] = attended[301:400:3, 250:] = attended[5, 130:] = True
        np.save(tmp_path / "mask.npy", attended)
        p = replace(p, mask=str(tmp_path / "mask.npy"))
    path = tmp_path / "record.json"
    span_step.run_right(*p.options(), "--report", "--json", path)
    (record,) = read_records(path)
    keys, queries = record["block_n"], record["block_m"]
    loads = 4 * -(-p.seqlen_kv // keys)
    for first_key in range(0, p.seqlen_kv, keys):
        for first_q in range(0, p.seqlen, queries):
            tile = attended[first_q : first_q + queries, first_key : first_key + keys]
            rows = tile[attended[first_q : first_q + queries].any(1)]  # P of others is 0 whatever the mask
            whole = tile.shape[1] == keys and rows.all()
            loads += tile.any() * (4 + (not whole))
    assert record["lab_tensor_load_requests"] == p.heads * loads
