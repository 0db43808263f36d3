"""Runs the programs: finds them, calls them, reads their results."""

import json
import os
import pty
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.lib.steps import REPOSITORY, facts

BACKEND = os.environ.get("BACKEND", "cpu")
PAIRWISE_SEED = int(os.environ.get("PAIRWISE_SEED", "20"))
MASK_SEED = int(os.environ.get("MASK_SEED", "20"))
GRADIENT_SEED = int(os.environ.get("GRADIENT_SEED", "20"))
DECODE_SEED = int(os.environ.get("DECODE_SEED", "20"))
STEP_DIR = Path(os.environ.get("STEP_DIR", REPOSITORY / "build" / "cpu"))

RIGHT, WRONG, USAGE, DEVICE, NO_GPU = 0, 1, 2, 3, 77

# Most cases are so small that more threads of the reference would mostly wait for work.
QUIET = {"OMP_WAIT_POLICY": "passive"}


def built_commit() -> str:
    """The commit of the build. With it as COMMIT, make compiles nothing again in a copy that lacks
    .git and shares files of the build."""
    return (STEP_DIR / "commit.h").read_text().split('"')[1]


@dataclass
class Result:
    """O and LSE as a program wrote them."""

    o: np.ndarray
    lse: np.ndarray

    def same_bits(self, other: "Result") -> bool:
        """Compares bits, not values: NaN equals NaN and 0 differs from -0."""
        return all(
            a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
            for a, b in ((self.o, other.o), (self.lse, other.lse))
        )


def read_result(directory: Path) -> Result:
    return Result(np.load(directory / "o.npy"), np.load(directory / "lse.npy"))


def read_records(path: Path) -> list[dict]:
    """The JSON records of a file, one a line."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def run_on_terminal(command: list, env: dict | None = None) -> tuple[int, str]:
    """The exit code, and all that is written to stderr when it is a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, env={**os.environ, **(env or {})}, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    received = b""
    try:
        while chunk := os.read(ours, 4096):
            received += chunk
    except OSError:  # Linux's error when the other end is closed
        pass
    os.close(ours)
    return process.wait(timeout=60), received.decode()


def write_inputs(directory: Path, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name, array in (("q", q), ("k", k), ("v", v)):
        np.save(directory / f"{name}.npy", array)
    return directory


@dataclass(frozen=True)
class Program:
    """The program of one step."""

    name: str
    directory: Path = STEP_DIR

    @property
    def path(self) -> Path:
        return self.directory / self.name

    @property
    def facts(self) -> dict:
        return facts(self.path)

    @property
    def dtype_option(self) -> str:
        """The option for fp16 or bf16: the type of all tensors, or of O alone."""
        return "--out-dtype" if self.facts["fp8"] else "--dtype"

    def takes(self, head_dim: int) -> bool:
        return self.facts["head_dims"] == "any" or head_dim in self.facts["head_dims"]

    def run(
        self, *options: object, env: dict | None = None, timeout: float = 120, **more
    ) -> subprocess.CompletedProcess:
        """Runs the program with these options and waits; `more` goes to subprocess.run()."""
        arguments = [str(self.path), *map(str, options)]
        output = {} if "stdout" in more else {"stdout": subprocess.PIPE}
        return subprocess.run(
            arguments,
            env={**QUIET, **os.environ, **(env or {})},
            timeout=timeout,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            **output,
            **more,
        )

    def run_right(self, *options: object, **more) -> subprocess.CompletedProcess:
        """The same; it must write nothing to stderr and exit with 0. Never timed."""
        done = self.run("--repeat", 0, *options, **more)
        assert (done.returncode, done.stderr) == (RIGHT, ""), f"{done.args}\n{done.stderr}"
        return done

    def solve(self, directory: Path, *options: object, **more) -> tuple[Result, dict]:
        """Solves one problem, checked in full by the program: its result and its JSON record."""
        json_path = directory / "record.json"
        directory.mkdir(parents=True)
        self.run_right("--check", "all", "--output", directory, "--json", json_path, *options, **more)
        (record,) = read_records(json_path)
        return read_result(directory), record

    def solve_all(
        self, directory: Path, lines: list[list[str]], check: str = "all", env: dict | None = None, timeout: float = 300
    ) -> list[tuple[Result, dict]]:
        """Solves problems in one process, one list of options each: results and JSON records."""
        directory.mkdir(parents=True)
        cases = directory / "cases.txt"
        with cases.open("w") as file:
            for i, line in enumerate(lines):
                case = directory / str(i)
                file.write(" ".join([*map(str, line), "--output", str(case), "--json", f"{case}.json"]) + "\n")
        self.run_right("--check", check, "--cases", cases, env=env, timeout=timeout)
        return [(read_result(directory / str(i)), read_records(directory / f"{i}.json")[0]) for i in range(len(lines))]
