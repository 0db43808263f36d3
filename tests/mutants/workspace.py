"""Builds programs with one mutant each; everything except the mutated kernels is compiled once."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.lib.configs import CALLED_HEAD_DIMS, configs_of, with_configs
from tests.lib.steps import inherited
from tests.mutants.enumerate_mutants import Mutant, step_file

# Those of the problems of cases.py. A step with other ones says so in the section [mutants] of its
# table, where it may also say that another type than fp16, or all, are compiled ("type"), and how it is
# optimised; -Og is enough for kernels that run for milliseconds.
HEAD_DIMS = (64, 96)


class DoesNotCompile(Exception):
    """The compiler refused a mutant."""


@dataclass(frozen=True)
class Tools:
    """Settings from make: what it compiles and links with."""

    rewrite: str
    compile: tuple[str, ...]  # a .cpp of the checking build into an object
    link: tuple[str, ...]
    objects: tuple[str, ...]  # of a program, without the step and without main
    main: str
    under_test: str  # the main of step_under_test.c
    decode_under_test: str  # the same for decode steps
    jobs: int  # mutants at a time

    @staticmethod
    def from_environment() -> "Tools":
        return Tools(
            os.environ["REWRITE"],
            tuple(os.environ["COMPILE"].split()),
            tuple(os.environ["LINK"].split()),
            tuple(os.environ["OBJECTS"].split()),
            os.environ["MAIN_OBJECT"],
            os.environ["UNDER_TEST_OBJECT"],
            os.environ["DECODE_UNDER_TEST_OBJECT"],
            int(os.environ.get("JOBS") or os.cpu_count()),
        )


class Workspace:
    """A folder for one mutant at a time."""

    def __init__(self, root: Path, directory: Path, tools: Tools) -> None:
        self.root, self.directory, self.tools = root, directory, tools

    def build(self, step: str, mutant: Mutant | None, called: bool = False) -> Path:
        """The object of the step with this mutant; `called`: for step_under_test.c."""
        shutil.rmtree(self.directory, ignore_errors=True)
        device = self.directory / "device"
        device.mkdir(parents=True)
        own = step_file(self.root, step)
        text = (self.root / own).read_text()
        if mutant is not None and mutant.file == own:
            text = mutant.applied(text)
        elif mutant is not None:
            changed = mutant.applied((self.root / mutant.file).read_text())
            (device / Path(mutant.file).name).write_text(changed)
        settings = inherited(step, "mutants")
        configs = (
            configs_of(text, settings.get("called_head_dims", CALLED_HEAD_DIMS))
            if called
            else configs_of(text, settings.get("head_dims", HEAD_DIMS), settings.get("type", "__half"))
        )
        if configs:
            text = with_configs(text, configs)
        source = self.directory / Path(own).name
        source.write_text(text)
        return self._compile(source, called, settings.get("optimise", ("-Og", "-g0")))

    def _compile(self, source: Path, called: bool, speed: Sequence[str]) -> Path:
        generated, target = source.with_suffix(".cpp"), source.with_suffix(".o")
        with generated.open("w") as file:
            subprocess.run([self.tools.rewrite, source], stdout=file, check=True)
        command, *flags = self.tools.compile
        if called:  # without --report
            flags[flags.index("-fsanitize=thread,bounds")] = "-fsanitize=alignment"
        done = subprocess.run(
            [command, f"-I{self.directory}", *flags, *speed, "-w", "-c", generated, "-o", target],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise DoesNotCompile(done.stderr)
        return target

    def link(self, target: Path, main: str, *flags: str) -> Path:
        """A program in which both builds of the step are this one."""
        program = target.with_suffix("")
        command, *libraries = self.tools.link
        subprocess.run(
            [
                command,
                target,
                main,
                *self.tools.objects,
                "-o",
                program,
                "-Wl,--defsym=step_checked=step",
                *flags,
                *libraries,
            ],
            check=True,
            capture_output=True,
            text=True,
        )
        return program
