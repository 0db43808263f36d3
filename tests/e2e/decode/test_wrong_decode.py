"""What the host does with any cache, and what it says of a wrong answer, tested with a decode step that takes
everything and is wrong on purpose: faulty_decode.cu."""

import random
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.decode.test_random_decode import differences, drawn_problem, ran
from tests.lib.decode import DecodeProblem, drawn_table, pages_of, save
from tests.lib.programs import DECODE_SEED, DEVICE, RIGHT, USAGE, WRONG, Program, read_records, read_result
from tests.lib.reference import from_e4m3, mistakes, round_to, to_e4m3

pytestmark = pytest.mark.cpu_only("the judge and the files are host code, the same on a GPU machine")

P = DecodeProblem(batch=3, heads=4, kv_heads=2, lengths=(40, 0, 70), head_dim=32, seed=5)
PAGED = replace(P, page_size=16)


def run(program: Program, fault: str, p: DecodeProblem, *options: object) -> subprocess.CompletedProcess:
    return program.run("--check", "all", *p.options(), *options, env={"FAULT": fault}, timeout=60)


def test_random_problems_of_any_cache(faulty_decode: Program, tmp_path: Path) -> None:
    rng = random.Random(DECODE_SEED)
    problems = [drawn_problem(rng, faulty_decode) for _ in range(20)]
    assert {p.page_size > 0 for p in problems} == {True, False} and {p.kv_dtype for p in problems} == {"", "e4m3"}
    ran(faulty_decode, tmp_path / "out", problems)
    for i, p in enumerate(problems):
        assert differences(p, tmp_path / "out" / str(i)) == [], p


# The mistake, and what the text must contain.
FAULTS = [
    ("lost key", P, "is explained (to "),
    ("lost key", P, "the last key that the mask allows is missing"),
    ("lost page", PAGED, "page 1 is missing"),
    ("no scale", replace(P, kv_dtype="e4m3"), "wrong O in 8 rows"),
    ("wrong window", replace(P, mask="window:30"), "wrong O in 8 rows"),
    ("other length", replace(P, lengths=(40, 50, 70)), "the length is 40, that of sequence 0, instead of 70"),
    ("dirty start", P, "not 0 after the pass: 2 bytes of the workspace, the first is byte 4"),
]


@pytest.mark.parametrize("fault, p, says", FAULTS)
def test_the_text_says_what_is_wrong(faulty_decode: Program, fault: str, p: DecodeProblem, says: str) -> None:
    done = run(faulty_decode, fault, p)
    assert done.returncode == WRONG and says in done.stderr, done.stderr


def test_a_page_that_is_read_twice_is_named(faulty_decode: Program) -> None:
    done = run(faulty_decode, "wrong page", replace(PAGED, input="constant"))
    assert done.returncode == RIGHT  # all pages are equal
    done = run(faulty_decode, "wrong page", PAGED)
    assert done.returncode == WRONG and "K and V of page 1 are those of page 0" in done.stderr, done.stderr


def test_one_missing_key_is_named_with_its_page(faulty_decode: Program) -> None:
    done = run(faulty_decode, "lost first", replace(PAGED, lengths=(40, 37, 70)))
    assert re.search(r"by this: key 0, in page 0, number \d+ of the cache, is missing", done.stderr), done.stderr


def test_what_lies_past_a_length_is_not_a_number(faulty_decode: Program) -> None:
    done = run(faulty_decode, "past length", replace(P, lengths=(40, 50, 70), seqlen_kv=80))
    assert done.returncode == WRONG and "NaN where a number belongs" in done.stderr
    done = run(faulty_decode, "past length", replace(P, lengths=(40, 50, 70), seqlen_kv=80), "--report=init")
    assert "faulty.cu" in done.stdout and done.returncode == WRONG


def test_a_page_without_an_owner_is_out_of_bounds(faulty_decode: Program) -> None:
    """Past the last page of a sequence the table has the number of no page."""
    done = run(faulty_decode, "past table", replace(PAGED, lengths=(20, 20, 48)))
    assert done.returncode == DEVICE and "out of bounds" in done.stderr


def test_only_the_promised_bytes_of_the_workspace_must_be_0(faulty_decode: Program) -> None:
    assert run(faulty_decode, "dirty end", P).returncode == RIGHT


def test_pages_do_not_change_the_numbers(faulty_decode: Program, tmp_path: Path) -> None:
    lines = [p.options() for p in (P, PAGED, replace(P, layout="bnhd"), replace(PAGED, page_size=256, layout="bnhd"))]
    first, *others = (result for result, _ in faulty_decode.solve_all(tmp_path / "out", lines))
    assert all(first.same_bits(other) for other in others)


# --- Files ----------------------------------------------------------------------------------------


