"""The Makefile: what is built when, for which backend, and the errors when a program is missing.

All tests run in a copy of the sources, with fake compilers that only log their calls and write a
file. So the tests are fast and do not touch the real build.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.lib.source_tree import SourceTree
from tests.lib.steps import source_of, every_step

FIRST, SECOND, THIRD = every_step()[:3]
FIRST_FILE, SECOND_FILE = (source_of(name).path.stem for name in (FIRST, SECOND))
DIFF = f"diff{SECOND.removeprefix('step')}"
pytestmark = pytest.mark.cpu_only("it tests the Makefile, which is the same on a GPU machine")

# Calls the real compiler to list headers where a dependency file is requested, if the tree has a file
# `headers`. As target it writes a program that prints a .cu and says of cases that they are right, which
# is enough for rewrite_launches and tests.
COMPILER = """#!/bin/sh
test "$1" != --list-gpu-code || {{ printf 'sm_%s\\n' 75 80 86 89 90 100; exit; }}
case "$*" in *-fsyntax-only*) exit;; esac
echo "{name} $*" >> {log}
for word in "$@"; do
  case $previous in
    -o) target=$word;;
    -isystem) flags="$flags -isystem $word";;
  esac
  case $word in
    -MMD) dependencies=yes;;
    -I*|-std=*) flags="$flags $word";;
    *.c|*.cpp) source=$word;;
  esac
  previous=$word
done
test -z "$dependencies" -o ! -e headers ||
  {real} $flags -MM -MP -MT "$target" -MF "${{target%.o}}.d" "$source" || exit 1
test -z "$target" ||
  {{ printf '#!/bin/sh\\n# {name} made %s\\ncase $1 in *.cu) cat $1;; --cases) echo "1: right: all rows";; esac\\n' \\
     "$target" > "$target"
     chmod +x "$target"; }}
