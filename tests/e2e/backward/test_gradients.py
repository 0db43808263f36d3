"""The gradients of the backward steps are those of NumPy in fp64, whose formulas use the whole matrix
P; the files that the programs read and write; and their options."""

import json

import numpy as np
import pytest

from tests.lib.gradients import MOST, NAMES, distances, draw, forward, gradients, solve, write
from tests.lib.limits import exceeded
from tests.lib.problem import Problem
from tests.lib.programs import USAGE, read_records

PROBLEMS = [
    Problem(heads=4, kv_heads=2, seqlen=70, seqlen_kv=101, mask="causal"),
    Problem(batch=2, heads=2, seqlen=65, seqlen_kv=40, mask="causal", dtype="bf16", layout="bnhd"),
    Problem(heads=3, kv_heads=1, seqlen=33, seqlen_kv=130, head_dim=128, scale=0.2),
    Problem(seqlen=1, seqlen_kv=1),
    Problem(heads=2, seqlen=50, seqlen_kv=50, head_dim=256, mask="causal", dtype="bf16"),
]


def options(p: Problem) -> list:
    return ["--mask", p.mask, "--dtype", p.dtype, "--layout", p.layout, "--scale", p.scale_used()]


@pytest.mark.parametrize("p", PROBLEMS, ids=str)
def test_gradients_are_those_of_numpy(step, p, tmp_path) -> None:
    if not step.takes(p.head_dim):
        pytest.skip("another head dimension")
    tensors = draw(p, 1)
    found, record = solve(step, tmp_path, "--input", write(tmp_path / "in", tensors), *options(p))
    expected = gradients(p, *tensors)
    assert [x.shape for x in found] == [x.shape for x in expected]
    assert {x.dtype.str for x in found} == {"<f2" if p.dtype == "fp16" else "<f4"}
    if p.seqlen_kv == 1:  # P is 1, so dS is 0 but for rounding
        assert np.abs(found[0]).max() < 1e-5 and np.abs(found[1]).max() < 1e-5
        found, expected = found[2:], expected[2:]
    assert max(distances(found, expected)) < MOST[p.dtype]
    empty = np.arange(p.seqlen) < p.seqlen - p.seqlen_kv if p.mask == "causal" else np.zeros(p.seqlen, bool)
    assert not found[0][:, :, empty].any()
    assert record["right"] is True and record["flops"] > 0


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_o_and_lse_from_files_are_used(step, dtype, tmp_path) -> None:
    """Those of twice the scale change P: kernel and reference use them."""
    p = Problem(heads=2, seqlen=40, seqlen_kv=50, dtype=dtype).for_step(step)
    tensors = draw(p, 5)
    directory = write(tmp_path / "in", tensors)
    own, _ = solve(step, tmp_path / "own", "--input", directory, *options(p))
    _, o, lse = forward(p, *tensors[:3])
    np.save(directory / "o.npy", o.astype("<f2" if dtype == "fp16" else "<f4"))
    np.save(directory / "lse.npy", lse.astype("<f4"))
    given, _ = solve(step, tmp_path / "given", "--input", directory, *options(p))
    assert max(distances(given, [x.astype(np.float64) for x in own])) < MOST[dtype]
    np.save(directory / "lse.npy", (lse + 1).astype("<f4"))
    other, _ = solve(step, tmp_path / "other", "--input", directory, *options(p))
    assert distances(other[2:], [given[2] / np.e])[0] < MOST[dtype]


def test_masked_keys_have_no_gradients(step, tmp_path) -> None:
    """Queries with dO = 0 add nothing, so neither do the keys that only they attend to."""
    p = Problem(heads=4, kv_heads=2, seqlen=100, seqlen_kv=100, mask="causal").for_step(step)
    *tensors, d_o = draw(p, 7)
    for first in (64, 33, 1):
        d_o[:, :, first:] = 0
        found, _ = solve(step, tmp_path / str(first), "--input", write(tmp_path / "in", [*tensors, d_o]), *options(p))
        assert not any(x[:, :, first:].any() for x in found)
        assert found[NAMES.index("dv")][:, :, :first].any(axis=-1).all()


