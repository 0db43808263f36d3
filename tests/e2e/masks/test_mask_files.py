"""Masks in files: dense masks, block masks written and read again, and refusals."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.lib import masks
from tests.lib.generators import rounded_inputs
from tests.lib.kinds import MASK_STEPS
from tests.lib.problem import Problem
from tests.lib.programs import USAGE, Program, write_inputs

MASK_STEP = Program(MASK_STEPS[0])
PROBLEM = Problem(2, 2, 2, 200, 300, 32, mask_block=(64, 64))


# --- Dense masks ----------------------------------------------------------------------------------


def test_heads_and_batch_entries_are_not_mixed_up(tmp_path: Path) -> None:
    """A mask for each of 2 x 3: each pair attends one key, so its O is that row of V."""
    p = Problem(2, 3, 1, 70, 90, 32, mask_block=(64, 64), mask=str(tmp_path / "mask.npy"))
    dense = np.zeros((2, 3, 70, 90), bool)
    for b, h, q in np.ndindex(2, 3, 70):
        dense[b, h, q, (17 * b + 29 * h + q) % 90] = True
    np.save(tmp_path / "mask.npy", dense)
    result, _ = MASK_STEP.solve(tmp_path / "out", *p.options())
    _, _, v = rounded_inputs(p)
    for b, h, q in np.ndindex(2, 3, 70):
        assert (result.o[b, h, q] == v[b, 0, (17 * b + 29 * h + q) % 90]).all()


@pytest.mark.parametrize("masked", [0, -np.inf, -1e4])
def test_the_conversion_in_a_refusal_is_right(tmp_path: Path, masked: float) -> None:
    """A mask of 1 and 0, and those that are added to the scores."""
    path, attended = tmp_path / "mask.npy", masks.preset(replace(PROBLEM, mask="window:70"))
    numbers = np.where(attended, 1 if masked == 0 else 0, masked).astype(np.float16)
    np.save(path, numbers)
    p = replace(PROBLEM, mask=str(path))
    conversion = re.search(r"save mask ([!=]=) 0\b", refusal(p))[1]
    np.save(path, numbers != 0 if conversion == "!=" else numbers == 0)
    result, _ = MASK_STEP.solve(tmp_path / "own", *p.options())
    expected, _ = MASK_STEP.solve(tmp_path / "window", *replace(p, mask="window:70").options())
    assert np.array_equal(result.o, expected.o)


@pytest.mark.parametrize(
    "mask, says",
    [
        (["--mask", "window:0"], "--mask window:0: W must be"),
        (["--mask", "document:9,9"], "--mask document:9,9: the lengths add up to 18"),
        (["--mask-block", "96x64"], "mask blocks of 96x64"),
    ],
)
def test_a_bad_mask_beside_input_files_is_named(tmp_path: Path, mask: list, says: str) -> None:
    inputs = write_inputs(tmp_path / "in", *rounded_inputs(PROBLEM))
    done = MASK_STEP.run("--input", inputs, *mask)
    assert done.returncode == USAGE and done.stderr.startswith(f"{MASK_STEPS[0]}: {says}")


# --- Saved and read again -------------------------------------------------------------------------


def test_mask_is_saved_without_a_run(tmp_path: Path) -> None:
    """--draw-mask --save-mask: the same files, and only the picture is printed."""
    p = replace(PROBLEM, mask="prefix:50")
    MASK_STEP.run_right(*p.options(), "--save-mask", tmp_path / "run")
    done = MASK_STEP.run_right(*p.options(), "--draw-mask", "--save-mask", tmp_path / "drawn")
    assert masks.read(tmp_path / "run").same_as(masks.read(tmp_path / "drawn"))
    assert done.stdout == MASK_STEP.run_right(*p.options(), "--draw-mask").stdout


def test_picture_of_a_directory_has_its_blocks(tmp_path: Path) -> None:
    """If there are several masks, the first is drawn, and the picture says so."""
    p = replace(PROBLEM, mask="window:70")
    entries = np.stack([masks.preset(p), masks.preset(replace(p, mask="full"))])[None]
    m = masks.from_dense(entries, (64, 64)).write(tmp_path / "mask")
    options = replace(p, mask=str(m), mask_block=None).options()
    said, which, *picture, legend = MASK_STEP.run_right(*options, "--draw-mask").stdout.splitlines()
    assert said.endswith("a character is 64 x 64 entries")
    assert which == "the first of 2 masks, that of batch entry 0 and head 0"
    expected = MASK_STEP.run_right(*replace(p, mask_block=(64, 64)).options(), "--draw-mask")
    assert picture == expected.stdout.splitlines()[1:-1]
    assert legend.endswith(f"{100 * entries.mean():.1f} % of the entries of all masks")


@pytest.mark.parametrize("mask", ["full", "causal", "empty", "window:70", "document:3", "random:0.5"])
def test_saved_mask_is_the_mask(tmp_path: Path, mask: str) -> None:
    """--save-mask and --mask of that directory: the same bits, and the same mask saved again."""
    p = replace(PROBLEM, mask=mask)
    first, again = tmp_path / "first", tmp_path / "again"
    expected, record = MASK_STEP.solve(tmp_path / "a", *p.options(), "--save-mask", first)
    result, second_record = MASK_STEP.solve(
        tmp_path / "b", *replace(p, mask=str(first)).options(), "--save-mask", again
    )
    assert result.same_bits(expected)
    assert masks.read(first).same_as(masks.read(again))
    assert (masks.to_dense(masks.read(first), 200, 300) == masks.preset(p)).all()
    same = [name for name in record if name.startswith("mask_") and not name.endswith("_ms")]
    assert {name: record[name] for name in same} == {name: second_record[name] for name in same}
    assert {"mask_blocks_partial", "mask_bytes", "mask_prepared_bytes"} <= set(same)


def test_saved_mask_is_canonical_whatever_was_read(tmp_path: Path) -> None:
    """Shuffled slots, MASKED slots, broadcast tensors and dense files are read; the saved mask is canonical."""
    dense = masks.random_blocks(np.random.default_rng(0), (2, 2, 200, 300), (64, 64))
    np.save(tmp_path / "dense.npy", dense)
    canonical = masks.from_dense(dense, (64, 64))
    written = [
        m.write(tmp_path / f"in{i}")
        for i, m in enumerate(
            (masks.disordered(canonical, np.random.default_rng(1)), masks.with_fewest_copies(canonical))
        )
    ]
    for i, path in enumerate([tmp_path / "dense.npy", *written]):
        p = replace(PROBLEM, mask=str(path))
        MASK_STEP.solve(tmp_path / f"out{i}", *p.options(), "--save-mask", tmp_path / f"saved{i}")
        assert masks.read(tmp_path / f"saved{i}").same_as(canonical)


def test_block_size_is_that_of_the_tiles(tmp_path: Path) -> None:
    """Whatever --mask-block says."""
    p = replace(PROBLEM, mask="dilated:5", mask_block=(128, 64))
    expected, _ = MASK_STEP.solve(tmp_path / "a", *p.options(), "--save-mask", tmp_path / "mask")
    p = replace(p, mask=str(tmp_path / "mask"), mask_block=(256, 256))
    result, record = MASK_STEP.solve(tmp_path / "b", *p.options())
    assert result.same_bits(expected)
    assert (record["mask_block_q"], record["mask_block_kv"]) == (128, 64)


def test_mask_without_slots_attends_nothing(tmp_path: Path) -> None:
    """MAXB = 0, with and without an unused tile."""
    for tiles in (0, 1):
        m = masks.BlockMask(
            np.zeros((2, 1, 4), np.int32),
            *(np.zeros((1, 2, 4, 0), np.int32) for _ in range(3)),
            np.ones((tiles, 64, 64), bool),
        )
        p = replace(PROBLEM, mask=str(m.write(tmp_path / f"mask{tiles}")))
        result, record = MASK_STEP.solve(tmp_path / f"out{tiles}", *p.options())
        assert not result.o.any() and (result.lse == -np.inf).all()
        assert (record["mask_blocks"], record["mask_blocks_active"]) == (2 * 2 * 4 * 5, 0)


# --- What is refused ------------------------------------------------------------------------------

GOOD = masks.from_dense(np.random.default_rng(0).random((1, 2, 200, 300)) < 0.5, (64, 64))
AT = "[b=0, h=1, q_block=3, slot=2]"


def changed(field: str, value: int) -> masks.BlockMask:
    """GOOD with another value for q_block 3 of head 1, in slot 2 where there are slots."""
    tensor = getattr(GOOD, field).copy()
    tensor[(0, 1, 3) if field == "counts" else (0, 1, 3, 2)] = value
    return replace(GOOD, **{field: tensor})


# One for each place of an error: slot, tile, shape, element type. The unit tests have all.
BAD_MASKS: dict[str, tuple[masks.BlockMask, str]] = {
    "index": (changed("indices", 17), f": kv_indices{AT} = 17, but there are only 5 key/value blocks"),
    "tile": (
        changed("tile_indices", 40),
        f": partial_block_mask_indices{AT} = 40, but the slot is PARTIAL and there are 40 tiles",
    ),
    "small blocks": (
        replace(GOOD, tiles=np.zeros((40, 32, 64), bool)),
        ": NQB is 4, must be 7: --seqlen 200 in blocks of 32",
    ),
    "int64": (
        replace(GOOD, indices=GOOD.indices.astype(np.int64)),
        "/kv_indices.npy: element type '<i8': expected <i4 (int32)",
    ),
}


def assert_refused(tmp_path: Path, directory: Path, says: str) -> None:
    """One line, exit code 2, nothing written."""
    before = sorted(tmp_path.iterdir())
    done = MASK_STEP.run(
        *replace(PROBLEM, mask=str(directory)).options(),
        "-o",
        tmp_path / "out",
        "-j",
        tmp_path / "record.json",
        "--save-mask",
        tmp_path / "saved",
    )
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert done.stderr == f"{MASK_STEPS[0]}: {directory}{says}\n"
    assert sorted(tmp_path.iterdir()) == before


def refusal(p: Problem) -> str:
    """The error message of a request that is refused."""
    done = MASK_STEP.run(*p.options())
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (USAGE, "", 1)
    return done.stderr


@pytest.mark.parametrize("fault", BAD_MASKS)
def test_bad_block_mask(tmp_path: Path, fault: str) -> None:
    m, says = BAD_MASKS[fault]
    assert_refused(tmp_path, m.write(tmp_path / "mask"), says)


def test_blocks_that_the_tiles_do_not_divide(tmp_path: Path) -> None:
    """Of --mask-block, of a directory's tiles, and of a directory without tiles."""
    says = f"{MASK_STEPS[0]}: mask blocks of 96x64 (--mask-block or the tiles): must be multiples of 64\n"
    directory = masks.from_dense(np.ones((1, 1, 200, 300), bool), (96, 64)).write(tmp_path / "mask")
    p = replace(PROBLEM, mask_block=(96, 64))
    assert refusal(p) == says
    assert refusal(replace(PROBLEM, mask=str(directory))) == says
    (directory / "partial_block_masks.npy").unlink()
    assert refusal(replace(p, mask=str(directory))) == says


@pytest.mark.parametrize(
    "change, says",
    [
        ({"head_dim": 40}, f"--head-dim 40: {MASK_STEPS[0]} takes D = 32, 64, 96, 128 or 256"),
        ({"mask_block": (64, 1)}, "mask blocks of 64x1 (--mask-block or the tiles): must be multiples of 64"),
    ],
    ids=["head dimension", "blocks"],
)
@pytest.mark.parametrize("mask", ["window:0", "blocks:2", "missing.npy"])
def test_step_refuses_before_the_mask_is_opened(change: dict, says: str, mask: str) -> None:
    """Counting the entries of a mask may take minutes, so an invalid mask is not noticed before."""
    assert refusal(replace(PROBLEM, mask=mask, **change)) == f"{MASK_STEPS[0]}: {says}\n"
    assert refusal(replace(PROBLEM, mask=mask)).startswith(f"{MASK_STEPS[0]}: --mask {mask}: ")
