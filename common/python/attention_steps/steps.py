"""A step, called with NumPy arrays."""

import functools
import hashlib
import inspect
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
from .gallery import StepError
from .report import Lab

EXAMINED = "races,bounds,init,alignment,blocks,traffic,banks,counts"
ONLY = {"backward": ("d_o", "o", "lse"), "decode": ("lengths", "page_table", "k_scales", "v_scales")}
AXES = {"q": 3, "k": 3, "v": 3, "d_o": 3, "o": 3, "lse": 2}  # of arrays without a batch


@functools.cache
def step(name: str) -> "Step":
    """A step by its name, such as `"04"` or `"02b"`."""
    number = str(name).removeprefix("step")
    if number not in gallery.names():
        raise StepError(f"step {name!r}: there is none of this name, must be one of {', '.join(gallery.names())}")
    return Step(f"step{number}", next((gallery.root() / "steps").glob(f"step{number}_*.cu")))


def build(path: str | Path, text: str | None = None) -> "Step":
    """A step of your own, from a file that declares the descriptor `step`, or from this `text` of one. The file may
    include what a step may. It is compiled once, so that the lab can watch it. Raises BuildError with the compiler's
    first error."""
    path = Path(path).absolute()
    if own := text is None:
        text = f'#line 1 "{path}"\n{path.read_text()}'
    stem = re.sub(r"\W", "_", path.stem) + "_" + hashlib.sha256(text.encode()).hexdigest()[:10]
    made = gallery.workshop() / "exercises/made"
    made.mkdir(parents=True, exist_ok=True)
    copy = made / f"{stem}.cu"
    if not copy.exists():
        with tempfile.NamedTemporaryFile("w", dir=made, delete=False) as part:
            part.write(text)
        os.replace(part.name, copy)  # another process never sees a part of it
    program = made / stem
    gallery.make(str(program.relative_to(gallery.root())))
    made = Step(path.stem, path if own else copy)
    made.program = program
    return made


