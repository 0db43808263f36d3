"""The parts of `make activations` that need none of its packages."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.lib.reference import attention
from tests.lib.problem import Problem
from tests.lib.programs import REPOSITORY
from tests.lib.source_tree import SourceTree

TOOL = REPOSITORY / "tests" / "activations"
from tests.activations import fixtures
from tests.activations.layers import Activations, attend, join_heads, split_heads
from tests.activations.rotary import halves_from_neighbours, rotate_halves, rotate_neighbours
from tests.activations.texts import packed_positions, page_layout

BASE = 10_000.0
rng = np.random.default_rng(6)


# --- The rotary embedding -------------------------------------------------------------------------

def test_rotation_is_that_of_complex_numbers() -> None:
    """Columns d and d + D/2 are the parts of a number that exp(i position base^(-2d/D)) turns."""
    x = rng.normal(size=(2, 5, 8))
    positions = np.array([0, 1, 2, 7, 1000])
    turns = np.exp(1j * positions[:, None] * BASE ** (-2 * np.arange(4) / 8))
    turned = (x[..., :4] + 1j * x[..., 4:]) * turns
    expected = np.concatenate([turned.real, turned.imag], axis=-1)
    assert np.allclose(rotate_halves(x, positions, BASE), expected, rtol=0, atol=1e-12)


def test_scores_depend_on_distances_only() -> None:
    q, k = rng.normal(size=(2, 1, 6, 64))
    positions = np.arange(6)
    near, far = (rotate_halves(q, at, BASE) @ rotate_halves(k, at, BASE).transpose(0, 2, 1)
                 for at in (positions, positions + 500))
    assert np.allclose(near, far, rtol=0, atol=1e-9)
    assert not np.allclose(near, q @ k.transpose(0, 2, 1), atol=0.1)


def test_stored_weights_are_put_in_order() -> None:
    """Scores of permuted weights with neighbours turned are those of the ordered with halves."""
    x = rng.normal(size=(7, 12))
    stored = [rng.normal(size=(3 * 8, 12)) for _ in "qk"]
    positions = np.arange(7)

    def scores(rotate, weights) -> np.ndarray:
        q, k = (rotate(split_heads(x @ w.T, 3), positions, BASE) for w in weights)
        return q @ k.transpose(0, 2, 1)

    expected = scores(rotate_neighbours, stored)
    ordered = [halves_from_neighbours(w, 3) for w in stored]
    assert np.allclose(scores(rotate_halves, ordered), expected, rtol=0, atol=1e-9)
    assert not np.allclose(scores(rotate_halves, stored), expected, atol=0.1)


# --- Attention and its files ----------------------------------------------------------------------

def activations(length: int = 20) -> Activations:
    q, k, v = (rng.normal(size=(heads, length, 32)) for heads in (6, 2, 2))
    return attend(q, k, v, np.tri(length, dtype=bool), np.arange(6) // 3)


def test_attention_is_that_of_the_programs() -> None:
    a = activations()
    p = Problem(heads=6, kv_heads=2, seqlen=20, head_dim=32, mask="causal")
    expected = attention(p, *(x[None].astype(np.float64) for x in (a.q, a.k, a.v)))
    assert a.q.dtype == a.k.dtype == a.v.dtype == np.float16
    # The programs hold the scale in single precision.
    assert np.allclose(a.o, expected.o[0], rtol=0, atol=1e-6)
    assert np.allclose(a.lse, expected.lse[0], rtol=0, atol=1e-6)


def test_heads_are_split_and_joined() -> None:
    x = rng.normal(size=(5, 12))
    assert np.array_equal(split_heads(x, 3)[1], x[:, 4:8])
    assert np.array_equal(join_heads(split_heads(x, 3)), x)


def test_what_is_written(tmp_path: Path) -> None:
    a = activations()
    fixtures.write(tmp_path / "layer", a, {"model": "none", "mask": "causal"})
    for name in "qkv":
        stored = np.load(tmp_path / "layer" / f"{name}.npy")
        assert stored.dtype == np.dtype("<f2") and np.array_equal(stored[0], getattr(a, name))
    known = fixtures.provenance_of(tmp_path / "layer")
    rows = known["rows_of_o"]
    assert (known["model"], rows[0], rows[-1]) == ("none", 0, 19)
    assert known["tool_version"] == fixtures.TOOL_VERSION
    o, lse = (np.load(tmp_path / "layer" / f"{name}_rows.npy") for name in ("o", "lse"))
    assert np.array_equal(o[0], a.o[:, rows].astype("<f4"))
    assert np.array_equal(lse[0], a.lse[:, rows].astype("<f4"))


def test_what_is_kept_and_compared(tmp_path: Path) -> None:
    fresh, kept = tmp_path / "fresh", tmp_path / "kept"
    for name in ("one", "two"):
        fixtures.write(fresh / name, activations(), {"mask": "causal"})
    (kept / "texts").mkdir(parents=True)
    (kept / "texts" / "poem.txt").write_text("a\n")
    fixtures.keep(fresh, kept, ["one"])
    assert fixtures.changed_files(kept) == []
    assert fixtures.differences(fresh, kept, ["one"]) == []
    assert not (kept / "two").exists()
    np.save(fresh / "one" / "v.npy", np.zeros(3))
    assert fixtures.differences(fresh, kept, ["one"]) == ["one/v.npy"]
    fixtures.keep(fresh, kept, ["one"])
    assert fixtures.differences(fresh, kept, ["one"]) == []
    (kept / "one" / "o_rows.npy").unlink()
    (kept / "one" / "more.npy").write_text("")
    assert fixtures.differences(fresh, kept, ["one"]) == ["one/more.npy", "one/o_rows.npy"]
    assert len(fixtures.differences(fresh, kept, ["two"])) == 6


# --- Texts and packages ---------------------------------------------------------------------------

def test_positions_start_anew() -> None:
    assert packed_positions([2, 3]).tolist() == [0, 1, 0, 1, 2]


def test_a_page_must_hold_its_pictures() -> None:
    assert page_layout([5, 6, 7, 8], 700) == [
        ("text", 5), ("image", 196), ("text", 6), ("image", 196), ("text", 7), ("image", 196),
        ("text", 94)]
    with pytest.raises(AssertionError, match="more than 600 tokens"):
        page_layout([5, 6, 7], 600)


def test_every_package_has_one_version() -> None:
    lines = [line for line in (TOOL / "requirements.txt").read_text().splitlines()
             if not line.startswith("#")]
    assert len(lines) >= 6 and all(re.fullmatch(r"[\w-]+==[\d.]+", line) for line in lines)


# --- What is missing ------------------------------------------------------------------------------

PYTHON = """#!/bin/sh
case "$*" in
  {fails}) exit 1;;
  --version) echo "Python 3.10.12";;
  *venv*) mkdir -p build/activations/env/bin && cp "$0" build/activations/env/bin/python;;
