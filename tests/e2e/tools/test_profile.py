"""make profile, make sass and make ptx, as far as they need no GPU, with fake tools."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lib.kinds import HOPPER_STEPS, MMA_STEPS, NAIVE
from tests.lib.programs import NO_GPU, REPOSITORY, RIGHT, USAGE
from tests.lib.source_tree import SourceTree
from tests.lib.steps import every_step
from tests.e2e.make.test_make import Tree

from plots.tools import machine_code
from plots.tools import profile as profiler
from plots.tools.profile import BUSY, METRICS

# --- Nsight Compute -------------------------------------------------------------------------------

# Example launches, in the units that ncu chooses.
COUNTED = {metric: ("10.5", "%") for metric in METRICS} | {
    BUSY["tensor cores (mma)"]: ("61.25", "%"),
    profiler.TIME: ("1.76", "ms"),
    profiler.DEVICE_BYTES: ("269.48", "Mbyte"),
    profiler.L2_BYTES: ("8.65", "Gbyte"),
    profiler.WAVEFRONTS: ("1,677,721,600", ""),
    profiler.CONFLICTS: ("419,430,400", ""),
    **dict.fromkeys(profiler.SPILLS, ("0", "inst")),
    profiler.REGISTERS: ("240", "register/thread"),
}
KERNEL = "void attention_kernel<__half, 128>(Problem, Tensors)"


def raw_page(*launches: tuple[str, dict[str, tuple[str, str]]]) -> str:
    """A page as ncu prints it: a line of names, a line of units, a line for each launch."""
    names = ["ID", "Kernel Name", *METRICS]
    units = ["", "", *(launches[0][1][metric][1] for metric in METRICS)]
    rows = [[str(i), name, *(counted[metric][0] for metric in METRICS)] for i, (name, counted) in enumerate(launches)]
    lines = [",".join(f'"{cell}"' for cell in cells) for cells in (names, units, *rows)]
    return "==PROF== Connected\n" + "\n".join(lines) + "\n"


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A program, and a fake ncu that prints the file `page` and logs its calls."""
    page = tmp_path / "page"
    page.write_text(raw_page((KERNEL, COUNTED)))
    write(tmp_path / "step98", 'echo "kernel     attention: 2048 blocks of 128 threads"')
    write(tmp_path / "bin" / "ncu", f'echo "$@" >> {tmp_path}/calls\ncase $1 in --import) cat {page};; esac')
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def profile(tools: Path, *options: str, path: str | None = None) -> subprocess.CompletedProcess:
    words = [sys.executable, "-m", "plots.tools.profile", tools / "step98", *options]
    env = {**os.environ, "PATH": path or f"{tools / 'bin'}:{os.environ['PATH']}"}
    return subprocess.run(words, env=env, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)


def test_profile_explains_the_counts(tools: Path) -> None:
    done = profile(tools, "-n", "4096", "-m", "causal")
    assert (done.returncode, done.stderr) == (RIGHT, "")
    lines = done.stdout.splitlines()
    assert lines[:4] == [
        "step98     -n 4096 -m causal",
        "kernel     attention_kernel<__half, 128>, 240 registers a thread",
        "time       1.760 ms at the base clock, under the profiler",
        "busy        61.2 % of the peak of tensor cores (mma)",
    ]
    assert len([line for line in lines if " % of the peak of " in line]) == len(BUSY)
    assert lines[-4:] == [
        "warps       10.5 % of those that a multiprocessor can hold",
        "traffic    269.48 MB of device memory (153 GB/s), 8.65 GB through L2",
        "shared     1.68 G wavefronts, 25.0 % of them by bank conflicts",
        "spills     none",
    ]


def test_ncu_is_asked_for_the_forward_pass_alone(tools: Path) -> None:
    write(tools / "step98", "echo 'kernel     scores: 1\nkernel     softmax: 2\nnote'")
    assert profile(tools, "-d", "64").returncode == RIGHT
    count, show = (tools / "calls").read_text().splitlines()
    assert "--kernel-name regex:^(scores|softmax)_kernel --launch-count 2 " in count
    assert count.endswith(f"{tools}/step98 -d 64 -c none -r 0")
    assert set(re.search(r"--metrics (\S+)", count)[1].split(",")) == set(METRICS)
    assert re.fullmatch(r"--import \S+/report.ncu-rep --page raw --csv", show)


def test_every_launch_is_reported(tools: Path) -> None:
    spilling = COUNTED | {
        profiler.SPILLS[0]: ("3,000", "inst"),
        profiler.WAVEFRONTS: ("0", ""),
        profiler.TIME: ("1.5", "us"),
    }
    slower = {name: (value, spilling[name][1]) for name, (value, _) in COUNTED.items()}
    (tools / "page").write_text(raw_page(("scores_kernel(int)", spilling), (KERNEL, slower)))
    stdout = profile(tools).stdout
    assert re.findall(r"^kernel +(.*),", stdout, re.MULTILINE) == ["scores_kernel", "attention_kernel<__half, 128>"]
    assert "spills     3.00 k accesses of local memory\n" in stdout
    assert stdout.count("\nshared ") == 1 and "time       0.002 ms" in stdout


