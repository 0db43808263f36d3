"""2,000 random masks of all kinds in step 05: every one checked, the first failure made small.

MASK_SEED draws others, MASK_CASES more or fewer. The program checks every row against its reference
in double precision, whose meaning of the presets test_masks.py compares with NumPy's; one case in
twenty is compared with NumPy here too, and so is every mask in a file.
"""

import os
import random
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tests.lib import masks
from tests.lib.reference import attention, mistakes
from tests.lib.generators import rounded_inputs
from tests.lib.problem import Problem
from tests.lib.programs import MASK_SEED, RIGHT, WRONG, Program, read_result

STEP05 = Program("step05")
MASK_CASES = int(os.environ.get("MASK_CASES", "2000"))
# Wide heads take the CPU longest, and masks do not look at them: some forty cases of each do. The
# average is 40.
HEAD_DIMS = [32] * 48 + [64, 96, 128, 256]
SAMPLE = 20  # one case in so many is compared with NumPy, whatever its mask


@dataclass(frozen=True)
class Case:
    """A problem; its mask is a preset, or `entries`, [B, H, Nq, Nkv], put into files."""

    problem: Problem
    entries: np.ndarray | None = None
    as_blocks: bool = False  # a directory in disorder, not a dense file
    order: int = 0  # seed of the disorder

    def dense(self) -> np.ndarray:
        return masks.preset(self.problem) if self.entries is None else self.entries

    def with_files(self, path: Path) -> Problem:
        """The problem as the program gets it; what it reads is written to `path`."""
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
    return rng.choice([
        "full", "causal", "empty", f"window:{rng.randint(1, kv_len + 1)}",
        f"document:{','.join(map(str, lengths))}" if len(lengths) > 1 else "document:1",
        f"document:{rng.randint(1, min(kv_len, 9))}", f"prefix:{rng.randint(0, kv_len)}",
        f"interleaved:{rng.getrandbits(32)}", f"dilated:{rng.randint(1, 70)}", f"blocks:{density}",
        f"random:{density}"])


def drawn_entries(rng: random.Random, p: Problem) -> np.ndarray:
    """Blocks of 32 x 32, each with a density of its own, in which whole rows may be hidden."""
    numbers = np.random.default_rng(rng.getrandbits(32))
    shape = (rng.choice([1, p.batch]), rng.choice([1, p.heads]), p.seqlen, p.seqlen_kv)
    density = numbers.choice([0, 0, 0.02, 0.5, 0.98, 1, 1], (*shape[:2], 7, 7))
    density = density.repeat(32, 2).repeat(32, 3)[:, :, :p.seqlen, :p.seqlen_kv]
    dense = numbers.random(shape) < density
    return dense & (numbers.random(shape[:3]) < rng.choice([0.5, 1]))[..., None]


def drawn_case(rng: random.Random) -> Case:
    n = rng.choice([rng.randint(1, 200), rng.choice([1, 63, 64, 65, 127, 128, 129, 192])])
    kv = rng.choice([n, rng.randint(1, 200), rng.choice([1, 31, 32, 33, 64, 96, 128, 160])])
    group, kv_heads = rng.choice([(1, 1), (1, 1), (2, 1), (1, 2)])
    p = Problem(rng.choice([1, 1, 2]), group * kv_heads, kv_heads, n, kv,
                rng.choice(HEAD_DIMS), rng.choice(["fp16", "bf16"]), drawn_preset(rng, kv),
                rng.choice(["bhnd", "bnhd"]), rng.choice([None, None, None, -0.3, 1.0]),
                rng.choice(["normal", "normal", "outlier"]), rng.getrandbits(31),
                rng.choice([(64, 64), (64, 64), (128, 64), (64, 128)]), rng.choice([1, 2]))
    kind = rng.choice(["preset", "preset", "preset", "dense", "blocks"])
    if kind == "preset":
        return Case(p)
    p = replace(p, mask="in files")
    return Case(p, drawn_entries(rng, p), kind == "blocks", rng.getrandbits(31))


# --- Running --------------------------------------------------------------------------------------