esac
"""


@pytest.mark.parametrize("fails, said, asked_of_pip", [
    ("*version_info*", "activations: needs Python 3.11 or later, not Python 3.10.12", False),
    ("*ensurepip*", "activations: python3 cannot make environments. Install what it lacks: "
                    "sudo apt-get install python3-venv", False),
    ("*pip\\ install*", "activations: pip could not fetch all of "
                        "tests/activations/requirements.txt; it needs a network for that", True),
    ("*activations.dump*", "", True)])
def test_what_make_says_is_missing(tmp_path: Path, fails: str, said: str,
                                   asked_of_pip: bool) -> None:
    """With a Python that fails at one thing."""
    tree = SourceTree(tmp_path)
    python = tree.bin / "python3"
    python.write_text(PYTHON.format(fails=fails))
    python.chmod(0o755)
    done = tree.make("activations")
    first, *rest = done.stderr.splitlines()
    assert done.returncode != 0 and ([first] == [said] if said else not rest)
    assert ("pip install" in done.stdout) == asked_of_pip
    assert not (tree.root / "build/activations/env/installed").exists() or fails == "*activations.dump*"


def test_packages_that_are_missing_are_named(tmp_path: Path) -> None:
    """By the tool itself, for who runs it without make."""
    tree = SourceTree(tmp_path)
    (tree.root / "tests/activations/llama.py").write_text("import gguf_that_is_missing\n")
    (tree.root / "tests/activations/bert.py").write_text("Bert = None\n")
    done = subprocess.run([sys.executable, "-m", "tests.activations.dump", tmp_path / "out"],
                          cwd=tree.root, text=True, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == ("activations: Python needs gguf_that_is_missing. `make activations` "
                           "installs it, in an environment of its own\n")
    assert not (tmp_path / "out").exists()
