"""Where the sources of the steps and their builds are: a checkout, or what `pip install .` made of one."""

import fcntl
import os
import re
import shutil
import subprocess
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).resolve().parent


class StepError(ValueError):
    """A request that a step refuses; its text is the line that the program prints."""

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: no lines of the package."""
        return [f"{type(self).__name__}: {self}"]


class BuildError(StepError):
    """Sources that do not compile; its text begins with the first error of the compiler."""


@cache
def root() -> Path:
    """The folder with the Makefile."""
    checkout = HERE.parents[2]
    return checkout if (checkout / "steps").is_dir() else HERE / "gallery"


def is_installed() -> bool:
    return root().parent == HERE


@cache
def names() -> list[str]:
    """The names of all steps, without the word "step", in the order of reading."""
    return sorted({path.name[4:].partition("_")[0] for path in (root() / "steps").glob("step*_*.cu")})


def built(*files: str, backend: str = "cpu") -> list[Path]:
    """Files of a build, up to date: those of an installed package are, and others are left to make. `backend` is cpu,
    or that of a GPU as in cuda-sm_90. ATTENTION_STEPS_BUILD names another folder than build/cpu, as it is."""
    own, given = root() / "build" / backend, os.environ.get("ATTENTION_STEPS_BUILD")
    folder = Path(given) if given and backend == "cpu" else own
    paths = [folder / file for file in files]
    if not (is_installed() or folder != own) or not all(path.exists() for path in paths):
        make(*(str(path.relative_to(root())) for path in paths), backend=backend)
    return paths


def environment(backend: str = "cpu") -> dict[str, str]:
    """For make: it is called by nobody else, and compiles nothing again because of another commit or compiler."""
    workshop(backend)
    found = os.environ | {"MAKEFLAGS": "", "MAKELEVEL": "0", "WERROR": "0"}  # an unfinished kernel may have warnings
    if (commit := root() / "build" / backend / "commit.h").exists():
        found["COMMIT"] = commit.read_text().split('"')[1]
    if is_installed():
        _date_files()
        found["CXX"] = (root() / "compiler").read_text()
    return found


def workshop(backend: str = "cpu") -> Path:
    """The folder where make works. Raises BuildError if it cannot be written."""
    folder = root() / "build" / backend
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise BuildError(f"{folder}: cannot be written; to compile kernels, install the package where you may write")
    return folder


def make(*words: str, backend: str = "cpu") -> str:
    """Calls make, one process at a time. Returns what it prints."""
    if not shutil.which("make"):
        raise BuildError("make not found. Install it: sudo apt-get install make g++")
    name, _, arch = backend.partition("-")
    with open(workshop(backend) / "python.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(
            ["make", "--no-print-directory", f"-j{os.cpu_count()}", f"BACKEND={name}", *words]
            + ([f"ARCH={arch}"] if arch else []),
            cwd=root(),
            env=environment(backend),
            capture_output=True,
            errors="replace",
            check=False,
        )
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line and not line.startswith("make")]
        first = next((i for i, line in enumerate(said) if re.search("error|undefined (symbol|reference)", line)), 0)
        raise BuildError("\n".join(said[first : first + 8]) or f"make {' '.join(words)}: failed")
    return done.stdout


def _date_files() -> None:
    """pip gives all files the time of the installation, in no order, and make would compile everything again. So what
    was built becomes younger than all sources, once. What was made for an earlier installation stays older."""
    done, installed = root() / "dated", (root() / "compiler").stat().st_mtime
    if done.exists() and done.stat().st_mtime >= installed:
        return
    for file in metadata.files("attention_steps"):
        path = Path(file.locate()).resolve()
        if path.is_relative_to(root()):
            time = installed - 2 + path.is_relative_to(root() / "build")
            os.utime(path, (time, time))
    done.touch()
