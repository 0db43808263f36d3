"""Decode steps on random problems, every row compared with NumPy by the rule of docs/correctness.md.

DECODE_SEED selects other problems, DECODE_PROBLEMS their number. 2,000 for step NN, on the CPU
backend or a GPU:
make test-e2e EXHAUSTIVE=1 PYTEST_ARGS="-k 'test_random_problems and stepNN'" BACKEND=cuda
"""

import os
import random
import re
from pathlib import Path

import numpy as np
import pytest

from tests.lib.decode import PAGE_SIZES, DecodeProblem, save
from tests.lib.programs import BACKEND, DECODE_SEED, Program, read_records, read_result
from tests.lib.reference import mistakes
from tests.lib.steps import settings

DECODE_PROBLEMS = int(os.environ.get("DECODE_PROBLEMS", "2000"))  # for make test-all
IN_ONE_PROCESS = 50  # problems whose files are on the disk at a time


def drawn_length(rng: random.Random, longest: int) -> int:
    edges = [n + more for n in (0, 16, 32, 64, 128, 256) for more in (-1, 0, 1)]
    return rng.choice(
        [rng.choice([n for n in edges if 0 <= n <= longest]), rng.randint(0, longest), rng.randint(0, 20)]
    )


def drawn_problem(rng: random.Random, step: Program) -> DecodeProblem:
    longest = 600 if BACKEND == "cuda" else settings(step.name, "tests").get("longest", 300)
    batch, kv_heads = rng.choice([1, 2, 3, 5]), rng.choice([1, 1, 2, 3])
    if BACKEND == "cuda" and rng.random() < 0.1:  # a row group may be in all blocks
        longest, batch, kv_heads = 20000, 1, 1
    seqlen = rng.choice([1, 1, 1, 2, 4, rng.randint(1, 16)])
    dtypes = step.facts["kv_dtypes"]
    return DecodeProblem(
        batch=batch,
        heads=kv_heads * rng.choice([1, 2, 3, 4, 8, rng.randint(1, 16)]),
        kv_heads=kv_heads,
        seqlen=seqlen,
        lengths=tuple(drawn_length(rng, longest) for _ in range(batch)),
        head_dim=rng.choice(step.facts["head_dims"]),
        dtype=rng.choice(["fp16", "bf16"]),
        kv_dtype="e4m3" if dtypes == ["e4m3"] or ("e4m3" in dtypes and rng.random() < 0.3) else "",
        page_size=rng.choice([0, 0, *PAGE_SIZES]) if step.facts["page_sizes"] else 0,
        mask=rng.choice(["causal", "causal", "full", f"window:{rng.randint(1, longest)}"]),
        layout=rng.choice(["bhnd", "bnhd"]),
        scale=rng.choice([None, None, 0.05, 0.37, 1.0]),
        input=rng.choice(["normal", "normal", "outlier", "sink", "constant"]),
        seed=rng.getrandbits(64),
    )


def ran(program: Program, directory: Path, problems: list[DecodeProblem]) -> None:
    """Solves the problems in one process; none may be refused, and all must be right by the program's own check."""
    directory.mkdir(parents=True)
    lines = [
        " ".join([*p.options(), "--output", f"{directory}/{i}", "--json", f"{directory}/{i}.json"])
        for i, p in enumerate(problems)
    ]
    cases = directory / "cases.txt"
    cases.write_text("\n".join(lines) + "\n")
    done = program.run("--check", "all", "--repeat", 0, "--cases", cases, timeout=600)
    said = dict(re.findall(r"^.*?:(\d+): (\w+): ", done.stdout, re.MULTILINE))
    failed = [i for i in range(len(lines)) if said.get(str(i + 1)) != "right"]
    refused = [lines[i] for i in failed if said.get(str(i + 1)) == "refused"]
    assert refused == [], f"DECODE_SEED={DECODE_SEED}\n{done.stderr}"
    # In some problems no row can be judged: rounding may err by as much as it holds, or all are empty.
    wrong = [lines[i] for i in failed if read_records(directory / f"{i}.json")[0]["right"] is not None]
    assert wrong == [], f"DECODE_SEED={DECODE_SEED}\n{done.stderr}"


