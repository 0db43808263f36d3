"""Builds the package attention_steps: the sources of the gallery, and what make builds of them for the simulator."""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
# What the Makefile reads; the package finds all of it below gallery/.
SOURCES = ("Makefile", "common", "steps", *(str(path.relative_to(ROOT)) for path in ROOT.glob("[dpt]*/**/*.mk")))
# What a caller links, runs or compiles again; the rest of a build is only on the way to it.
KEPT = ("step*", "rewrite_launches", "flags", "commit.h", "host/**/*.o", "simt/**/*.o", "forward/*.o")


class BuildGallery(build_py):
    def run(self) -> None:
        package = Path(self.build_lib).resolve() / "attention_steps"
        shutil.rmtree(package, ignore_errors=True)  # what an earlier build left there would be installed, too
        super().run()
        gallery = package / "gallery"
        for name in SOURCES:
            source, target = ROOT / name, gallery / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
            else:
                shutil.copy2(source, target)
        # Reports name files by paths below the folder of the Makefile, wherever that will be.
        compiler = f"{os.environ.get('CXX', 'g++')} {shlex.quote(f'-fdebug-prefix-map={gallery}=.')}"
        (gallery / "compiler").write_text(compiler)
        names = sorted({path.name.split("_")[0] for path in (gallery / "steps").glob("step*_*.cu")})
        targets = [f"build/cpu/{name}" for name in names]
        words = ["BACKEND=cpu", f"-j{os.cpu_count()}", *targets]
        environment = {**os.environ, "CXX": compiler}
        if not shutil.which("make"):
            raise SystemExit("make not found. Install it: sudo apt-get install make g++")
        made = subprocess.run(["make", "--no-print-directory", *words], cwd=gallery, env=environment, check=False)
        if made.returncode != 0:
            raise SystemExit("make could not build the steps: see above")
        build = gallery / "build" / "cpu"
        kept = {path for pattern in KEPT for path in build.glob(pattern) if path.suffix not in (".d", ".cpp")}
        for path in build.rglob("*"):
            if path.is_file() and path not in kept:
                path.unlink()


setup(cmdclass={"build_py": BuildGallery})