def test_bits_are_the_same_every_time(step, tmp_path) -> None:
    if not step.facts["deterministic"]:
        pytest.skip("it says so")
    problem = ("--heads", 4, "--kv-heads", 2, "--seqlen", 77, "--mask", "causal")
    first, _ = solve(step, tmp_path / "first", *problem)
    second, _ = solve(step, tmp_path / "second", *problem)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_many_queries_of_several_heads(step) -> None:
    """Of so long heads two take turns together, as an L2 cache holds no more, or one that is larger than the cache;
    on Hopper 16 of any length."""
    if not step.takes(256) or not step.facts["deterministic"] or step.facts["needs_compute_capability"] is None:
        pytest.skip("no order of blocks")
    for problem in (("-H", 3, "-n", 5500, "-k", 65), ("-H", 1, "-n", 16400, "-k", 20), ("-H", 17, "-n", 40, "-k", 130)):
        step.run_right(*problem, "-d", 256, "-m", "causal", "--check", "rows:50")


@pytest.mark.cpu_only("the lab is part of the CPU backend")
def test_the_lab_finds_nothing(step, tmp_path) -> None:
    """Nor are conflicts, sectors and overlap worse than the limits beside the step. Tiles are whole in the last
    problems, so that the overlap counts."""
    problems = ["-n 70 -k 45 -H 4 -G 2 -m causal", "-n 33 -k 130 -t bf16"]
    if step.facts["needs_compute_capability"] is not None:
        problems += [f"-H 1 -n 256 -k 128 -d {head_dim}" for head_dim in (64, 128, 256) if step.takes(head_dim)]
    cases, path = tmp_path / "cases", tmp_path / "records"
    cases.write_text("\n".join(problems) + "\n")
    said = step.run_right("--report", "-j", path, "--cases", cases).stdout
    assert said.count("\nfindings   0\n") == said.count(": right: ") == len(problems)
    assert "attention_kernel" not in said  # the forward pass is not part of it
    assert ("the sum depends on the order" in said) != step.facts["deterministic"]
    assert {
        problem: found
        for problem, record in zip(problems, read_records(path), strict=True)
        if (found := exceeded(record))
    } == {}


def test_info_says_what_it_is(step) -> None:
    facts = step.facts
    assert facts["kind"] == "backward" and facts["masks"][:2] == ["full", "causal"] and not facts["fp8"]
    if "spans" in facts["masks"]:
        return
    done = step.run("--mask", "window:4")
    assert done.returncode == USAGE and f"--mask window:4: {step.name} takes full or causal" in done.stderr


def test_nothing_grows_with_n_squared_but_in_the_first(step) -> None:
    """At most 4 bytes for each element of Q, and arrays like LSE."""
    head_dim = Problem().for_step(step).head_dim
    done = step.run("--info", "--json", "-", "--seqlen", 1024, "--head-dim", head_dim)
    facts = json.loads(done.stdout)
    if facts["intermediate_bytes_per_entry"] == 0:
        assert facts["workspace_bytes_per_head"] <= 4 * 1024 * head_dim + 16 * 1024


def test_files_that_do_not_fit_are_refused(one, tmp_path) -> None:
    p = Problem(seqlen=10, seqlen_kv=12)
    directory = write(tmp_path / "in", draw(p, 1))
    o, lse = np.zeros(p.q_shape(), "<f2"), np.zeros(p.q_shape()[:3], "<f4")

    def refused(**files: np.ndarray) -> str:
        for name in ("o", "lse"):
            (directory / f"{name}.npy").unlink(missing_ok=True)
        for name, array in files.items():
            np.save(directory / f"{name}.npy", array)
        done = one.run("--input", directory)
        assert done.returncode == USAGE and done.stderr.count("\n") == 1
        return done.stderr

    assert "has o.npy but no lse.npy; must have both or neither" in refused(o=o)
    assert "has lse.npy but no o.npy; must have both or neither" in refused(lse=lse)
    assert "lse.npy: must be [B, H, N] as q.npy: [1, 1, 10]" in refused(o=o, lse=lse[:, :, 1:])
    assert "o.npy: dimension 2 is 9, but 10 in q.npy" in refused(o=o[:, :, 1:], lse=lse)
    assert "do.npy: dimension 2 is 9, but 10 in q.npy" in refused(do=o[:, :, 1:])
    (directory / "do.npy").unlink()
    assert "do.npy" in refused()


def test_names_of_outputs(one, tmp_path) -> None:
    one.run_right("--seqlen", 20, "--output", tmp_path / "out")
    assert sorted(path.stem for path in (tmp_path / "out").iterdir()) == sorted(NAMES)
