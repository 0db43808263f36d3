"""The attention layer of chapter 0: its check notices mistakes in every part, and says which part is wrong."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.lib.programs import RIGHT, STEP_DIR, USAGE, WRONG
from tests.lib.source_tree import SourceTree
from tests.lib.steps import having

LAYER, GEMM = "steps/foundations/f12_attention_layer.cu", "steps/foundations/gemm.cuh"
FORWARD, BACKWARD = having("layer")
PARTS = ["qkv", FORWARD, "output", "d-output", BACKWARD, "d-qkv"]
# The first part that is wrong, a file, what it says, and what it says where it is FAULTY.
FAULTS = [
    ("qkv", GEMM, "first < k_size;", "first < k_size - (FAULTY ? K : 0);"),
    ("qkv", GEMM, "if (row < rows &&", "if (row < rows - (FAULTY ? 1 : 0) &&"),
    ("qkv", GEMM, "lane % 4 * 2;", "lane % 4 * 2 - (FAULTY && lane == 5 && y == 64 ? 8 : 0);"),
    (FORWARD, LAYER, "= 1 / sqrtf(", "= (FAULTY ? 1.01f : 1) / sqrtf("),
    (FORWARD, LAYER, "return k_of(q) + problem.kv_heads", "return k_of(q) + (FAULTY ? 0 : 1) * problem.kv_heads"),
    (FORWARD, LAYER, "backward.k = k_of(qkv)", "backward.k = k_of(qkv) + (FAULTY ? problem.head_dim : 0)"),
    (FORWARD, LAYER, "= MASK_CAUSAL", "= FAULTY ? MASK_FULL : MASK_CAUSAL"),
    (FORWARD, LAYER, "= of_o;", "= FAULTY ? Strides{of_o.batch, n * head_dim, head_dim} : of_o;"),
    ("output", LAYER, "gemm<PLAIN, PLAIN>(o, w_o", "gemm<PLAIN, PLAIN>(o, FAULTY ? w_qkv : w_o"),
    ("d-output", LAYER, "(d_y, w_o, d_o, tokens", "(d_y, w_o, d_o, tokens - (FAULTY ? 8 : 0)"),
    ("d-output", LAYER, "d_w_o, channels, channels, tokens", "d_w_o, channels, channels, tokens - (FAULTY ? 1 : 0)"),
    (BACKWARD, LAYER, "backward.d_v = v_of(d_qkv)", "backward.d_v = FAULTY ? k_of(d_qkv) : v_of(d_qkv)"),
    (BACKWARD, LAYER, "backward.d_o = d_o;", "backward.d_o = FAULTY ? d_y : d_o;"),
    ("d-qkv", LAYER, "d_x, tokens, channels, qkv_width);", "d_x, tokens, channels, FAULTY ? channels : qkv_width);"),
    ("d-qkv", LAYER, "(x, d_qkv, d_w_qkv", "(FAULTY ? y : x, d_qkv, d_w_qkv"),
]


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program with all faults, of which the environment variable FAULT chooses one."""
    tree = SourceTree(tmp_path_factory.mktemp("layer"), built="cpu")
    for number, (_, path, old, new) in enumerate(FAULTS, 1):
        tree.add_fault(number, path, old, new)
    tree.made("BACKEND=cpu", "f12")
    return tree.root / "f12"


def judged(program: Path, n: int, fault: int) -> dict[str, str]:
    """What the program says of each part, with this fault."""
    environment = {**os.environ, "FAULT": str(fault)}
    done = subprocess.run([program, "-n", str(n)], env=environment, check=False, text=True, capture_output=True)
    said = dict(re.findall(r"^(\S+) +((?:right|WRONG).*)", done.stdout, re.MULTILINE))
    assert list(said) == PARTS, done.stdout + done.stderr
    assert done.returncode == (WRONG if "WRONG" in done.stdout else RIGHT)
    return said


@pytest.mark.cpu_only("it compiles for the CPU backend")
@pytest.mark.parametrize("fault", range(len(FAULTS) + 1))
def test_faults_are_found_in_their_part(fault: int, faulty: Path) -> None:
    """In a small layer, whose reference has nothing from the device, all that follows may be wrong too."""
    said = judged(faulty, 40, fault)
    wrong = [part for part in PARTS if said[part] != "right"]
    assert wrong[:1] == ([FAULTS[fault - 1][0]] if fault else []), said


@pytest.mark.cpu_only("it compiles for the CPU backend")
def test_a_large_layer_is_checked_part_by_part(faulty: Path) -> None:
    """Rows are sampled, and a part is right if it is so for what it got."""
    (fault,) = (number for number, (_, _, _, new) in enumerate(FAULTS, 1) if "1.01f" in new)
    said = judged(faulty, 520, fault)
    wrong = {FORWARD, BACKWARD}
    assert {part for part in PARTS if said[part].startswith("WRONG")} == wrong, said
    rows = {"d-output": 256, "d-qkv": 256}
    for part in set(PARTS) - wrong:
        assert said[part].split() == ["right", "24", "of", str(rows.get(part, 1040)), "rows"]


@pytest.mark.parametrize("part", PARTS)
def test_a_part_alone_gets_what_those_before_it_leave(part: str) -> None:
    options = ["-n", "40", "--stage", part, "--repeat", "1"]
    done = subprocess.run([STEP_DIR / "f12", *options], check=False, text=True, capture_output=True)
    assert done.returncode == RIGHT and done.stdout.splitlines()[1].split()[:2] == [part, "right"]


@pytest.mark.cpu_only("it calls make")
def test_other_steps_must_be_a_forward_and_a_backward_one(tmp_path: Path) -> None:
    tree = SourceTree(tmp_path, built="cpu")
    for steps in "04", "15 04", "04 nn":
        done = tree.make("BACKEND=cpu", f"LAYER={steps}", "f12")
        assert done.returncode == USAGE
        assert f'LAYER="{steps}": must be a forward and a backward step' in done.stderr