def failures(program: Program, directory: Path, cases: list[Case]) -> list[int]:
    """Numbers of the cases that fail, all run in one process."""
    directory.mkdir(parents=True)
    compared = [i for i, case in enumerate(cases) if case.entries is not None or i % SAMPLE == 0]
    lines = []
    for i, case in enumerate(cases):
        words = case.with_files(directory / f"mask{i}").options()
        words += ["--output", str(directory / f"out{i}")] if i in set(compared) else []
        lines.append(" ".join(words) + "\n")
    path = directory / "cases.txt"
    path.write_text("".join(lines))
    done = program.run("--check", "all", "--repeat", 0, "--cases", path, timeout=300)
    verdicts = dict(re.findall(r"^.*?:(\d+): (\w+): ", done.stdout, re.MULTILINE))
    # A process that dies says nothing of the rest: the case that killed it is the first without.
    wrong = {i for i in range(len(cases)) if verdicts.get(str(i + 1)) != "right"}
    assert (done.returncode == RIGHT) == (not wrong), done.stderr
    return sorted(wrong | {i for i in compared if i not in wrong and
                           differs_from_numpy(cases[i], directory / f"out{i}")})


def differs_from_numpy(case: Case, directory: Path) -> bool:
    p, result = case.problem, read_result(directory)
    return mistakes(attention(p, *rounded_inputs(p), case.dense()), result.o, result.lse) != []


# --- Shrinking ------------------------------------------------------------------------------------

def cut_preset(mask: str, kv_len: int) -> str:
    """The same mask of fewer keys: some presets are refused if they ask for more than there are."""
    name, _, argument = mask.partition(":")
    if name == "document" and "," in argument:
        ends = [end for end in masks.document_ends(argument, kv_len) if end < kv_len]
        lengths = np.diff([0, *ends, kv_len])
        return "document:" + (",".join(map(str, lengths)) if ends else "1")
    return f"{name}:{min(int(argument), kv_len)}" if name in ("document", "prefix") else mask


