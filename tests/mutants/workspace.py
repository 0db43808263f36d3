"""Builds programs with one mutant each: all but the mutated kernels is compiled once."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.enumerate_mutants import Mutant, step_file

# Few instantiations compile fast. Those for the cases differ in what the code makes of them; the
# others are those that step_under_test.c calls. The order is that of choosing.
VARIANTS = {
    "step02": "variant<__half, 64, 64, 32>(DTYPE_FP16)",
    "step03": "variant<__half, 64>(DTYPE_FP16), variant<__half, 96>(DTYPE_FP16)",
    "step04": "variant<__half, 64>(DTYPE_FP16), variant<__half, 96>(DTYPE_FP16)",
    "step05": "variant<__half, 64, 2, 2>(DTYPE_FP16), variant<__half, 64, 1, 1>(DTYPE_FP16)",
}
CALLED = {
    "step02": ("64, 64, 32", "128, 64, 32"),
    "step03": ("64", "128"),
    "step04": ("64", "128"),
    "step05": ("64, 2, 1", "64, 2, 2", "128, 2, 1", "128, 2, 2"),
}
# Its trials; steps that look how tensors lie before they load vectors get more of them.
TRIALS = {"step02": ("padded", "ragged", "strides", "pointers")}
TABLE = re.compile(r"(static const Variant VARIANTS\[\] = \{).*?(\n\};)", re.DOTALL)


def _called_variants(step: str) -> str:
    return ", ".join(f"variant<{element}, {integers}>({dtype})" for integers in CALLED[step]
                     for element, dtype in (("__half", "DTYPE_FP16"),
                                            ("__nv_bfloat16", "DTYPE_BF16")))


class DoesNotCompile(Exception):
    """The compiler refused a mutant."""


@dataclass(frozen=True)
class Tools:
    """From make: what it compiles and links with."""

    rewrite: str
    compile: tuple[str, ...]  # a .cpp of the checking build into an object
    link: tuple[str, ...]
    objects: tuple[str, ...]  # of a program, without the step and without main
    main: str
    under_test: str  # the main of step_under_test.c

    @staticmethod
    def from_environment() -> "Tools":
        return Tools(os.environ["REWRITE"], tuple(os.environ["COMPILE"].split()),
                     tuple(os.environ["LINK"].split()), tuple(os.environ["OBJECTS"].split()),
                     os.environ["MAIN_OBJECT"], os.environ["UNDER_TEST_OBJECT"])


class Workspace:
    """A folder for one mutant at a time."""

    def __init__(self, root: Path, directory: Path, tools: Tools) -> None:
        self.root, self.directory, self.tools = root, directory, tools

    def build(self, step: str, mutant: Mutant | None, called: bool = False) -> Path:
        """The object of the step with this mutant; `called` by step_under_test.c, or not."""
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
        if step in VARIANTS:
            variants = _called_variants(step) if called else VARIANTS[step]
            text, count = TABLE.subn(rf"\g<1>{variants}\g<2>", text)
            assert count == 1, f"{own}: no table of variants"
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
        # -Og is right for kernels that run for milliseconds.
        done = subprocess.run([command, f"-I{self.directory}", *flags, "-Og", "-w", "-c", generated,
                               "-o",
                               target], capture_output=True, text=True, check=False)
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
