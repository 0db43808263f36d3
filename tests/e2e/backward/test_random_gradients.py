"""Backward steps on random problems, every row compared with NumPy by the rule of docs/correctness.md.

GRADIENT_SEED selects other problems, GRADIENT_PROBLEMS their number. 2,000 for step NN, on the CPU
backend or a GPU:
make test-e2e EXHAUSTIVE=1 PYTEST_ARGS="-k 'test_random_problems and stepNN'" BACKEND=cuda
"""

import os
import random
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.lib.generators import rounded_d_o, rounded_inputs
from tests.lib.gradients import NAMES, answers, mistakes
from tests.lib.problem import Problem
from tests.lib.programs import BACKEND, GRADIENT_SEED, RIGHT, Program, read_records
from tests.lib.steps import having, settings

GRADIENT_PROBLEMS = int(os.environ.get("GRADIENT_PROBLEMS", "2000"))  # for make test-all
IN_ONE_PROCESS = 50  # problems whose files are on the disk at a time
HEAD_DIMS = [32, 64, 64, 96, 128, 256]


def forward_of(step: Program) -> Program:
    """Its O and LSE are those that the program of the backward step computes for itself."""
    return Program(having("masked_forward" if "spans" in step.facts["masks"] else "forward")[0])


def drawn_mask(rng: random.Random, kv_len: int) -> str:
    """One span of keys for each query."""
    ends = sorted(rng.sample(range(1, kv_len), min(rng.randint(0, 4), kv_len - 1)))
    lengths = ",".join(str(end - first) for first, end in zip([0, *ends], [*ends, kv_len], strict=True))
    return rng.choice(
        [
            "causal",
            f"window:{rng.randint(1, kv_len + 1)}",
            f"document:{lengths if ends else 1}",
            f"prefix:{rng.randint(0, kv_len)}",
            f"interleaved:{rng.getrandbits(32)}",
        ]
    )


def drawn_problem(rng: random.Random, step: Program) -> Problem:
    longest = 400 if BACKEND == "cuda" else settings(step.name, "tests").get("longest", 300)
    lengths = [n for n in (1, 2, 7, 31, 32, 33, 63, 64, 65, 127, 128, 129, 257) if n <= longest]
    q_len, kv_len = (rng.choice([rng.choice(lengths), rng.randint(1, longest)]) for _ in range(2))
    kv_heads = rng.choice([1, 1, 2, 3])
    head_dim = (
        rng.choice(step.facts["head_dims"])
        if step.facts["head_dims"] != "any"
        else rng.choice([rng.choice(HEAD_DIMS), rng.randint(1, 256)])
    )
    p = Problem(
        batch=rng.choice([1, 1, 2]),
        heads=kv_heads * rng.choice([1, 1, 2, 3]),
        kv_heads=kv_heads,
        seqlen=q_len,
        seqlen_kv=rng.choice([q_len, kv_len, kv_len]),
        head_dim=head_dim,
        dtype=rng.choice(["fp16", "bf16"]),
        mask=rng.choice(["full", "causal"]),
        layout=rng.choice(["bhnd", "bnhd"]),
        scale=rng.choice([None, None, 0.05, 0.37, 1.0]),
        input=rng.choice(["normal", "normal", "outlier", "spiky", "sink", "constant"]),
        seed=rng.getrandbits(64),
    )
    if "spans" not in step.facts["masks"] or p.input == "spiky":
        return p
    return replace(p, mask=drawn_mask(rng, p.seqlen_kv))


def ran(program: Program, directory: Path, problems: list[Problem]) -> None:
    """Solves the problems in one process; all must be right by the program's own check."""
    directory.mkdir(parents=True)
    lines = [
        " ".join([*p.options(), "--output", f"{directory}/{i}", "--json", f"{directory}/{i}.json"])
        for i, p in enumerate(problems)
    ]
    cases = directory / "cases.txt"
    cases.write_text("\n".join(lines) + "\n")
    done = program.run("--check", "all", "--repeat", 0, "--cases", cases, timeout=600)
    said = dict(re.findall(r"^.*?:(\d+): (\w+): ", done.stdout, re.MULTILINE))
    failed = [line for i, line in enumerate(lines, 1) if said.get(str(i)) != "right"]
    # In some problems rounding may err by as much as any row holds: none of them can be judged.
    assert done.returncode == RIGHT or failed, done.stderr
    unexpected = [line for line in failed if not not_judged(directory, line)]
    assert unexpected == [], f"GRADIENT_SEED={GRADIENT_SEED}\n{done.stderr}"


def not_judged(directory: Path, line: str) -> bool:
    path = Path(line.split()[-1])
    return path.exists() and read_records(path)[0]["right"] is None


def differences(step: Program, p: Problem, forward: Path, backward: Path) -> list[str]:
    """What is wrong by NumPy, and where the two programs allow other errors."""
    o, lse = (np.load(forward / f"{name}.npy").astype(np.float64) for name in ("o", "lse"))
    expected = answers(p, *rounded_inputs(p), rounded_d_o(p), o, lse, rounded_p=step.facts["rounded_p"])
    found = mistakes(expected, [np.load(backward / f"{name}.npy") for name in NAMES])
    (record,) = read_records(backward.with_name(f"{backward.name}.json"))
    # Near a tie exp() may be rounded differently, which changes r by less than one percent.
    return found + [
        f"{name}: allowed_error is {record[f'{name}_allowed_error']}, not {x.allowed_error}"
        for name, x in zip(NAMES, expected, strict=True)
        if record[f"{name}_allowed_error"] != pytest.approx(x.allowed_error, rel=0.01)
    ]


@pytest.mark.parametrize("count", [12, pytest.param(GRADIENT_PROBLEMS, marks=pytest.mark.exhaustive)])
def test_random_problems(step: Program, tmp_path: Path, count: int) -> None:
    rng = random.Random(GRADIENT_SEED)
    problems = [drawn_problem(rng, step) for _ in range(count)]
    wrong = {}
    for first in range(0, count, IN_ONE_PROCESS):
        some = problems[first : first + IN_ONE_PROCESS]
        forward, backward = tmp_path / f"forward{first}", tmp_path / f"backward{first}"
        ran(forward_of(step), forward, some)
        ran(step, backward, some)
        for i, p in enumerate(some):
            if found := differences(step, p, forward / str(i), backward / str(i)):
                wrong[" ".join(p.options())] = found
    assert wrong == {}, f"GRADIENT_SEED={GRADIENT_SEED}"