@pytest.mark.parametrize(
    "program, ncu, code, said",
    [
        ("echo 'step98: no GPU: none found' >&2; exit 77", "", NO_GPU, "step98: no GPU: none found"),
        ("echo 'step98: --seqlen x: must be' >&2; exit 2", "", USAGE, "step98: --seqlen x: must be"),
        (
            "",
            "echo '==ERROR== ERR_NVGPUCTRPERM - The user does not have permission'; exit 1",
            3,
            "ncu may not read the counters of this GPU: run it as root, or see https://.*",
        ),
        ("", "echo '==PROF== x'; echo '==ERROR== Failed to find metric'; exit 1", 1, "Failed to find metric"),
        ("", "exit 0", 3, "ncu counted no kernel"),
    ],
)
def test_errors_of_the_tools_are_one_line(tools: Path, program: str, ncu: str, code: int, said: str) -> None:
    if program:
        write(tools / "step98", program)
    if ncu:
        write(tools / "bin" / "ncu", ncu)
    done = profile(tools)
    assert (done.returncode, done.stdout) == (code, "")
    assert re.fullmatch(f"profile: {said}\n", done.stderr)


# --- Machine code ---------------------------------------------------------------------------------

NVDISASM = """\t.target\tsm_90
//--------------------- .text._Z13scores_kernelv --------------------------
.text._Z13scores_kernelv:
\t//## File "steps/step98.cu", line 45
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P0 HMMA.16816.F32 R4, R8, R2, R4 ;
        /*0020*/              @UP1 LDSM.16.M88.4 R8, [R3] ;
.L_x_1:
        /*0030*/                   MUFU.EX2 R2, -R2 ;
        /*0040*/                   STL [R1], R2 ;
.text._Z13output_kernelv:
        /*0000*/                   EXIT ;
"""
SUMMARY = """scores_kernel: 5 instructions: 1 mma, 1 ldmatrix, 1 exp and the like, 1 local (spills)
output_kernel: 1 instructions
"""


def test_instructions_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "listing"
    path.write_text(NVDISASM)
    monkeypatch.setattr(sys, "argv", ["", str(path)])
    assert machine_code.main() == 0
    assert capsys.readouterr().out == SUMMARY
    # Without c++filt names stay mangled.
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine_code.main() == 0
    assert capsys.readouterr().out == re.sub(r"(?m)^(\w+):", r"_Z13\1v:", SUMMARY)


# --- make -----------------------------------------------------------------------------------------

makefile = pytest.mark.cpu_only("it tests the Makefile, which is the same on a GPU machine")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@makefile
@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_ptx_needs_nvcc_alone(tree: Tree, backend: str) -> None:
    step = MMA_STEPS[0]
    (call,) = tree.build("ptx", f"STEP={step[4:]}", f"BACKEND={backend}", "ARCH=sm_80 sm_89")
    assert call.startswith("nvcc ") and f" -ptx -arch=sm_89 steps/{step}_" in call
    assert f"build/{step}_sm_89.ptx" in call and "-gencode" not in call and " -Icommon " in call


@makefile
def test_listings_of_hopper_steps_have_its_instructions(tree: Tree) -> None:
    """Without 90a, wgmma and TMA are left out."""
    write(tree.bin / "nvdisasm", "")
    (tree.bin / "python3").symlink_to("/bin/true")
    for target in ("ptx", "sass"):
        step = HOPPER_STEPS[0]
        (call,) = tree.build(target, f"STEP={step[4:]}", "BACKEND=cpu")
        assert f" -arch=sm_90a steps/{step}_" in call and f"build/{step}_sm_90." in call


@makefile
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")
def test_ptx_is_written_without_a_gpu(tmp_path: Path) -> None:
    tree = SourceTree(tmp_path)
    done = tree.make("ptx", f"STEP={NAIVE[4:]}", "BACKEND=cpu", "ARCH=sm_80")
    assert done.returncode == 0 and done.stderr == ""
    assert "fma.rn.f32" in (tree.root / f"build/{NAIVE}_sm_80.ptx").read_text()


@makefile
def test_sass_says_what_is_missing(tree: Tree) -> None:
    done = tree.make("sass", f"STEP={NAIVE[4:]}", "BACKEND=cpu", path=f"{tree.bin}:/usr/bin:/bin")
    assert done.returncode != 0 and not tree.log.exists()
    assert done.stderr.startswith("make sass: neither nvdisasm nor cuobjdump found. Install one: ")


@makefile
@pytest.mark.parametrize("target", ["ptx", "sass", "profile"])
@pytest.mark.parametrize("step", ["", "99"])
def test_unknown_step(tree: Tree, target: str, step: str) -> None:
    done = tree.make(target, f"STEP={step}", "BACKEND=cpu")
    assert done.returncode != 0 and done.stdout == ""
    numbers = " ".join(name.removeprefix("step") for name in every_step())
    assert done.stderr.startswith(f"make {target}: STEP={step}: must be one of: {numbers}\nmake: ")


@makefile
def test_make_profile_passes_the_problem_on(tree: Tree) -> None:
    """The program is built first, with fake compilers; a fake ncu profiles it."""
    write(tree.bin / "python3", f'echo "python3 $*" >> {tree.log}')
    step, other = MMA_STEPS[:2]
    calls = tree.build("profile", f"STEP={step[4:]}", "BACKEND=cuda", "ARCH=sm_90", "PROBLEM=-n 64 -m causal")
    assert calls[-1] == f"python3 -m plots.tools.profile build/cuda-sm_90/{step} -n 64 -m causal"
    assert not [call for call in calls if f"steps/{other}" in call]