def inputs_of(p: DecodeProblem) -> tuple[np.ndarray, ...]:
    """Q, K and V as fp16 holds them, with NaN past the lengths."""
    q, k, v = p.rounded(*p.drawn())
    return q, *(np.where(p.is_there(), x, np.nan) for x in (k, v))


def solved(program: Program, directory: Path, p: DecodeProblem) -> list[str]:
    """Solves the problem in the files; what is wrong by NumPy."""
    out = directory.with_name(f"{directory.name}_out")
    result, record = program.solve(out, *p.options_with_files(directory))
    assert record["nan_inputs"] == 0
    return mistakes(p.answer(*p.rounded(*p.drawn())), result.o, result.lse)


def test_files_without_pages(faulty_decode: Program, tmp_path: Path) -> None:
    q, k, v = inputs_of(P)
    save(P, tmp_path / "in", q, k.astype("<f4"), v.astype("<f2"))
    assert solved(faulty_decode, tmp_path / "in", P) == []


def test_entries_past_a_length_may_hold_anything(faulty_decode: Program, tmp_path: Path) -> None:
    q, k, v = inputs_of(P)
    for i, fill in enumerate((np.inf, 1e30, -7.0)):
        files = [np.where(P.is_there(), x, fill).astype("<f4") for x in (k, v)]
        assert solved(faulty_decode, save(P, tmp_path / f"in{i}", q, *files), P) == []


@pytest.mark.parametrize("page_size", [16, 256])
def test_files_in_pages(faulty_decode: Program, tmp_path: Path, page_size: int) -> None:
    p = replace(P, page_size=page_size)
    q, k, v = inputs_of(p)
    table, pages = drawn_table(p, np.random.default_rng(3))
    files = [pages_of(p, x, table, pages, np.nan).astype("<f2") for x in (k, v)]
    assert solved(faulty_decode, save(p, tmp_path / "in", q, *files, table), p) == []


def test_sequences_may_share_pages(faulty_decode: Program, tmp_path: Path) -> None:
    """Two sequences with the same first 32 keys; their bytes count once."""
    p = replace(PAGED, lengths=(40, 0, 50), seqlen_kv=50)
    q, k, v = p.rounded(*p.drawn())
    for x in (k, v):
        x[2, :, :32] = x[0, :, :32]
    table, pages = drawn_table(p, np.random.default_rng(4))
    table[2, :2] = table[0, :2]
    files = [pages_of(p, x, table, pages, np.nan).astype("<f2") for x in (k, v)]
    save(p, tmp_path / "in", q, *files, table)
    result, record = faulty_decode.solve(tmp_path / "out", *p.options_with_files(tmp_path / "in"))
    assert mistakes(p.answer(q, k, v), result.o, result.lse) == []
    assert record["cache_bytes"] == 2 * 2 * p.kv_heads * p.head_dim * (40 + 50 - 32)
    assert record["keys"] == 90 and record["pages"] == pages


def test_files_in_e4m3(faulty_decode: Program, tmp_path: Path) -> None:
    p = replace(PAGED, kv_dtype="e4m3", dtype="bf16")
    q, k, v = p.drawn()
    (k_bits, k_scales), (v_bits, v_scales) = (to_e4m3(x, p.kv_heads) for x in (k, v))
    table, pages = drawn_table(p, np.random.default_rng(5))
    files = [pages_of(p, x, table, pages, 0x7F) for x in (k_bits, v_bits)]  # NaN in e4m3
    scales = {"k_scales": k_scales, "v_scales": v_scales}
    save(p, tmp_path / "in", p.rounded(q, k, v)[0], *files, table, **scales)
    assert solved(faulty_decode, tmp_path / "in", p) == []


def test_sequences_that_share_pages_share_their_scales(faulty_decode: Program, tmp_path: Path) -> None:
    """If the host rounds a file to e4m3, a page has one set of bits, whatever else its sequences have."""
    p = replace(PAGED, lengths=(40, 0, 50), kv_dtype="e4m3")
    q, k, v = p.drawn()
    for x in (k, v):
        x[2, :, :32] = x[0, :, :32]
        x[2, :, 32:] *= 3
    table, pages = drawn_table(p, np.random.default_rng(4))
    table[2, :2] = table[0, :2]
    files = [pages_of(p, x, table, pages, np.nan) for x in (k, v)]
    save(p, tmp_path / "in", q, *files, table)
    result, _ = faulty_decode.solve(tmp_path / "out", *p.options_with_files(tmp_path / "in"))
    as_one = [np.concatenate(x, axis=1)[None] for x in (k, v)]  # all keys of a head
    rounded = [np.split(from_e4m3(*to_e4m3(x, p.kv_heads))[0], p.batch, axis=1) for x in as_one]
    assert mistakes(p.answer(round_to(p.dtype, q), *map(np.stack, rounded)), result.o, result.lse) == []


