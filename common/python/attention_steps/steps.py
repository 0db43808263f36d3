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
from .arrays import Form, bits_of, check_shapes, form_of, to_16_bits
from .gallery import StepError
from .library import BackwardTensors, Device, Shape, StepLibrary
from .masks import DeviceMask, as_option, is_plain
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
        self._masks: dict[tuple, DeviceMask] = {}

    def __repr__(self) -> str:
        return f"<{self.name}: {self.facts['title']}>"

    @functools.cached_property
    def program(self) -> Path:
        return gallery.built(self.name)[0]

    @functools.cached_property
    def library(self) -> StepLibrary:
        return StepLibrary(gallery.built(f"lib{self.name}.so")[0])

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
        o: np.ndarray | None = None,
        lse: np.ndarray | None = None,
        *,
        mask: str | np.ndarray | None = None,
        scale: float | None = None,
        dtype: str | None = None,
        **cache: object,
    ) -> tuple[np.ndarray, ...]:
        """O and LSE; of a backward step dQ, dK and dV for a given dO.

        `scale` is 1/sqrt(D) unless given. A backward step computes O and LSE by a forward step unless it gets both. A
        decode step takes `lengths`, the keys of each sequence, and perhaps `page_table`, [B, pages of the longest
        sequence], with k and v in pages, [pages, page size, Hkv, D], and `kv_dtype="e4m3"` for a cache that is
        stored so. Raises StepError with one line that says what would be right.
        """
        form = form_of(q, dtype)
        inputs = [bits_of(name, x, form) for name, x in (("q", q), ("k", k), ("v", v))]
        if scale is not None and not 0 < scale <= 32:
            raise StepError(f"scale={scale}: must be greater than 0, at most 32")
        if self.kind == "decode":
            return self._by_program(form, inputs, mask, scale, self._cache(**cache))
        check_shapes(*inputs)
        if cache:
            raise StepError(f"{next(iter(cache))}: {self.name} is no decode step")
        if (self.kind == "backward") != (d_o is not None):
            raise StepError(f"{self.name} " + ("takes no d_o" if self.kind == "forward" else "needs d_o, dL/dO"))
        if d_o is None:
            return self._forward(form, inputs, mask, scale)
        if (o is None) != (lse is None):
            raise StepError(f"{self.name} takes both o and lse, or neither")
        more = [bits_of(name, x, form) for name, x in (("d_o", d_o), ("o", o)) if x is not None]
        for name, x in zip(("d_o", "o"), more):
            if x.shape != inputs[0].shape:
                raise StepError(f"{name}: has the shape {list(x.shape)}, must be {list(inputs[0].shape)}, as q")
        if lse is not None:
            more.append(np.ascontiguousarray(lse, np.float32).reshape(inputs[0].shape[:3]))
        return tuple(form.of(bits) for bits in self._backward(form, inputs, more, mask, scale))

    @property
    def kind(self) -> str:
        """forward, backward or decode"""
        return self.library.kind

    def _cache(self, lengths: object = None, page_table: object = None, kv_dtype: str = "") -> dict:
        """What a decode step takes beside Q, K and V."""
        if lengths is None:
            raise StepError(f"{self.name} needs lengths: how many keys each sequence has")
        found = {"lengths": lengths} if page_table is None else {"lengths": lengths, "page_table": page_table}
        for name, given in found.items():
            with np.errstate(invalid="ignore"):  # NaN
                found[name] = np.ascontiguousarray(np.asarray(given).astype(np.int32))
            if (found[name] != given).any():  # 40.5 or 2^32 would become another length
                raise StepError(f"{name}: must be integers of 32 bits")
        return found | ({"kv_dtype": kv_dtype} if kv_dtype else {})

    def _forward(self, form: Form, inputs: list, mask: object, scale: float | None) -> tuple[np.ndarray, ...]:
        if self.library.takes_e4m3:  # the program makes the numbers and their scales
            return self._by_program(form, inputs, mask, scale, {})
        shape, more, kept = self._prepared(form, inputs, mask, scale)
        device = Device(self.library)
        memory = [device.upload(x) for x in inputs]
        o, lse = np.empty_like(inputs[0]), np.empty(inputs[0].shape[:3], np.float32)
        outputs = [device.allocate(x.nbytes) for x in (o, lse)]
        self._call(self.library.forward, shape, *(m.address for m in (*memory, *outputs)), **more)
        outputs[0].download(o)
        outputs[1].download(lse)
        return form.of(o), form.without_batch(lse)

    def _backward(self, form: Form, inputs: list, more: list, mask: object, scale: float | None) -> list[np.ndarray]:
        shape, settings, kept = self._prepared(form, inputs, mask, scale)
        device, (d_o, *known) = Device(self.library), more
        q, k, v = (device.upload(x) for x in inputs)
        results = [np.empty_like(x) for x in inputs]
        outputs = [device.allocate(x.nbytes) for x in results]
        if known:
            o, lse = (device.upload(x) for x in known)
        else:
            o, lse = device.allocate(d_o.nbytes), device.allocate(4 * d_o[..., 0].size)
            forward = {name: settings[name] for name in ("mask", "prepared") if name in settings}
            self._call(self.library.forward, shape, *(m.address for m in (q, k, v, o, lse)), **forward)
        memory = (q, k, v, o, lse, device.upload(d_o), *outputs)
        tensors = BackwardTensors(*(m.address for m in memory), settings.get("workspace"))
        if "mask" in settings:
            tensors.block_mask.contents, tensors.prepared = settings["mask"], settings["prepared"]
        self._call(self.library.backward, shape, tensors, settings.get("workspace_bytes", 0))
        return [output.download(x) for output, x in zip(outputs, results)]

    def _prepared(self, form: Form, inputs: list, mask: object, scale: float | None) -> tuple[Shape, dict, list]:
        """The problem, what a pass needs beside the tensors, and the memory of that."""
        (b, heads, n, d), (_, kv_heads, n_kv, _) = inputs[0].shape, inputs[1].shape
        causal = isinstance(mask, str) and mask == "causal"
        shape = Shape(b, heads, kv_heads, n, n_kv, d, form.dtype == "bf16", causal, factor=scale or 0.0)
        more, kept, device = {}, [], Device(self.library)
        if self.library.takes_block_masks:
            made = self._device_mask(shape, mask)
            kept += [made, device.allocate(self._call(self.library.prepare, shape, made.c))]
            more = {"mask": made.c, "prepared": kept[-1].address}
            self._call(self.library.prepare, shape, made.c, kept[-1].address)
        elif not is_plain(mask):
            self._refusal(shape, mask)
        if size := self.library.workspace_bytes(shape, 1 << 40):
            kept.append(device.allocate(size))
            kept[-1].fill()  # as Step::workspace_zero asks
            more |= {"workspace": kept[-1].address, "workspace_bytes": size}
        return shape, more, kept

    def _call(self, function: object, *arguments: object, **more: object) -> object:
        try:
            return function(*arguments, **more)
        except ValueError as error:
            raise StepError(f"{self.name}: {error}" if self.name not in str(error) else str(error)) from None

    # --- Masks ------------------------------------------------------------------------------------

    def _sizes(self, shape: Shape) -> list[str]:
        names = ("batch", "heads", "kv-heads", "seqlen", "seqlen-kv", "head-dim")
        return [f"--{name}={getattr(shape, name.replace('-', '_'))}" for name in names]

    def _device_mask(self, shape: Shape, mask: object) -> DeviceMask:
        """The mask as the program builds it; the last ones are kept."""
        content = mask if mask is None or isinstance(mask, str) else np.asarray(mask).tobytes()
        key = (content, np.shape(mask), *self._sizes(shape))
        if key not in self._masks:
            with tempfile.TemporaryDirectory() as folder:
                options = [*self._sizes(shape), *as_option(mask, Path(folder)), "--draw-mask"]
                self._run(*options, "--save-mask", f"{folder}/mask")
                while len(self._masks) > 7:
                    del self._masks[next(iter(self._masks))]
                self._masks[key] = DeviceMask(self.library, Path(folder) / "mask", shape.seqlen, shape.seqlen_kv)
        return self._masks[key]

    def _refusal(self, shape: Shape, mask: object) -> None:
        """Raises what the program says of a mask that the step does not take."""
        with tempfile.TemporaryDirectory() as folder:
            self._run(*self._sizes(shape), *as_option(mask, Path(folder)), "--draw-mask")
        raise StepError(f"{self.name} takes the masks full and causal")

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
            raise StepError(said[-1])
        return done

    def _files(self, folder: Path, form: Form, inputs: list, more: dict, mask: object, scale: object) -> list[str]:
        """The command line of a call, whose arrays are written to files."""
        (folder / "in").mkdir()
        options = ["--input", str(folder / "in"), *as_option(mask, folder)]
        if kv_dtype := more.pop("kv_dtype", ""):
            options.append(f"--kv-dtype={kv_dtype}")
        for name, x in {**dict(zip("qkv", inputs)), **more}.items():
            is_half = form.dtype == "fp16" and x.dtype == np.uint16
            np.save(folder / "in" / f"{name}.npy", x.view(np.float16) if is_half else x)
        if scale is not None:
            options.append(f"--scale={scale!r}")
        if self.facts["fp8"]:
            return [*options, f"--out-dtype={form.dtype}"]
        return [*options, f"--dtype={form.dtype}"]

    def _by_program(
        self, form: Form, inputs: list, mask: object, scale: float | None, more: dict
    ) -> tuple[np.ndarray, ...]:
        """The results of the program for these arrays: those of a backward step in 16 bits, else O and LSE."""
        backward = "do" in more
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            words = self._files(folder, form, inputs, more, mask, scale)
            self._run(*words, "--check=none", "--repeat=0", f"--output={folder}/out")
            results = [np.load(folder / "out" / f"{x}.npy") for x in (("dq", "dk", "dv") if backward else ("o",))]
            # An O in bf16 is written as float32, which holds it exactly.
            bits = [x.view(np.uint16) if x.itemsize == 2 else to_16_bits(x, "bf16") for x in results]
            if backward:
                return tuple(bits)
            return form.of(bits[0]), form.without_batch(np.load(folder / "out/lse.npy"))

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
        form = form_of(q, dtype)
        inputs = [bits_of(name, x, form) for name, x in (("q", q), ("k", k), ("v", v))]
        with tempfile.TemporaryDirectory() as folder:
            more = self._cache(**cache) if cache else {} if d_o is None else {"do": bits_of("d_o", d_o, form)}
            return self._examine(self._files(Path(folder), form, inputs, more, mask, scale))

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

    @property
    def kind(self) -> str:
        return self.facts["kind"]

    def _forward(self, form: Form, inputs: list, mask: object, scale: float | None) -> tuple[np.ndarray, ...]:
        return self._by_program(form, inputs, mask, scale, {})

    def _backward(self, form: Form, inputs: list, more: list, mask: object, scale: float | None) -> Sequence:
        if len(more) > 1:
            raise StepError(f"{self.name}: a step of your own computes O and LSE itself")
        return self._by_program(form, inputs, mask, scale, {"do": more[0]})
