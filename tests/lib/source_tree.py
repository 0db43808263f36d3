"""A copy of the sources in which tests may change files and run make."""

import os
import shutil
import subprocess
from pathlib import Path

from tests.lib.configs import configs_of, with_configs
from tests.lib.programs import REPOSITORY, Program

# Settings of the run that would change what is tested; tests/conftest.py keeps no others.
SETTINGS = ("BACKEND", "WERROR")

GENERATED = shutil.ignore_patterns("__pycache__", ".pytest_cache", "results")
NOT_NEEDED = shutil.ignore_patterns(
    "unit", "plain", "counts", "under_test", "gpu", "explorers", "events", "exercises", "judge*", "*.so", "step[0-9]*"
)
# A setting of make: the program lacks the checking build of the step, which takes --report.
PLAIN = "checked_object="
# The checking build serves as the plain one, too.
CHECKED = (PLAIN, "KERNEL_CHECKS=$(CHECKING)", "LINK_FLAGS=-fopenmp -lpthread -lm -Xlinker --defsym=step_checked=step")

# Of a program with several faults, the environment variable FAULT says which one it has.
CHOICE = """#ifndef FAULT_CUH
#define FAULT_CUH
#include <cuda_runtime.h>
#include <stdlib.h>
static __constant__ int fault = getenv("FAULT") != NULL ? atoi(getenv("FAULT")) : 0;
#endif
"""


class SourceTree:
    """`root` is the copy; programs in `bin` come before those of the system.

    `built` names a folder of build/ whose objects are copied as well: those that are up to date are
    not compiled again.
    """

    def __init__(self, directory: Path, built: str | None = None) -> None:
        self.root = directory / "tree"
        self.bin = directory / "bin"
        self.bin.mkdir()
        for name in ("common", "steps", "tests", "plots", "docs"):
            shutil.copytree(REPOSITORY / name, self.root / name, ignore=GENERATED)
        shutil.copy2(REPOSITORY / "Makefile", self.root)
        if built and (REPOSITORY / "build" / built).is_dir():
            shutil.copytree(REPOSITORY / "build" / built, self.root / "build" / built, ignore=NOT_NEEDED)

    def compile_only(self, step: str, *head_dims: int, element: str = "__half", configs: str = "") -> None:
        """Restricts a step to the configurations of its kernel for these head dimensions and this
        element type, "" for both; or to these `configs`."""
        (file,) = (self.root / "steps").glob(f"{step}_*.cu")
        text = file.read_text()
        file.write_text(with_configs(text, configs or configs_of(text, head_dims, element)))

    def replace(self, path: str, old: str, new: str) -> None:
        """Replaces every `old` in a source file; there must be at least one."""
        file = self.root / path
        text = file.read_text()
        assert old in text, f"{path} does not say {old!r}"
        file.write_text(text.replace(old, new))

    def add_fault(self, number: int, path: str, old: str, new: str) -> None:
        """Replaces `old`, in which FAULTY in `new` is true where FAULT is this number."""
        self.replace(path, old, new.replace("FAULTY", f"fault == {number}"))
        choice, file = self.root / "common/device/fault.cuh", self.root / path
        choice.write_text(CHOICE)
        include = f'#include "device/{choice.name}"\n'
        file.write_text(include + file.read_text().removeprefix(include))

    def step(self, name: str, *settings: str) -> Program:
        """Builds a step for the CPU backend."""
        self.made("BACKEND=cpu", *settings, f"build/cpu/{name}")
        return Program(name, self.root / "build" / "cpu")

    def made(self, *words: str) -> subprocess.CompletedProcess:
        """Calls make, which must succeed."""
        done = self.make(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    def make(self, *words: str, path: str | None = None) -> subprocess.CompletedProcess:
        env = {name: value for name, value in os.environ.items() if name not in SETTINGS}
        env["PATH"] = path or f"{self.bin}:{env['PATH']}"
        return subprocess.run(
            [shutil.which("make"), *words],
            cwd=self.root,
            env=env,
            text=True,
            capture_output=True,
            timeout=300,
            check=False,
        )