def test_nan_in_the_cache_spreads(faulty_decode: Program, tmp_path: Path) -> None:
    q, k, v = inputs_of(P)
    v[2, 1, 69, 3] = np.nan
    k[0, 0, 0, 0] = np.nan
    save(P, tmp_path / "in", q, k.astype("<f2"), v.astype("<f2"))
    faulty_decode.run_right("--check", "all", *P.options_with_files(tmp_path / "in"), "-o", tmp_path / "out")
    result = read_result(tmp_path / "out")
    assert np.isnan(result.o[2, 2:, 0, 3]).all() and np.isnan(result.o[0, :2]).all()
    assert np.count_nonzero(np.isnan(result.o)) == 2 + 2 * P.head_dim
    assert (result.o[1] == 0).all() and (result.lse[1] == -np.inf).all()


REFUSALS = [
    ({"page_table": (2, 1, 99)}, "page_table.npy: element [2, 1] is 99, must be a page, from 0 to"),
    ({"page_table": (0, 2, -1)}, "page_table.npy: element [0, 2] is -1, must be a page, from 0 to"),
    ({"lengths": (1, -2)}, "lengths.npy: element [1] is -2, must be from 0 to"),
    ({"lengths": (2, 81)}, "page_table.npy: must be [B, pages of the longest sequence]: [3, 6] or more"),
]


@pytest.mark.parametrize("change, says", REFUSALS)
def test_refused_with_coordinates(faulty_decode: Program, tmp_path: Path, change: dict, says: str) -> None:
    q, k, v = inputs_of(PAGED)
    table, pages = drawn_table(PAGED, np.random.default_rng(3))
    files = [pages_of(PAGED, x, table, pages, np.nan).astype("<f2") for x in (k, v)]
    directory = save(PAGED, tmp_path / "in", q, *files, table)
    for name, (*at, value) in change.items():
        array = np.load(directory / f"{name}.npy")
        array[tuple(at)] = value
        np.save(directory / f"{name}.npy", array)
    done = faulty_decode.run("--input", directory)
    assert done.returncode == USAGE and done.stderr.count("\n") == 1 and says in done.stderr


def test_other_refusals_of_files(faulty_decode: Program, tmp_path: Path) -> None:
    def says(message: str, p: DecodeProblem = P, **files: np.ndarray) -> None:
        q, k, v = (x.astype("<f2") for x in inputs_of(P))
        directory = save(P, tmp_path / f"in{len(list(tmp_path.iterdir()))}", q, **{"k": k, "v": v, **files})
        done = faulty_decode.run("--input", directory, "--kv-dtype" if p.kv_dtype else "--check", p.kv_dtype or "all")
        assert done.returncode == USAGE and done.stderr.count("\n") == 1 and message in done.stderr, done.stderr

    shape = (4, 16, 2, 32)
    says("lengths.npy: element [2] is 71, must be from 0 to 70", lengths=np.array([1, 2, 71], np.int32))
    says("lengths.npy: must be [B], one length for each sequence: [3]", lengths=np.array([1, 2], np.int32))
    says("lengths.npy: element type '<i8': expected <i4", lengths=np.array([1, 2, 3]))
    says(
        "k.npy: pages of 48 keys, must be 16, 32, 64, 128 or 256",
        **dict.fromkeys("kv", np.zeros((4, 48, 2, 32), "<f2")),
        page_table=np.zeros((3, 2), np.int32),
    )
    says("page_table.npy: element type", **dict.fromkeys("kv", np.zeros(shape, "<f2")), page_table=np.zeros((3, 5)))
    says(
        "k.npy: element [0, 0, 1, 0] is 1e+06, beyond",
        k=np.full((3, 2, 70, 32), [[1e6] * 32] * 70, "<f4") * (np.arange(70) == 1)[:, None],
    )
    in_e4m3 = replace(P, kv_dtype="e4m3")
    says("k_scales.npy: cannot open", in_e4m3, **dict.fromkeys("kv", np.zeros((3, 2, 70, 32), np.uint8)))


def test_sizes_beside_files_are_refused(faulty_decode: Program, tmp_path: Path) -> None:
    q, k, v = inputs_of(P)
    directory = save(P, tmp_path / "in", q, k.astype("<f2"), v.astype("<f2"))
    for option in ("--lengths=1-3", "--page-size=16", "--seqlen=1"):
        done = faulty_decode.run("--input", directory, option)
        assert done.returncode == USAGE and f"{option.partition('=')[0]}: must not be given with --input" in done.stderr


def test_the_memory_of_a_schedule_is_counted(faulty_decode: Program, tmp_path: Path) -> None:
    faulty_decode.run_right(*P.options(), "--json", tmp_path / "record.json")
    (record,) = read_records(tmp_path / "record.json")
    assert record["schedule_bytes"] == 4 * P.batch and record["workspace_bytes"] == 64 + 4 * P.batch
