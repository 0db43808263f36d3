"""Random masks of all kinds, every row compared with the program's own reference and with NumPy.

MASK_SEED selects other masks, MASK_CASES their number. 2,000 for step NN, on the CPU backend or a GPU:
make test-e2e EXHAUSTIVE=1 PYTEST_ARGS="-k 'test_random_masks and stepNN'" BACKEND=cuda
"""

import os
import random
import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from tests.lib import masks
from tests.lib.reference import attention, mistakes
from tests.lib.generators import rounded_inputs
from tests.lib.problem import Problem
from tests.lib.programs import MASK_SEED, RIGHT, Program, read_result

MASK_CASES = int(os.environ.get("MASK_CASES", "2000"))  # for make test-all
# Large head dimensions take the CPU longest and do not affect masks: some forty cases of each. The
# average is 40.
HEAD_DIMS = [32] * 48 + [64, 96, 128, 256]


@dataclass(frozen=True)
class Case:
    """A problem; its mask is a preset, or `entries`, [B, H, Nq, Nkv], written to files."""

    problem: Problem
    entries: np.ndarray | None = None
    as_blocks: bool = False  # a shuffled directory instead of a dense file
    order: int = 0  # seed of the shuffle

    def dense(self) -> np.ndarray:
        return masks.preset(self.problem) if self.entries is None else self.entries

    def with_files(self, path: Path) -> Problem:
        """The problem as given to the program; its input files are written to `path`."""
        if self.entries is None:
            return self.problem
        if self.as_blocks:
            m = masks.from_dense(self.entries, self.problem.mask_block)
            m = masks.disordered(m, np.random.default_rng(self.order))
            masks.with_fewest_copies(m).write(path)
        else:
            path = path.with_suffix(".npy")
            np.save(path, self.entries)
        return replace(self.problem, mask=str(path))


# --- Drawing --------------------------------------------------------------------------------------


def drawn_preset(rng: random.Random, kv_len: int) -> str:
    cuts = sorted(rng.sample(range(1, kv_len), min(rng.randint(1, 5), kv_len - 1)))
    lengths = np.diff([0, *cuts, kv_len])
    density = rng.choice([0, 0.01, 0.1, 0.5, 0.9, 1])
    return rng.choice(
        [
            "full",
            "causal",
            "empty",
            f"window:{rng.randint(1, kv_len + 1)}",
            f"document:{','.join(map(str, lengths))}" if len(lengths) > 1 else "document:1",
            f"document:{rng.randint(1, min(kv_len, 9))}",
            f"prefix:{rng.randint(0, kv_len)}",
            f"interleaved:{rng.getrandbits(32)}",
            f"dilated:{rng.randint(1, 70)}",
            f"blocks:{density}",
            f"random:{density}",
        ]
    )


def drawn_entries(rng: random.Random, p: Problem) -> np.ndarray:
    """Blocks of 32 x 32, each with its own density, in which whole rows may be masked."""
    numbers = np.random.default_rng(rng.getrandbits(32))
    shape = (rng.choice([1, p.batch]), rng.choice([1, p.heads]), p.seqlen, p.seqlen_kv)
    density = numbers.choice([0, 0, 0.02, 0.5, 0.98, 1, 1], (*shape[:2], 7, 7))
    density = density.repeat(32, 2).repeat(32, 3)[:, :, : p.seqlen, : p.seqlen_kv]
    dense = numbers.random(shape) < density
    return dense & (numbers.random(shape[:3]) < rng.choice([0.5, 1]))[..., None]


def drawn_case(rng: random.Random) -> Case:
    n = rng.choice([rng.randint(1, 200), rng.choice([1, 63, 64, 65, 127, 128, 129, 192])])
    kv = rng.choice([n, rng.randint(1, 200), rng.choice([1, 31, 32, 33, 64, 96, 128, 160])])
    group, kv_heads = rng.choice([(1, 1), (1, 1), (2, 1), (1, 2)])
    p = Problem(
        rng.choice([1, 1, 2]),
        group * kv_heads,
        kv_heads,
        n,
        kv,
        rng.choice(HEAD_DIMS),
        rng.choice(["fp16", "bf16"]),
        drawn_preset(rng, kv),
        rng.choice(["bhnd", "bnhd"]),
        rng.choice([None, None, None, 0.3, 1.0]),
        rng.choice(["normal", "normal", "outlier"]),
        rng.getrandbits(31),
        rng.choice([(64, 64), (64, 64), (128, 64), (64, 128), (128, 128)]),
        rng.choice([False, True]),
    )
    kind = rng.choice(["preset", "preset", "long", "long", "dense", "blocks"])
    if kind == "preset":
        return Case(p)
    if kind == "long":  # several tiles, also of the largest; without a block size it takes spans
        n, kv = rng.randint(1, 700), rng.randint(1, 700)
        return Case(replace(p, seqlen=n, seqlen_kv=kv, mask=drawn_preset(rng, kv), mask_block=None))
    p = replace(p, mask="in files")
    return Case(p, drawn_entries(rng, p), kind == "blocks", rng.getrandbits(31))


# --- Running --------------------------------------------------------------------------------------


def failures(program: Program, directory: Path, cases: list[Case]) -> list[int]:
    """Numbers of the cases that fail, all run in one process."""
    directory.mkdir(parents=True)
    lines = []
    for i, case in enumerate(cases):
        words = case.with_files(directory / f"mask{i}").options()
        lines.append(" ".join([*words, "--output", str(directory / f"out{i}")]) + "\n")
    path = directory / "cases.txt"
    path.write_text("".join(lines))
    done = program.run("--check", "all", "--repeat", 0, "--cases", path, timeout=300)
    verdicts = dict(re.findall(r"^.*?:(\d+): (\w+): ", done.stdout, re.MULTILINE))
    # If the process dies, later cases have no result: the first case without one killed it.
    wrong = {i for i in range(len(cases)) if verdicts.get(str(i + 1)) != "right"}
    assert (done.returncode == RIGHT) == (not wrong), done.stderr
    return [i for i, case in enumerate(cases) if i in wrong or differs_from_numpy(case, directory / f"out{i}")]


def differs_from_numpy(case: Case, directory: Path) -> bool:
    p, result = case.problem, read_result(directory)
    return mistakes(attention(p, *rounded_inputs(p), case.dense()), result.o, result.lse) != []


# --- Tests ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [100, pytest.param(MASK_CASES, marks=pytest.mark.exhaustive)])
def test_random_masks(mask_step: Program, tmp_path: Path, count: int) -> None:
    rng = random.Random(MASK_SEED)
    cases = [drawn_case(rng) for _ in range(count)]
    failed = failures(mask_step, tmp_path / "all", cases)
    lines = (tmp_path / "all" / "cases.txt").read_text().splitlines()
    assert [lines[i] for i in failed] == [], f"MASK_SEED={MASK_SEED}"
