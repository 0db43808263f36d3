"""Block masks: every preset, and masks from files, against NumPy."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.lib import masks
from tests.lib.generators import rounded_inputs
from tests.lib.kinds import MASK_STEPS
from tests.lib.pairwise import pairwise
from tests.lib.problem import Problem
from tests.lib.programs import PAIRWISE_SEED, Program, Result, write_inputs
from tests.lib.reference import attention, mistakes
from tests.lib.steps import source_of

MASK_STEP = Program(MASK_STEPS[0])
# The step that it builds on, and the one before that: they have its arithmetic.
BEFORE = (source_of(source_of(MASK_STEP.name).after).after, source_of(MASK_STEP.name).after)

# How Nkv depends on Nq. With "half" the first queries come before the first key.
KV_LENGTHS = {"equal": lambda n: n, "longer": lambda n: n + 45, "half": lambda n: (n + 1) // 2}
HEADS = {"one": (1, 1, 1), "grouped": (1, 4, 2), "multi-query": (2, 2, 1)}
BLOCKS = [(64, 64), (128, 128), (64, 128), (256, 64), (128, 256)]


def preset_text(mask: str, kv_len: int) -> str:
    """The masks below with an argument that depends on the length: a percentage of it."""
    name, _, shares = mask.partition("%")
    if not shares:
        return mask
    lengths = [kv_len * int(share) // 100 for share in shares.split(",")]
    if name == "prefix:":
        return f"prefix:{lengths[0]}"
    ends = sorted({length for length in lengths if 0 < length < kv_len} | {kv_len})
    return "document:" + (",".join(map(str, np.diff([0, *ends]))) if len(ends) > 1 else "1")


PRESETS = [
    "full",
    "causal",
    "empty",
    "window:1",
    "window:65",
    "window:2147483647",
    "prefix:0",
    "prefix:%40",
    "prefix:%100",
    "document:1",
    "document:%7,50,51",
    "dilated:1",
    "dilated:3",
    "dilated:2147483647",
    "interleaved:1",
    "interleaved:12",
    "blocks:0.4",
    "blocks:1",
    "random:0.02",
    "random:0.5",
    "random:0",
]
COMBINATIONS = pairwise(
    {
        "mask": PRESETS,
        "seqlen": [1, 63, 129, 200, 270],
        "kv": list(KV_LENGTHS),
        "block": BLOCKS,
        "dtype": ["fp16", "bf16"],
        "head_dim": [32, 64, 96, 128, 256],
        "heads": list(HEADS),
        "scale": [None, 0.2],
    },
    seed=PAIRWISE_SEED,
)


def one_in_three(rows: list[dict]) -> list[dict]:
    """Of the problems with each preset."""
    return [row for mask in PRESETS for row in [r for r in rows if r["mask"] == mask][::3]]


def problem_of(row: dict) -> Problem:
    batch, heads, kv_heads = HEADS[row["heads"]]
    kv_len = KV_LENGTHS[row["kv"]](row["seqlen"])
    return Problem(
        batch,
        heads,
        kv_heads,
        row["seqlen"],
        kv_len,
        row["head_dim"],
        row["dtype"],
        preset_text(row["mask"], kv_len),
        scale=row["scale"],
        mask_block=row["block"],
        seed=7,
    )


def assert_right(p: Problem, result: Result, attended: np.ndarray) -> None:
    found = mistakes(attention(p, *rounded_inputs(p), attended), result.o, result.lse)
    assert found == [], f"{' '.join(p.options())}\n{found}"


def counts_of(m: masks.BlockMask, heads: int) -> dict:
    """The JSON fields of a canonical mask."""
    kv_blocks = {"full": masks.FULL, "causal": masks.CAUSAL, "partial": masks.PARTIAL}
    counts = {f"mask_blocks_{name}": int((m.types == kind).sum()) for name, kind in kv_blocks.items()}
    return {**counts, "mask_blocks_active": int(m.counts.sum()), "heads": heads}


def assert_counts(p: Problem, record: dict, dense: np.ndarray) -> None:
    """`dense` has as many heads and batch entries as there are different masks."""
    block = p.mask_block
    expected = counts_of(masks.from_dense(dense, block), p.heads)
    assert {name: record[name] for name in expected} == expected, p.options()
    q_blocks, kv_blocks = -(-p.seqlen // block[0]), -(-p.seqlen_kv // block[1])
    assert (record["mask_block_q"], record["mask_block_kv"]) == block
    assert record["mask_blocks"] == dense.shape[0] * dense.shape[1] * q_blocks * kv_blocks
    shape = (p.batch, p.heads, p.seqlen, p.seqlen_kv)
    assert record["flops"] == 4 * p.head_dim * int(np.broadcast_to(dense, shape).sum())


# Those between the first and the last have the tile lists of the first.
@pytest.mark.parametrize(
    "mask_step",
    [pytest.param(name, marks=pytest.mark.exhaustive if name in MASK_STEPS[1:-1] else ()) for name in MASK_STEPS],
    indirect=True,
)
@pytest.mark.parametrize(
    "rows",
    [one_in_three(COMBINATIONS), pytest.param(COMBINATIONS, marks=pytest.mark.exhaustive)],
    ids=["some pairs", "all pairs"],
)
def test_every_preset(mask_step: Program, tmp_path: Path, rows: list[dict]) -> None:
    """O, LSE and the JSON record; make test-all has every pair of values of the parameters above."""
    problems = [problem_of(row) for row in rows]
    solved = mask_step.solve_all(tmp_path / "out", [p.options() for p in problems])
    for p, (result, record) in zip(problems, solved, strict=True):
        dense = masks.preset(p)
        assert_right(p, result, dense)
        assert_counts(p, record, dense[None, None])
        assert record["mask"] == p.mask


def test_presets_give_the_canonical_block_mask(tmp_path: Path) -> None:
    """--save-mask writes the same five tensors as NumPy computes from the dense mask."""
    problems = [replace(problem_of(row), batch=1, heads=1, kv_heads=1, head_dim=32) for row in COMBINATIONS]
    lines = [[*p.options(), "--save-mask", tmp_path / f"mask{i}"] for i, p in enumerate(problems)]
    MASK_STEP.solve_all(tmp_path / "out", lines, check="none")
    for i, p in enumerate(problems):
        expected = masks.from_dense(masks.preset(p)[None, None], p.mask_block)
        assert masks.read(tmp_path / f"mask{i}").same_as(expected), p.options()


# --- Masks from directories -----------------------------------------------------------------------

NASTY = pairwise(
    {
        "seqlen": [65, 129, 270],
        "kv": list(KV_LENGTHS),
        "block": BLOCKS,
        "dtype": ["fp16", "bf16"],
        "head_dim": [32, 64, 128, 256],
        "masks": [(1, 1), (2, 1), (1, 4), (2, 4)],
        "scale": [None, 0.2],
        "seed": [1, 2],
    },
    seed=PAIRWISE_SEED,
)


@pytest.mark.parametrize(
    "rows", [NASTY[::3], pytest.param(NASTY, marks=pytest.mark.exhaustive)], ids=["some pairs", "all pairs"]
)
def test_random_block_masks(mask_step: Program, tmp_path: Path, rows: list[dict]) -> None:
    """Shuffled slots, MASKED slots, poison in elements that must not be read, shared dimensions."""
    problems, dense_masks = [], []
    for i, row in enumerate(rows):
        rng = np.random.default_rng([PAIRWISE_SEED, i])
        p = replace(problem_of({**row, "heads": "grouped", "mask": "full"}), batch=row["masks"][0])
        dense = masks.random_blocks(rng, (*row["masks"], p.seqlen, p.seqlen_kv), p.mask_block)
        m = masks.with_bits_past_the_end(masks.from_dense(dense, p.mask_block), p.seqlen, p.seqlen_kv)
        m = masks.with_fewest_copies(masks.disordered(m, rng))
        assert (masks.to_dense(m, p.seqlen, p.seqlen_kv) == dense).all()
        m.write(tmp_path / f"mask{i}")
        # The block size is that of the tiles, if there are tiles.
        problems.append(replace(p, mask=str(tmp_path / f"mask{i}")))
        dense_masks.append(dense)
    solved = mask_step.solve_all(tmp_path / "out", [p.options() for p in problems])
    for p, dense, (result, record) in zip(problems, dense_masks, solved, strict=True):
        assert_right(p, result, dense)
        assert_counts(p, record, dense)


def test_each_tensor_broadcasts_by_itself(mask_step: Program, tmp_path: Path) -> None:
    """Two batch entries and four heads share any of the four tensors but have their own tiles."""
    p = Problem(2, 4, 2, 130, 190, mask_block=(64, 64))
    rng = np.random.default_rng(PAIRWISE_SEED)
    dense = rng.random((2, 4, 130, 190)) < 0.3
    whole = masks.from_dense(dense, (64, 64))
    assert (whole.types == masks.PARTIAL).all()
    fewest = masks.with_fewest_copies(whole)
    assert [t.shape[:2] for t in fewest.tensors()[:4]] == [(1, 1)] * 3 + [(2, 4)]
    fields = ("counts", "indices", "types", "tile_indices")
    variants = [whole, fewest]
    variants += [replace(whole, **{name: getattr(fewest, name)}) for name in fields[:3]]
    half = {name: getattr(whole, name)[:1] for name in fields[:3]}
    variants += [replace(whole, **half), replace(fewest, types=whole.types[:, :1])]
    lines = [[*replace(p, mask=str(m.write(tmp_path / f"mask{i}"))).options()] for i, m in enumerate(variants)]
    results = [result for result, _ in mask_step.solve_all(tmp_path / "out", lines)]
    assert_right(p, results[0], dense)
    assert all(result.same_bits(results[0]) for result in results[1:])


def test_order_of_slots_changes_rounding_only(mask_step: Program, tmp_path: Path) -> None:
    p = Problem(1, 2, 2, 200, 450, mask_block=(64, 64), mask="interleaved:3")
    dense = masks.preset(p)
    ordered = masks.from_dense(dense[None, None], p.mask_block)
    lines = []
    for i in range(8):
        m = masks.disordered(ordered, np.random.default_rng(i))
        lines.append(replace(p, mask=str(m.write(tmp_path / f"mask{i}"))).options())
    for result, _ in mask_step.solve_all(tmp_path / "out", lines):
        assert_right(p, result, dense)


@pytest.mark.parametrize("head_dim", [64, 128])
def test_first_block_masked_and_rows_with_nothing(mask_step: Program, tmp_path: Path, head_dim: int) -> None:
    """A tile in which some rows attend nothing, followed by tiles that they attend; and rows that
    attend nothing at all: O = 0 and LSE = -inf."""
    dense = np.ones((192, 256), bool)
    dense[:, :64] = False  # the first block is masked
    dense[1::2, :128] = False  # half of the rows attend their first key later than the others
    dense[5] = dense[64:80] = dense[190] = False
    p = Problem(1, 2, 1, 192, 256, head_dim, mask_block=(64, 64))
    np.save(tmp_path / "mask.npy", dense)
    p = replace(p, mask=str(tmp_path / "mask.npy"))
    result, _ = mask_step.solve(tmp_path / "out", *p.options())
    assert_right(p, result, dense)
    empty = ~dense.any(axis=1)
    assert (result.o[:, :, empty] == 0).all() and (result.lse[:, :, empty] == -np.inf).all()


def rows_of_low_scores(directory: Path) -> None:
    """All scores are -128, so exp() of one without a maximum is 0. With documents, tiles of keys of
    those before come first."""
    q = np.ones((1, 1, 400, 64), np.float32)
    v = np.random.default_rng(1).standard_normal(q.shape)
    write_inputs(directory, q, -16 * q, v)


def test_low_scores_after_tiles_that_a_row_does_not_attend(mask_step: Program, tmp_path: Path) -> None:
    rows_of_low_scores(tmp_path)
    for block in ([], ["--mask-block", "64x64"]):
        mask_step.run_right("-i", tmp_path, "-m", "document:3", "--check", "all", *block)


def test_masked_slots_cost_nothing(mask_step: Program, tmp_path: Path) -> None:
    """The same bits with any number of MASKED slots anywhere. Where the CPU backend counts: the
    same number of barriers, copies and mma."""
    p = Problem(1, 2, 2, 300, 300, mask_block=(64, 64), mask="window:90")
    m = masks.from_dense(masks.preset(p)[None, None], p.mask_block)
    rows = [
        [(m.indices[at][i], m.types[at][i], m.tile_indices[at][i]) for i in range(count)]
        for at, count in np.ndenumerate(m.counts)
    ]
    hole = (masks.POISON, masks.MASKED, masks.POISON)
    sparse_rows = {
        "before": [[hole] * 40 + row for row in rows],
        "between": [[x for slot in row for x in (slot, hole)] for row in rows],
    }
    lines = [p.options()]
    for name, slots in sparse_rows.items():
        sparse = masks.from_slots(slots, m.counts.shape, list(m.tiles), p.mask_block)
        lines.append(replace(p, mask=str(sparse.write(tmp_path / name))).options())
    solved = mask_step.solve_all(tmp_path / "out", lines)
    for result, record in solved[1:]:
        assert result.same_bits(solved[0][0])
        for count in ("count_barriers", "count_mma", "count_ldmatrix"):
            assert record.get(count) == solved[0][1].get(count)


@pytest.mark.parametrize("past, not_compared", [("queries", 0), ("keys", 200)])
def test_nan_in_a_tile_that_only_entries_past_the_end_attend(
    mask_step: Program, tmp_path: Path, past: str, not_compared: int
) -> None:
    """NaN in V. Tiles of keys that no query attends are skipped. If the mask says that a query
    attends keys past the last one, the tile may be visited: the check does not compare such rows.
    The second head has no NaN."""
    p = Problem(1, 2, 2, 200, 200, mask_block=(256, 256))
    m = masks.from_dense(np.pad(np.ones((200, 64), bool), [(0, 0), (0, 136)])[None, None], p.mask_block)
    m.tiles[(0, np.s_[200:], np.s_[:200]) if past == "queries" else (0, np.s_[:], np.s_[200:])] = 1
    q, k, v = rounded_inputs(p)
    v[0, 0, 130 if past == "queries" else 195] = np.nan
    p = replace(p, mask=str(m.write(tmp_path / "mask")))
    _, record = mask_step.solve(tmp_path / "out", *p.options_with_files(tmp_path / "in", q, k, v))
    assert record["rows_not_compared"] == not_compared


def test_nan_beside_entries_of_a_tile_past_the_end(mask_step: Program, tmp_path: Path) -> None:
    """NaN in the last row of V. A tile of keys after it is skipped, whatever its mask is."""
    p = Problem(1, 1, 1, 64, 130, mask_block=(64, 256))
    m = masks.from_dense(np.pad(np.ones((64, 10), bool), [(0, 0), (0, 120)])[None, None], p.mask_block)
    m.tiles[0, :, 192:] = 1
    q, k, v = rounded_inputs(p)
    v[0, 0, 129] = np.nan
    p = replace(p, mask=str(m.write(tmp_path / "mask")))
    result, record = mask_step.solve(tmp_path / "out", *p.options_with_files(tmp_path / "in", q, k, v))
    assert record["rows_not_compared"] == 0 and np.isfinite(result.o).all()


# --- Bits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", ["full", "causal"])
@pytest.mark.parametrize("head_dim", [32, 64, 96, 128, 256])
def test_the_first_step_with_masks_agrees_bit_for_bit_with_those_before(
    tmp_path: Path, head_dim: int, mask: str
) -> None:
    """The tiles have the same keys, in the same order."""
    problems = [
        Problem(1, 1, 1, n, kv, head_dim, dtype, mask)
        for dtype in ("fp16", "bf16")
        for n, kv in ((1, 70), (200, 100), (130, 233))
    ]
    lines = [p.options() for p in problems]
    results = {
        name: [result for result, _ in Program(name).solve_all(tmp_path / name, lines)]
        for name in (*BEFORE, MASK_STEP.name)
    }
    for name in BEFORE:
        for p, a, b in zip(problems, results[name], results[MASK_STEP.name], strict=True):
            assert a.same_bits(b), f"{name}: {' '.join(p.options())}"
