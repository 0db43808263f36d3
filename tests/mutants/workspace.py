"""Builds programs with one mutant each; everything except the mutated kernels is compiled once."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.lib.configs import MMA_STEPS, called_configs, with_configs
from tests.mutants.enumerate_mutants import Mutant, step_file

# The configurations of the cases, which differ in code. The order is the order of selection.
CONFIGS = {
    "step02": "CONFIG<__half, 64, 64, 32>",
    **dict.fromkeys(MMA_STEPS, "CONFIG<__half, 64>, CONFIG<__half, 96>"),
    "step06": "CONFIG<__half, 64, true>, CONFIG<__half, 64, false>, CONFIG<__half, 96, true>, "
              "PAIR_CONFIG<__half>",
    "step05": "CONFIG<__half, 64, 2>, CONFIG<__half, 64, 1>",
    **dict.fromkeys(("step09", "step10"),  # their kernels differ at D = 256
                    "CONFIG<__half, 64>, CONFIG<__half, 96>, CONFIG<__half, 256>"),
    "step11": "CONFIG<__half, 64, true>, CONFIG<__half, 64, false>, CONFIG<__half, 96, true>, "
              "CONFIG<__half, 96, false>, CONFIG<__half, 256, true>, CONFIG<__half, 256, false>",
    "step12": "CONFIG<__half, 64>, CONFIG<__half, 128>",
}
# Trials of step_under_test.c; steps that check alignment before they load vectors have more.
TRIALS = {"step02": ("padded", "ragged", "strides", "pointers"), "step06": ("padded", "wide"),
          "step10": ("padded", "l2"), "step11": ("padded", "l2"), "step12": ("padded", "l2")}


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
    jobs: int  # mutants at a time

    @staticmethod
    def from_environment() -> "Tools":
        return Tools(os.environ["REWRITE"], tuple(os.environ["COMPILE"].split()),
                     tuple(os.environ["LINK"].split()), tuple(os.environ["OBJECTS"].split()),
                     os.environ["MAIN_OBJECT"], os.environ["UNDER_TEST_OBJECT"],
                     int(os.environ.get("JOBS") or os.cpu_count()))


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
        if step in CONFIGS:
            text = with_configs(text, called_configs(step) if called else CONFIGS[step])
        source = self.directory / Path(own).name
        source.write_text(text)
        return self._compile(source, called)

    def _compile(self, source: Path, called: bool) -> Path:
        generated, target = source.with_suffix(".cpp"), source.with_suffix(".o")
        with generated.open("w") as file:
            subprocess.run([self.tools.rewrite, source], stdout=file, check=True)
        command, *flags = self.tools.compile
        if called:  # without --report
            flags[flags.index("-fsanitize=thread,bounds")] = "-fsanitize=alignment"
        # -Og is enough for kernels that run for milliseconds. With it the scores of step 11 would be
        # in several stack frames, and other variables in their place pass for registers of a wgmma.
        # With -O1 a __syncwarp() may be there twice; its line says that both are the same.
        speed = ("-O1", "-g1") if source.name.startswith("step11") else ("-Og", "-g0")
        done = subprocess.run([command, f"-I{self.directory}", *flags, *speed, "-w", "-c",
                               generated, "-o", target], capture_output=True, text=True,
                              check=False)
        if done.returncode != 0:
            raise DoesNotCompile(done.stderr)
        return target

    def link(self, target: Path, main: str, *flags: str) -> Path:
        """A program in which both builds of the step are this one."""
        program = target.with_suffix("")
        command, *libraries = self.tools.link
        subprocess.run([command, target, main, *self.tools.objects, "-o", program,
                        "-Wl,--defsym=step_checked=step", *flags, *libraries], check=True,
                       capture_output=True, text=True)
        return program