def differences(p: DecodeProblem, directory: Path) -> list[str]:
    """What is wrong by NumPy, and where the program allows another error."""
    answer, result = p.answer(*p.rounded(*p.drawn())), read_result(directory)
    (record,) = read_records(directory.with_name(f"{directory.name}.json"))
    found = mistakes(answer, result.o, result.lse)
    allowed = 2 * answer.rounding_error
    if record["allowed_error"] != pytest.approx(allowed, rel=0.01):
        found.append(f"allowed_error is {record['allowed_error']}, not {allowed}")
    cache = 4 if p.kv_dtype != "e4m3" else 2  # bytes of an element of K and one of V
    if not p.mask.startswith("window"):
        scales = 8 * p.batch * p.kv_heads if p.kv_dtype == "e4m3" else 0
        expected = cache * p.kv_heads * p.head_dim * sum(p.lengths) + scales
        if record["cache_bytes"] != expected:
            found.append(f"cache_bytes is {record['cache_bytes']}, not {expected}")
    return found


@pytest.mark.parametrize("count", [12, pytest.param(DECODE_PROBLEMS, marks=pytest.mark.exhaustive)])
def test_random_problems(step: Program, tmp_path: Path, count: int) -> None:
    rng = random.Random(DECODE_SEED)
    wrong = {}
    for first in range(0, count, IN_ONE_PROCESS):
        some = [drawn_problem(rng, step) for _ in range(min(IN_ONE_PROCESS, count - first))]
        directory = tmp_path / str(first)
        ran(step, directory, some)
        for i, p in enumerate(some):
            if found := differences(p, directory / str(i)):
                wrong[" ".join(p.options())] = found
    assert wrong == {}, f"DECODE_SEED={DECODE_SEED}"


def test_each_step_takes_what_decode_is_about(step: Program) -> None:
    """Uneven lengths, an empty one among them, grouped heads, and both types."""
    for dtype in ("fp16", "bf16"):
        for head_dim in step.facts["head_dims"]:
            p = DecodeProblem(batch=2, heads=8, kv_heads=2, lengths=(0, 70), head_dim=head_dim, dtype=dtype)
            done = step.run("--info", *p.options())
            assert (done.returncode, done.stderr) == (0, "")


def test_memory_beside_the_tensors_is_little(step: Program, tmp_path: Path) -> None:
    """At most 1 % of the cache, or 4 MB."""
    lines = [
        ["-b", 8, "-H", 16, "-G", 4, "-k", 700],
        ["-b", 1, "-H", 16, "-G", 1, "-k", 2000],
        ["-b", 40, "-H", 8, "-k", 9],
    ]
    for i, line in enumerate(lines):
        step.run_right(*line, "--check", "rows:4", "--json", tmp_path / f"{i}.json")
        (record,) = read_records(tmp_path / f"{i}.json")
        assert record["workspace_bytes"] <= max(4e6, 0.01 * record["cache_bytes"])


@pytest.mark.parametrize("heads", [4, 16])
def test_small_numbers_of_q_beside_a_large_one(e4m3_step: Program, tmp_path: Path, heads: int) -> None:
    """K is 0 in the column of the large one, so the others are all that counts."""
    p = DecodeProblem(1, heads, 1, head_dim=64, lengths=(70,), dtype="bf16", kv_dtype="e4m3", scale=32.0)
    q, k, v = p.drawn()
    q, k = q * 2.0**-8, np.array(k)
    q[..., 0], k[..., 0] = 2.0**20, 0
    q, k, v = p.rounded(q, k, v)
    save(p, tmp_path / "in", q, k.astype("<f4"), v.astype("<f4"))
    result, _ = e4m3_step.solve(tmp_path / "out", *p.options_with_files(tmp_path / "in"), "--scale", p.scale)
    assert mistakes(p.answer(q, k, v), result.o, result.lse) == []
