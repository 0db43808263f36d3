"""What the programs print of the tiles of each step, and what a thread block does with them in one
iteration of its loop, in words."""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.lib import masks
from tests.lib.steps import settings

N, HEAD_DIM = 512, 64
PROBLEM = ("-n", str(N), "-d", str(HEAD_DIM))


@dataclass(frozen=True)
class Shape:
    """What --info prints of a step."""

    block_m: int
    block_n: int
    kernels: dict[str, tuple[int, int, int]]  # thread blocks, threads, bytes of shared memory

    @property
    def threads(self) -> int:
        return self.kernels["attention"][1]

    @property
    def shared_bytes(self) -> int:
        return self.kernels["attention"][2]


def shape_of(program: Path, *problem: str) -> Shape:
    text = subprocess.run([program, *(problem or PROBLEM), "--info"], check=True, text=True, capture_output=True).stdout
    tiles = re.search(r"^tiles +(\d+) rows of Q, (\d+) rows of K and V$", text, re.MULTILINE)
    kernels = re.findall(r"^kernel +(\w+): (\d+) blocks of (\d+) threads, (\d+) bytes", text, re.MULTILINE)
    return Shape(int(tiles[1]), int(tiles[2]), {name: tuple(map(int, rest)) for name, *rest in kernels})


def saved_mask(program: Path, mask: str, *more: str) -> tuple[np.ndarray, masks.BlockMask]:
    """Which keys each query attends, and the blocks, as the program saves them."""
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "mask"
        subprocess.run(
            [program, *PROBLEM, "--mask", mask, *more, "--save-mask", saved, "--draw-mask"],
            check=True,
            capture_output=True,
        )
        blocks = masks.read(saved)
    return masks.to_dense(blocks, N, N)[0, 0], blocks


# --- What is drawn of the loop of each fused kernel -----------------------------------------------


@dataclass(frozen=True)
class Buffer:
    """A tile of K or V in shared memory, at one moment."""

    place: str  # k or v: where it is drawn
    content: str  # k or v
    label: str
    in_flight: bool = False
    column: int = 0
    next_tile: int = 0  # tiles after the one at hand


@dataclass(frozen=True)
class Loop:
    """The order of an iteration, and the tiles at the moment of one of its events."""

    idea: str
    buffers: tuple[Buffer, ...]
    before: str
    order: tuple[str, ...]
    moment: int  # from 1
    places: dict[str, str]  # for each tile, the numbers of the events that concern it
    shared: str
    registers: str
    q_tile: int = 1
    key_tile: int = 3
    warps: bool = True  # each owns neighbouring rows
    consumers: bool = False  # the first warpgroup is the producer, the others own 64 rows each
    after: str = "O / l is written to device memory"
    mask: str = ""  # for --mask; none: no mask
    scale: float = 1.1  # units per element of the tiles of the thread block


def loop_of(step: str) -> Loop:
    """The section [loop] of the table beside the step."""
    values = {
        name: tuple(value) if isinstance(value, list) else value for name, value in settings(step, "loop").items()
    }
    return Loop(**values | {"buffers": tuple(Buffer(**buffer) for buffer in values["buffers"])})
