"""A step, called with NumPy arrays."""

import functools
import hashlib
import json
import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from . import gallery
from .arrays import Form, as_option, bits_of, form_of, to_16_bits
from .gallery import StepError
from .report import Lab

EXAMINED = "races,bounds,init,alignment,blocks,traffic,banks,counts"
# Most problems are so small that threads that wait actively would only be in the way.
ENVIRONMENT = {"OMP_WAIT_POLICY": "passive"}


@functools.cache
def step(name: str) -> "Step":
    """A step by its name, such as `"04"` or `"02b"`."""
    number = str(name).removeprefix("step")
    if number not in gallery.names():
        raise StepError(f"step {name!r}: there is none of this name, must be one of {', '.join(gallery.names())}")
    return Step(number)


def build(path: str | Path, text: str | None = None) -> "Step":
    """A step of your own, from a file that declares the descriptor `step`, or from this `text` of one. The file may
    include what a step may. It is compiled once, so that the lab can watch it, and it is called as a program: what
    it does wrong ends that program alone. Raises BuildError with the compiler's first error."""
    path = Path(path)
    text = path.read_text() if text is None else text
    stem = re.sub(r"\W", "_", path.stem) + "_" + hashlib.sha256(text.encode()).hexdigest()[:10]
    made = gallery.root() / "build/cpu/exercises/made"
    made.mkdir(parents=True, exist_ok=True)
    copy = made / f"{stem}.cu"
    if not copy.exists() or copy.read_text() != text:
        copy.write_text(text)
    program = made / stem
    gallery.make(str(program.relative_to(gallery.root())))
    return OwnStep(path.stem, program)