class Step:
    """A step of the gallery, or one of your own.

    Arrays are [B, H, N, D] or [H, N, D] of float16, of uint16 with the bits of bf16, of bfloat16 (ml_dtypes), or
    wider: those are rounded to fp16, or to bf16 with `dtype="bf16"`. Results have the type and the dimensions of q;
    LSE is float32, without D. Masks are what `--mask` takes, such as `"causal"` or `"window:100"`, or boolean arrays
    [Nq, Nkv], [H, Nq, Nkv] or [B, H, Nq, Nkv], or a dictionary of the tensors of a block mask, with the names of
    docs/block-masks.md; which of them a step takes is in `facts["masks"]`.

    Each call runs the program of the step, so a kernel that crashes or never ends takes nothing else with it, and
    calls may come from several threads.
    """

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path = name, path

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
        return self.path.read_text()

    def __call__(
        self, q: np.ndarray, k: np.ndarray, v: np.ndarray, d_o: np.ndarray | None = None, o: np.ndarray | None = None,
        lse: np.ndarray | None = None, *, mask: str | np.ndarray | dict | None = None, scale: float | None = None,
        dtype: str | None = None, lengths: Sequence[int] | None = None, page_table: np.ndarray | None = None,
        kv_dtype: str | None = None, k_scales: np.ndarray | None = None, v_scales: np.ndarray | None = None,
    ) -> tuple[np.ndarray, ...]:  # fmt: skip
        """O and LSE; of a backward step dQ, dK and dV for a given dO.

        `scale` is 1/sqrt(D) unless given. A backward step computes O and LSE by a forward step unless it gets both. A
        decode step takes `lengths`, the keys of each sequence, and perhaps `page_table`, [B, pages of the longest
        sequence], with k and v in pages, [pages, page size, Hkv, D]. With `kv_dtype="e4m3"` it stores the cache so;
        or k and v are uint8, the bits, with `k_scales` and `v_scales`, [B, Hkv]. Raises StepError with one line that
        says what would be right.
        """
        given = locals()
        with tempfile.TemporaryDirectory() as folder:
            self._run(
                *self._words(folder, given), "--check=none", "--repeat=0", f"--output={folder}/out", folder=folder
            )
            names = ("o", "lse") if d_o is None else ("dq", "dk", "dv")
            found = [np.load(f"{folder}/out/{name}.npy") for name in names]
        if np.ndim(q) == 3:
            found = [x[0] for x in found]
        return tuple(x if name == "lse" else _like(q, x) for name, x in zip(names, found))

    def lab(self, *arrays: np.ndarray | str, **problem: object) -> Lab:
        """Runs the step's program on what a call takes, compares the answer with the reference, and examines the
        kernel. In place of arrays, there may be options of the program, such as `"-n 100 --mask causal"`."""
        with tempfile.TemporaryDirectory() as folder:
            if not problem and (not arrays or isinstance(arrays[0], str)):
                words = shlex.split(" ".join(arrays))
            else:
                words = self._words(folder, inspect.signature(self.__call__).bind(*arrays, **problem).arguments)
            report, record = Path(folder, "lab.jsonl"), Path(folder, "record.jsonl")
            words += ["--repeat=0", f"--report=json:{report},{EXAMINED}", f"--json={record}"]
            done = self._run(*words, folder=folder, right=(0, 1))
            lines, first = (x.read_text().splitlines() if x.exists() else [] for x in (report, record))
            lab = [json.loads(_below_root(line)) for line in lines]
            return Lab.of(lab, json.loads(first[0]) if first else {}, *map(_below_root, (done.stderr, done.stdout)))

    def _words(self, folder: str, arguments: dict) -> list[str]:
        """The words of the command line for the arguments of a call, whose arrays become files in a folder. The
        program checks them."""
        given = {name: x for name, x in arguments.items() if (x is not None or name in "qkv") and name != "self"}
        for kind, name in ((kind, name) for kind, names in ONLY.items() for name in names):
            is_given, is_own = name in given, self.facts["kind"] == kind
            if is_given > is_own or is_given < is_own and name == ONLY[kind][0]:  # which it needs
                raise StepError(f"{self.name} {'takes no' if is_given else 'needs'} {name}")
        for name in {"k_scales", "v_scales"} & given.keys():
            if np.asarray(given[name[0]]).dtype != np.uint8:
                raise StepError(f"{name}: must be given only with {name[0]} of type uint8, the bits of e4m3")
        given.setdefault("dtype", "bf16" if np.asarray(given["q"]).dtype.name in ("uint16", "bfloat16") else "fp16")
        if "e4m3" in self.facts.get("kv_dtypes", ()) and np.uint8 in (np.asarray(given[x]).dtype for x in "kv"):
            given.setdefault("kv_dtype", "e4m3")
        options = {"scale": "scale", "dtype": "out-dtype" if self.facts["fp8"] else "dtype", "kv_dtype": "kv-dtype"}
        words = [f"--input={folder}", *(f"--{options[name]}={given.pop(name)}" for name in options if name in given)]
        match mask := given.pop("mask", None):
            case str():
                words.append(f"--mask={mask}")
            case dict():
                Path(folder, "mask").mkdir()
                words.append(f"--mask={folder}/mask")
                given |= {f"mask/{name}": x for name, x in mask.items()}
            case _ if mask is not None:
                words.append(f"--mask={folder}/mask.npy")
                given["mask"] = mask
        for name, x in given.items():
            np.save(Path(folder, f"{name.replace('d_o', 'do')}.npy"), _as_file(name, np.asarray(x)))
        return words

    def _run(self, *words: str, right: Sequence[int] = (0,), folder: str = "\0") -> subprocess.CompletedProcess:
        """Runs the program. Raises StepError with its last line, where arrays have the names of their files in the
        folder, unless the exit code is one of `right`."""
        # Most problems are so small that threads that wait actively would only be in the way.
        command, environment = [self.program, *words], {"OMP_WAIT_POLICY": "passive"} | os.environ
        done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode not in right:
            said = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()
            line = said[-1].replace(f"{self.program.name}: ", f"{self.name}: ", 1)
            raise StepError(re.sub(rf"(?:--input )?{re.escape(folder)}(?:: |/(?:mask/)?(\w+)(?:\.npy)?)", r"\1", line))
        return done


def _as_file(name: str, x: np.ndarray) -> np.ndarray:
    """An array as the programs read it: little-endian, C order, a batch of each tensor."""
    if x.dtype.name == "bfloat16":
        x = x.view(np.uint16)
    if name in ("lengths", "page_table") and x.dtype.kind in "iu":
        x = x.clip(-(1 << 31), (1 << 31) - 1).astype(np.int32)
    x = x.astype(np.float32 if name.endswith("_scales") else x.dtype.newbyteorder("<"), order="C", copy=False)
    return x[None] if x.ndim == AXES.get(name) else x


def _like(q: np.ndarray, x: np.ndarray) -> np.ndarray:
    """A result in the type of q; the program writes bf16 as float32, which holds it exactly."""
    q = np.asarray(q)
    return (x.view(np.uint32) >> 16).astype(np.uint16) if q.dtype == np.uint16 else x.astype(q.dtype, copy=False)


def _below_root(text: str) -> str:
    """Names the files of the gallery by their paths in it, and one's own by those below the folder where one is;
    kernels of one's own find headers by a link."""
    text = text.replace(f"{gallery.root()}/", "").replace(f"{Path.cwd()}/", "")
    return re.sub(r"(?<![\w.])\./(?=\w)", "", text).replace("build/cpu/exercises/include/", "common/")