def smaller(case: Case) -> Iterator[Case]:
    """The case with one thing made simpler, the boldest steps first."""
    p = case.problem

    def changed(**fields: object) -> Case:
        changed_p = replace(p, **fields)
        entries = case.entries
        if entries is not None:
            entries = entries[:changed_p.batch, :changed_p.heads, :changed_p.seqlen,
                              :changed_p.seqlen_kv]
        return replace(case, problem=changed_p, entries=entries)

    if p.batch > 1:
        yield changed(batch=1)
    if p.heads > 1:
        yield changed(heads=1, kv_heads=1)
    for name in ("seqlen", "seqlen_kv"):
        n = getattr(p, name)
        for length in sorted({1, n // 2, n // 64 * 64, n - 16, n - 4, n - 1}):
            if 1 <= length < n:
                kv_len = length if name == "seqlen_kv" else p.seqlen_kv
                yield changed(**{name: length, "mask": cut_preset(p.mask, kv_len)})
    for field, value in (("dtype", "fp16"), ("layout", "bhnd"), ("scale", None),
                         ("input", "normal"), ("head_dim", 32), ("mask_block", (64, 64)),
                         ("shared_kv", True), ("seed", 1)):
        if getattr(p, field) != value:
            yield changed(**{field: value})
    if case.entries is None:
        if p.mask not in ("full", "causal", "empty"):
            yield from (changed(mask=mask) for mask in ("causal", "full"))
        return
    if case.as_blocks:
        yield replace(case, as_blocks=False)
    for axis in (2, 3):
        for half in np.array_split(np.arange(case.entries.shape[axis]), 2):
            fuller = case.entries.copy()
            fuller[(slice(None),) * axis + (half,)] = True
            if not np.array_equal(fuller, case.entries):
                yield replace(case, entries=fuller)


def shrink(case: Case, fails: Callable[[Case], bool], tries: int = 200) -> Case:
    """The smallest case that still fails, going from one to the next smaller one."""
    candidates = smaller(case)
    for _ in range(tries):
        candidate = next(candidates, None)
        if candidate is None:
            break
        if fails(candidate):
            case, candidates = candidate, smaller(candidate)
    return case


def report(program: Program, directory: Path, case: Case) -> str:
    """The command line of a case that fails, made as small as it gets."""
    count = iter(range(10**6))
    small = shrink(case, lambda c: failures(program, directory / f"try{next(count)}", [c]) != [])
    words = small.with_files(directory / "smallest").options()
    return shlex.join([str(program.path), "--check", "all", *words])


# --- Tests ----------------------------------------------------------------------------------------

def test_random_masks(tmp_path: Path) -> None:
    rng = random.Random(MASK_SEED)
    cases = [drawn_case(rng) for _ in range(MASK_CASES)]
    print(f"MASK_SEED={MASK_SEED} MASK_CASES={MASK_CASES}")
    failed = failures(STEP05, tmp_path / "all", cases)
    assert failed == [], (f"MASK_SEED={MASK_SEED}: {len(failed)} of {len(cases)} cases fail; the "
                          f"first, made small:\n{report(STEP05, tmp_path, cases[failed[0]])}")


def test_all_kinds_are_drawn() -> None:
    rng = random.Random(MASK_SEED)
    cases = [drawn_case(rng) for _ in range(500)]
    names = {case.problem.mask.partition(":")[0] for case in cases if case.entries is None}
    assert names == {"full", "causal", "empty", "window", "document", "prefix", "interleaved",
                     "dilated", "blocks", "random"}
    assert {case.as_blocks for case in cases if case.entries is not None} == {True, False}
    assert {case.problem.head_dim for case in cases} == {32, 64, 96, 128, 256}
    rows = [case.dense().any(axis=-1) for case in cases]
    assert any(not row.all() and row.any() for row in rows)


def test_smaller_cases_are_valid(tmp_path: Path) -> None:
    """A case that shrinks into one that is refused would hide what failed."""
    rng = random.Random(MASK_SEED)
    cases = [smaller_case for _ in range(40) for smaller_case in smaller(drawn_case(rng))]
    assert len(cases) > 400
    assert failures(STEP05, tmp_path / "all", rng.sample(cases, 100)) == []


def test_failing_cases_shrink() -> None:
    """To the least that this imaginary fault needs: a 65th query, two heads, a mask of blocks."""
    def fails(case: Case) -> bool:
        p = case.problem
        return (p.seqlen > 64 and p.seqlen_kv > 2 and p.heads > 1 and case.as_blocks
                and not case.entries[0, 0, 3, 2])

    rng = random.Random(MASK_SEED)
    case = next(case for case in iter(lambda: drawn_case(rng), None) if fails(case))
    small = shrink(case, fails).problem
    assert (small.batch, small.seqlen, small.seqlen_kv, small.heads) == (1, 65, 3, 2)
    assert (small.head_dim, small.dtype, small.scale, small.input) == (32, "fp16", None, "normal")


def test_a_wrong_program_is_noticed_and_its_case_printed(tmp_path: Path) -> None:
    """Step 05, but that it calls wrong what has more than 64 keys."""
    script = tmp_path / "step05"
    script.write_text(f"""#!/usr/bin/env python3
import re, subprocess, sys
done = subprocess.run(["{STEP05.path}", *sys.argv[1:]], capture_output=True, text=True)
said = re.sub(r"right(: .*--seqlen-kv (?:6[5-9]|[7-9].|1..) )", r"WRONG\\1", done.stdout)
print(said, end="")
sys.exit(done.returncode or said != done.stdout)
""")
    script.chmod(0o755)
    program = Program("step05", tmp_path)
    p = Problem(2, 4, 2, 100, 180, 64, "bf16", "window:30", mask_block=(64, 64))
    cases = [Case(p), Case(replace(p, seqlen_kv=64)), Case(p)]
    assert WRONG == 1 and failures(program, tmp_path / "all", cases[1:]) == [1]
    line = report(program, tmp_path, cases[2])
    assert "--batch 1 --heads 1 --kv-heads 1 --seqlen 1 --seqlen-kv 65 --head-dim 32" in line
    assert "--mask causal" in line