class Step:
    """A step of the gallery.

    Arrays are [B, H, N, D] or [H, N, D] of float16, of uint16 with the bits of bf16, of bfloat16 (ml_dtypes), or
    wider: those are rounded to fp16, or to bf16 with `dtype="bf16"`. Results have the form of q; LSE is float32
    [B, H, N]. Masks are what `--mask` takes, such as `"causal"` or `"window:100"`, or boolean arrays [Nq, Nkv],
    [H, Nq, Nkv] or [B, H, Nq, Nkv]; which of them a step takes is in `facts["masks"]`.
    """

    def __init__(self, number: str) -> None:
        self.name = f"step{number}"

    def __repr__(self) -> str:
        return f"<{self.name}: {self.facts['title']}>"

    @functools.cached_property
    def program(self) -> Path:
        return gallery.built(self.name)[0]

    @functools.cached_property
    def facts(self) -> dict:
        """What the step says of itself: docs/json-records.md has the fields."""
        return json.loads(self._run("--info", "--json", "-").stdout)

    @property
    def source(self) -> str:
        """The text of its file."""
        return gallery.source(self.name[4:]).read_text()

    # --- Calls ------------------------------------------------------------------------------------

    def __call__(
        self,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        d_o: np.ndarray | None = None,
        *,
        mask: str | np.ndarray | None = None,
        scale: float | None = None,
        dtype: str | None = None,
        **cache: object,
    ) -> tuple[np.ndarray, ...]:
        """O and LSE; of a backward step dQ, dK and dV for a given dO.

        `scale` is 1/sqrt(D) unless given. A backward step computes O and LSE by a forward step. A decode step takes
        `lengths`, the keys of each sequence, and perhaps `page_table`, [B, pages of the longest sequence], with k and v
        in pages, [pages, page size, Hkv, D]. For a cache in e4m3, `kv_dtype="e4m3"` rounds k and v to it; or they are
        its bits as uint8, with `k_scales` and `v_scales`, [B, Hkv]. Raises StepError with one line that says what would
        be right.
        """
        form, arrays = self._arrays(q, k, v, d_o, dtype, cache)
        kind = self.facts["kind"]
        if cache and kind != "decode":
            raise StepError(f"{next(iter(cache))}: {self.name} is no decode step")
        if (kind == "backward") != (d_o is not None):
            raise StepError(f"{self.name} " + ("needs d_o, dL/dO" if kind == "backward" else "takes no d_o"))
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            words = self._files(folder, form, arrays, mask, scale)
            self._run(*words, "--check=none", "--repeat=0", f"--output={folder}/out")
            results = [np.load(folder / "out" / f"{x}.npy") for x in (("dq", "dk", "dv") if "do" in arrays else ("o",))]
            # An O in bf16 is written as float32, which holds it exactly.
            bits = [x.view(np.uint16) if x.itemsize == 2 else to_16_bits(x, "bf16") for x in results]
            found = tuple(map(form.of, bits))
            return found if "do" in arrays else (*found, form.without_batch(np.load(folder / "out/lse.npy")))

    def _arrays(
        self, q: object, k: object, v: object, d_o: object, dtype: str | None, cache: dict
    ) -> tuple[Form, dict[str, object]]:
        """The arrays of a call by the names of the program's files, and `kv_dtype`, which is an option."""
        form, given = form_of(q, dtype), {"q": q, "k": k, "v": v} | ({} if d_o is None else {"do": d_o})
        bytes_of = ("k", "v") if "k_scales" in cache else ()
        arrays = {name: bits_of(name, x, form) for name, x in given.items() if name not in bytes_of}
        arrays |= {name: np.ascontiguousarray(given[name], np.uint8) for name in bytes_of}
        for name, x in cache.items():
            if name == "kv_dtype":
                arrays[name] = x
            elif x is not None:
                with np.errstate(invalid="ignore"):  # NaN
                    arrays[name] = np.asarray(x).astype(np.float32 if name.endswith("scales") else np.int32)
                if arrays[name].dtype == np.int32 and (arrays[name] != x).any():  # 40.5 or 2^32 would become another
                    raise StepError(f"{name}: must be integers of 32 bits")
        if self.facts["kind"] == "decode" and "lengths" not in arrays:
            raise StepError(f"{self.name} needs lengths: how many keys each sequence has")
        return form, arrays

    # --- Programs ---------------------------------------------------------------------------------

    def _run(self, *options: str, right: Sequence[int] = (0,)) -> subprocess.CompletedProcess:
        """Runs the program. Raises StepError with its last line unless the exit code is one of `right`."""
        done = subprocess.run(
            [str(self.program), *options],
            cwd=gallery.root(),
            env=ENVIRONMENT | os.environ,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode not in right:
            said = (done.stderr.strip() or done.stdout.strip()).splitlines() or [f"exit code {done.returncode}"]
            raise StepError(re.sub(r"/\S*/(?=\w+\.npy)", "", said[-1]))  # without the folder of a call
        return done

    def _files(self, folder: Path, form: Form, arrays: dict, mask: object, scale: float | None) -> list[str]:
        """The command line of a call, whose arrays are written to files."""
        (folder / "in").mkdir()
        options = ["--input", str(folder / "in"), *as_option(mask, folder)]
        for name, x in arrays.items():
            if name == "kv_dtype":
                options.append(f"--kv-dtype={x}")
                continue
            is_half = form.dtype == "fp16" and x.dtype == np.uint16
            np.save(folder / "in" / f"{name}.npy", x.view(np.float16) if is_half else x)
        if scale is not None:
            options.append(f"--scale={scale!r}")
        return [*options, f"--{'out-dtype' if self.facts['fp8'] else 'dtype'}={form.dtype}"]

    # --- The lab ----------------------------------------------------------------------------------

    def lab(
        self,
        q: np.ndarray | str = "",
        k: np.ndarray | None = None,
        v: np.ndarray | None = None,
        d_o: np.ndarray | None = None,
        *,
        mask: str | np.ndarray | None = None,
        scale: float | None = None,
        dtype: str | None = None,
        **cache: object,
    ) -> Lab:
        """Runs the step's program on the arrays of a call, compares the answer with the reference, and examines the
        kernel. In place of arrays, `q` may be options of the program, such as `"-n 100 --mask causal"`."""
        if isinstance(q, str):
            return self._examine(shlex.split(q))
        form, arrays = self._arrays(q, k, v, d_o, dtype, cache)
        with tempfile.TemporaryDirectory() as folder:
            return self._examine(self._files(Path(folder), form, arrays, mask, scale))

    def _examine(self, options: list[str]) -> Lab:
        with tempfile.TemporaryDirectory() as folder:
            report, record = Path(folder) / "lab.jsonl", Path(folder) / "record.jsonl"
            done = self._run(
                *options, "--repeat=0", f"--report=json:{report},{EXAMINED}", f"--json={record}", right=(0, 1)
            )
            lines, first = (x.read_text().splitlines() if x.exists() else [] for x in (report, record))
            lab = [json.loads(_below_root(line)) for line in lines]
            return Lab.of(lab, json.loads(first[0]) if first else {}, done.stderr, _below_root(done.stdout))


def _below_root(text: str) -> str:
    """Names the files of the gallery by their paths in it; kernels of one's own find headers by a link."""
    text = re.sub(r"(?<![\w.])\./(?=\w)", "", text.replace(f"{gallery.root()}/", ""))
    return text.replace("build/cpu/exercises/include/", "common/")


class OwnStep(Step):
    """A step that build() made: its program alone."""

    def __init__(self, name: str, program: Path) -> None:
        self.name, self.program = name, program

    @property
    def source(self) -> str:
        return self.program.with_suffix(".cu").read_text()