"""


def stand_in(directory: Path, name: str, log: Path) -> None:
    """A fake compiler that logs its calls."""
    path = directory / name
    # nvcc includes its own headers, which need not be installed here.
    real = "true" if name == "nvcc" else shutil.which(name)
    path.write_text(COMPILER.format(name=name, log=log, real=real))
    path.chmod(0o755)


class Tree(SourceTree):
    """A copy of the sources with fake compilers."""

    def __init__(self, directory: Path, compilers: bool = True) -> None:
        super().__init__(directory)
        self.log = directory / "calls"
        for name in ("gcc", "g++", "nvcc", "ld", "objcopy") if compilers else ():
            stand_in(self.bin, name, self.log)
        toolkit = directory / "include"  # next to a real nvcc
        toolkit.mkdir()
        (toolkit / "cuda_runtime_api.h").touch()

    def build(self, *words: str) -> list[str]:
        """Makes the targets, which must succeed; returns the calls of the compilers."""
        self.log.write_text("")
        self.made("COMMIT=test", *words)
        return self.log.read_text().splitlines()

    def program(self, name: str) -> str:
        return (self.root / name).read_text()


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def sources(calls: list[str]) -> set[str]:
    """The compiled files: common/host/io/npy.c, steps/stepNN_name.cu, ..."""
    compiled = {
        word for call in calls if " -c " in call for word in call.split() if re.search(r"\.(c|cpp|cu|S)$", word)
    }
    return {re.sub(r"^build/[^/]+/", "", word) for word in compiled}


def test_make_alone_lists_what_can_be_made(tree: Tree) -> None:
    done = tree.make()
    assert done.returncode == 0 and not tree.log.exists()
    for words in (
        "stepNN",
        *every_step(),
        "make all",
        "make deps",
        "make test ",
        "make test-unit",
        "make test-e2e",
        "make lint",
        "make clean",
        "BACKEND=cuda|cpu",
    ):
        assert words in done.stdout, words


def test_every_target_that_is_listed_exists(tree: Tree) -> None:
    listed = re.findall(r"^make ([\w-]+) ", tree.make().stdout, re.MULTILINE)
    assert {"all", "deps", "test", "clean"} <= set(listed)
    names = [{"stepNN": every_step()[0], "fNN": "f01"}.get(target, target) for target in listed]
    tree.made("-n", *names, "BACKEND=cpu")


def test_second_make_does_nothing(tree: Tree) -> None:
    (tree.root / "headers").touch()
    assert len(tree.build("all", "BACKEND=cpu")) > 10
    assert tree.build("all", "BACKEND=cpu") == []
    assert tree.build("all", "BACKEND=cpu", "-j4") == []


def test_header_rebuilds_what_includes_it(tree: Tree) -> None:
    (tree.root / "headers").touch()
    tree.build(FIRST, SECOND, "BACKEND=cpu")
    for header, rebuilt, not_rebuilt in (
        ("common/host/io/npy.h", {"common/host/io/npy.c", "common/host/io/inputs.c"}, "steps/"),
        ("common/attention.h", {"common/host/run.c", f"steps/{FIRST_FILE}.cpp"}, None),
        ("common/device/heads.cuh", {f"steps/{FIRST_FILE}.cpp", f"steps/{SECOND_FILE}.cpp"}, "common/host/"),
        ("common/simt/include/cuda_fp16.h", {f"steps/{FIRST_FILE}.cpp"}, None),
    ):
        later = (tree.root / FIRST).stat().st_mtime + 10
        os.utime(tree.root / header, (later, later))
        compiled = sources(tree.build(FIRST, SECOND, "BACKEND=cpu"))
        assert rebuilt <= compiled
        assert not_rebuilt is None or not [path for path in compiled if path.startswith(not_rebuilt)]
        os.utime(tree.root / header, (0, 0))


def test_other_flags_rebuild_everything(tree: Tree) -> None:
    everything = sources(tree.build(FIRST, "BACKEND=cpu"))
    assert sources(tree.build(FIRST, "BACKEND=cpu", "OPTIMISE=-O1")) == everything


def test_backends_never_mix(tree: Tree) -> None:
    """Each backend has its own directory; ./stepNN is of the backend that was built last."""
    cuda = (FIRST, "BACKEND=cuda", "ARCH=sm_90")
    cpu_calls = tree.build(FIRST, "BACKEND=cpu")
    assert tree.program(FIRST) == tree.program(f"build/cpu/{FIRST}")
    assert not [call for call in cpu_calls if "build/cuda" in call or call.startswith("nvcc")]

    cuda_calls = tree.build(*cuda)
    assert tree.program(FIRST) == tree.program(f"build/cuda-sm_90/{FIRST}")
    assert f"nvcc made build/cuda-sm_90/{FIRST}" in tree.program(FIRST)
    assert [call for call in cuda_calls if call.startswith("nvcc")]
    assert not [call for call in cuda_calls if "build/cpu" in call or "common/simt" in call]

    assert tree.build(FIRST, "BACKEND=cpu") == []
    assert tree.program(FIRST) == tree.program(f"build/cpu/{FIRST}")
    assert tree.build(*cuda) == []
    assert tree.program(FIRST) == tree.program(f"build/cuda-sm_90/{FIRST}")


@pytest.mark.parametrize("setting", ["DEBUG=2", "V=1 0"])
def test_setting_that_is_neither_0_nor_1(tree: Tree, setting: str) -> None:
    done = tree.make("all", "BACKEND=cpu", setting)
    assert done.returncode != 0 and done.stdout == ""
    assert re.fullmatch(rf"[^\n]*{setting}: must be 0 or 1[^\n]*\n", done.stderr)


@pytest.mark.parametrize("arch, unknown", [("90", "90"), ("sm_80 sm_1", "sm_1")])
def test_unknown_architecture(tree: Tree, arch: str, unknown: str) -> None:
    done = tree.make("all", "BACKEND=cuda", f"ARCH={arch}")
    assert done.returncode != 0 and done.stdout == ""
    assert re.fullmatch(
        rf'[^\n]*ARCH="[^\n]*": nvcc does not know {unknown}, must be one or more '
        r"of: sm_75 sm_80 sm_86 sm_89 sm_90 sm_100[^\n]*\n",
        done.stderr,
    )
    assert not (tree.root / "build").exists()


@pytest.mark.parametrize("archs, ptx", [("sm_90 sm_80", "90"), ("sm_90a sm_90", "90")])
def test_ptx_is_that_of_the_newest_architecture(tree: Tree, archs: str, ptx: str) -> None:
    """The result does not depend on the order of the list. Code for sm_90 is that for sm_90a."""
    calls = tree.build(FIRST, "BACKEND=cuda", f"ARCH={archs}")
    (call,) = [call for call in calls if f"steps/{FIRST_FILE}.cu" in call]
    assert re.findall(r"code=compute_(\w+)", call) == [ptx]
    named = {re.sub("^sm_90$", "sm_90a", arch) for arch in archs.split()}
    assert sorted(re.findall(r"code=(sm_\w+)", call)) == sorted(named)
    backwards = " ".join(reversed(archs.split()))
    assert tree.build(FIRST, "BACKEND=cuda", f"ARCH={backwards}") == []


def test_unknown_step(tree: Tree) -> None:
    done = tree.make("step99", "BACKEND=cpu")
    assert done.returncode != 0 and re.fullmatch(r"[^\n]*step99[^\n]*\n", done.stderr)


def test_two_files_for_one_step(tree: Tree) -> None:
    """Neither is built as stepNN; each can be built by its full name, as can other steps."""
    shutil.copy2(tree.root / f"steps/{SECOND_FILE}.cu", tree.root / f"steps/{SECOND}_mine.cu")
    for goal in (SECOND, "all", DIFF):
        done = tree.make(goal, "BACKEND=cpu")
        assert done.returncode != 0
        for words in (
            f"{SECOND} is the name of 2 files",
            f"steps/{SECOND}_mine.cu",
            f"steps/{SECOND_FILE}.cu",
            f"as in: make {SECOND}_",
        ):
            assert words in done.stderr, (goal, words)
    for name in (f"{SECOND}_mine", SECOND_FILE):
        assert f"steps/{name}.cpp" in sources(tree.build(name, "BACKEND=cpu"))
        assert (tree.root / name).exists()
    tree.build(THIRD, "BACKEND=cpu")


def test_new_step_rebuilds_nothing_else(tree: Tree) -> None:
    tree.build(SECOND, "BACKEND=cpu")
    shutil.copy2(tree.root / f"steps/{SECOND_FILE}.cu", tree.root / "steps/step98_mine.cu")
    assert sources(tree.build("step98", "BACKEND=cpu")) == {"steps/step98_mine.cpp", "checked/step98_mine.all.cpp"}
    assert "-Ibuild/cpu" not in (tree.root / "build/cpu/flags").read_text().split()


def test_diff_counts_added_code(tree: Tree) -> None:
    """Comments and blank lines do not count; the descriptor names the step to compare with."""
    after = '    .after = "step98",\n'
    (tree.root / "steps/step98_mine.cu").write_text(after)
    (tree.root / "steps/step98b_mine.cu").write_text("")
    (tree.root / "steps/step99_mine.cu").write_text(
        f"{after}\n/** Two lines\n * of comment. */\n// one\nint a; // two\n/* b */\n*c = {{}};\n\n"
    )
    lines = tree.make("diff99").stdout.splitlines()
    assert lines[0].startswith("--- steps/step98_mine") and lines[1].startswith("+++ steps/step99")
    assert lines[-1].startswith("2 lines of code added")
    done = tree.make("diff98b")
    assert done.returncode == 2 and "there is no step 98b that builds on another" in done.stderr


def test_diff_writes_nothing(tree: Tree) -> None:
    (tree.root / "build").write_text("a checkout may not be writable")
    done = tree.make(DIFF)
    assert done.returncode == 0 and done.stderr == ""
    assert re.search(r"\n[1-9]\d* lines of code added", done.stdout)


def path_without(directory: Path, missing: str) -> str:
    """A PATH with all programs of the system except this one."""
    for folder in ("/usr/bin", "/bin"):
        for program in Path(folder).iterdir():
            link = directory / program.name
            if program.name != missing and not link.is_symlink():
                link.symlink_to(program)
    return str(directory)


def test_missing_compiler(tmp_path: Path) -> None:
    """One line names the package, before anything is built."""
    tree = Tree(tmp_path, compilers=False)
    done = tree.make(FIRST, "BACKEND=cpu", path=path_without(tree.bin, "g++"))
    assert done.returncode != 0 and done.stdout == ""
    assert re.fullmatch(r"[^\n]*g\+\+ not found\. Install it: sudo apt-get install g\+\+[^\n]*\n", done.stderr)
    assert not (tree.root / "build").exists()


def test_tests_on_a_gpu_end_at_once_without_one(tree: Tree) -> None:
    """The programs exit with 77; only the first step is built to find out."""
    nvcc = tree.bin / "nvcc"
    nvcc.write_text(nvcc.read_text() + '\ntest -z "$target" || echo "exit 77" >> "$target"\n')
    done = tree.make("test-e2e", "BACKEND=cuda", "ARCH=sm_90")
    assert done.returncode != 0
    assert re.fullmatch(
        "BACKEND=cuda: the tests found no GPU; make test BACKEND=cpu needs none\n"
        r"make: \*\*\* [^\n]*need-gpu[^\n]*\n",
        done.stderr,
    )
    assert sorted(path.name for path in tree.root.glob("build/*/steps/*.o")) == [f"{FIRST_FILE}.o"]


# Installs nothing: logs the call, waits, and leaves a Python that does the same.
INSTALLER = """#!/bin/sh
echo "{name} $*" >> {log}
case "$*" in *install*|*venv*) sleep 0.2;; esac
case "$*" in *" breathe "*) exit 1;; *venv*) mkdir -p .venv/bin; cp {path} .venv/bin/python;; esac
"""


def test_deps_come_before_all_else_with_jobs_too(tree: Tree) -> None:
    """On a fresh machine `make deps test -j` must not compile while gcc is being installed."""
    for name in ("apt-get", "python3"):
        path = tree.bin / name
        path.write_text(INSTALLER.format(name=name, log=tree.log, path=path))
        path.chmod(0o755)
    (tree.bin / "dpkg-query").write_text("#!/bin/sh\n")
    (tree.bin / "dpkg-query").chmod(0o755)
    (tree.bin / "sudo").write_text('#!/bin/sh\nexec "$@"\n')
    (tree.bin / "sudo").chmod(0o755)
    calls = tree.build("deps", "test", "-j8", "BACKEND=cpu")
    installing = [i for i, call in enumerate(calls) if re.search(r"install|venv", call)]
    compiling = [i for i, call in enumerate(calls) if re.match(r"(gcc|g\+\+) .* -c ", call)]
    assert "install" in calls[installing[0]] and "pip install" in calls[installing[-1]]
    assert len(compiling) > 20
    assert max(installing) < min(compiling), calls[: max(installing) + 1]
    assert "-m pytest" in calls[-1]


def test_commit_is_that_of_the_source(tree: Tree) -> None:
    """Files of results and files unknown to git do not mark the commit as changed."""

    def commit_of_build() -> str:
        tree.made(FIRST, "BACKEND=cpu", "-s")
        return re.search(r'"(.*)"', (tree.root / "build/cpu/commit.h").read_text())[1]

    def git(*words: str) -> str:
        who = ("-c", "user.name=Test", "-c", "user.email=test@example.org")
        done = subprocess.run(
            ["git", *who, *words],
            cwd=tree.root,
            text=True,
            check=True,
            capture_output=True,
            env={**os.environ, **isolated},
        )
        return done.stdout.strip()

    # Independent of any repository around the copy, and of the user's settings.
    isolated = {"GIT_CEILING_DIRECTORIES": str(tree.root.parent), "GIT_CONFIG_GLOBAL": os.devnull}
    assert commit_of_build() == "unknown"
    git("init", "-q")
    (tree.root / ".gitignore").write_text(f"/build/\n/{FIRST}\n")
    results = tree.root / "plots" / "results"
    results.mkdir()
    (results / "records.jsonl").write_text("{}\n")
    git("add", "-A")
    git("commit", "-q", "-m", "all")
    head = git("rev-parse", "--short=12", "HEAD")
    assert commit_of_build() == head and len(head) == 12
    (results / "records.jsonl").write_text("{}\n{}\n")
    (tree.root / "new file").touch()
    assert commit_of_build() == head
    with (tree.root / "steps" / f"{SECOND_FILE}.cu").open("a") as source:
        source.write("\n")
    assert commit_of_build() == f"{head}-dirty"
