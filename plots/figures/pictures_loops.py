"""What the programs print of the tiles of each step, and what a thread block does with them in one
iteration of its loop, in words."""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.lib import masks

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
    text = subprocess.run([program, *(problem or PROBLEM), "--info"], check=True, text=True,
                          capture_output=True).stdout
    tiles = re.search(r"^tiles +(\d+) rows of Q, (\d+) rows of K and V$", text, re.MULTILINE)
    kernels = re.findall(r"^kernel +(\w+): (\d+) blocks of (\d+) threads, (\d+) bytes", text,
                         re.MULTILINE)
    return Shape(int(tiles[1]), int(tiles[2]), {name: tuple(map(int, rest))
                                                for name, *rest in kernels})


def saved_mask(program: Path, mask: str, *more: str) -> tuple[np.ndarray, masks.BlockMask]:
    """Which keys each query attends, and the blocks, as the program saves them."""
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "mask"
        subprocess.run([program, *PROBLEM, "--mask", mask, *more, "--save-mask", saved,
                        "--draw-mask"], check=True, capture_output=True)
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
    scale: float = 1.1  # units per element of the tiles of the thread block


LOADED = (Buffer("v", "v", "V"), Buffer("k", "k", "K"))
PREFETCHED = (Buffer("v", "v", "V in flight", True), Buffer("k", "k", "next K", True, 0, 1))
BOTH = (*LOADED, Buffer("v", "v", "next V", True, 1, 1), Buffer("k", "k", "next K", True, 1, 1))
AHEAD = (Buffer("v", "v", "V"), Buffer("v", "v", "next V", True, 1, 1),
         Buffer("k", "k", "K after next", True, 0, 2), Buffer("k", "k", "next K", True, 1, 1))
BEFORE = (Buffer("v", "v", "V before", next_tile=-1), Buffer("v", "v", "V", column=1),
          Buffer("k", "k", "K"), Buffer("k", "k", "next K", True, 1, 1))
THREE = (*BEFORE, Buffer("v", "v", "next V", True, 2, 1),
         Buffer("k", "k", "K after next", True, 2, 2))
SOFTMAX = "Mask where needed. Softmax: new m and l; O is rescaled; P replaces S."
FRAGMENTS = "S, then P, and O as mma fragments in fp32; m and l of each row"
PADDED = "16 bits; each row has 16 bytes of padding"
LOOPS = {
    "step02": Loop(
        "one thread block, one tile of S at a time", LOADED, "load the tile of Q",
        ("Barrier. Load the tiles of K and V, converted to fp32. Barrier.",
         "S = Q K^T: each thread computes 4 x 4 entries.",
         "New maximum m and sum l of each row; O is multiplied by 2^(m_old - m_new).",
         "P = 2^(S - m) is written to shared memory; each row is read by the lanes that wrote it.",
         "O += P V."), 5,
        {"k": "1", "v": "1", "s": "2", "ml": "3", "p": "4", "o": "5"},
        "Q, K, V and P in fp32; Q, K and P with padding",
        "S and O in fp32; m and l of each row", 2, 6, warps=False),
    "step02b": Loop(
        "the same loop with mma", LOADED, "load the tile of Q",
        ("Barrier. Load the tiles of K and V. Barrier.",
         "S = Q K^T with mma: each warp computes its own 16 rows.",
         SOFTMAX,
         "O += P V with mma; P stays in the registers of S."), 4,
        {"k": "1", "v": "1", "s": "2", "ml": "3", "o": "4"},
        f"Q, K and V in {PADDED}", FRAGMENTS, 2),
    "step02c": Loop(
        "fragments by ldmatrix, 32 rows per warp", LOADED, "load the tile of Q",
        ("Barrier. Load the tiles of K and V. Barrier.",
         "S = Q K^T: ldmatrix loads Q and K; each fragment of K is used for 2 mma.",
         SOFTMAX,
         "O += P V: ldmatrix loads V; each fragment of V is used for 2 mma."), 4,
        {"k": "1", "v": "1", "s": "2", "ml": "3", "o": "4"},
        f"Q, K and V in {PADDED}", FRAGMENTS),
    "step03": Loop(
        "K and V share one buffer", (Buffer("k", "v", "V in flight", True),),
        "start copying the tile of Q",
        ("Start copying K to the buffer (cp.async). Wait. Barrier.",
         "S = Q K^T. Barrier: all warps have read K.",
         "Start copying V to the same buffer.",
         SOFTMAX,
         "Wait for V. Barrier.",
         "O += P V. Barrier: all warps have read V."), 4,
        {"k": "1 3 5", "s": "2", "ml": "4", "o": "6"},
        f"Q, and one buffer for K and V, in {PADDED}", FRAGMENTS),
    "step04": Loop(
        "copies overlap compute", PREFETCHED, "start copying Q and the first K",
        ("Wait for K of this tile. Barrier.",
         "Start copying V of this tile.",
         "S = Q K^T. Barrier: all warps have read K.",
         "Start copying K of the next tile.",
         SOFTMAX,
         "Wait for V; the next K stays in flight. Barrier.",
         "O += P V."), 5,
        {"k": "1 4", "v": "2 6", "s": "3", "ml": "5", "o": "7"},
        f"Q, K and V in {PADDED}", FRAGMENTS),
    "step05": Loop(
        "a list of tiles instead of all tiles", PREFETCHED,
        "start copying Q and K of the first entry",
        ("Wait for K of this entry of the list. Barrier.",
         "Start copying V of this entry.",
         "S = Q K^T; load the bits of a P tile and the next entry. Barrier: all warps have read K.",
         "Start copying K of the next entry, however far away its keys are.",
         "Mask by bits (P), by the diagonal (C) or not at all (F). Softmax as in step 04.",
         "Wait for V; the next K stays in flight. Barrier.",
         "O += P V."), 5,
        {"k": "1 4", "v": "2 6", "s": "3", "ml": "5", "o": "7"},
        f"Q, K and V in {PADDED}", FRAGMENTS, 3, 4),
    "step06": Loop(
        "two buffers each, one barrier per tile", BOTH, "start copying Q and the first K and V",
        ("Wait for K and V of this tile. Barrier: all warps are done with the last tile.",
         "S = Q K^T.",
         "Start copying K and V of the next tile to the other buffers.",
         "Mask where needed. P of the first 32 keys, with the old m unless P becomes too large.",
         "For each 32 keys: O += P V; at the same time, P of the next 32 keys."), 5,
        {"k": "1 3", "v": "1 3", "s": "2", "ml": "4", "o": "5"},
        "Q, and two buffers each for K and V, in 16 bits, swizzled; bits of masks",
        "S and O as mma fragments in fp32, P of 64 keys; m and l of each row", 1, 1),
    "step07": Loop(
        "wgmma and tensor copies", AHEAD, "one thread asks for Q, the first two K and the first V",
        ("Wait until K of this tile has arrived.",
         "S = Q K^T with wgmma. Wait for S. This warpgroup releases K.",
         SOFTMAX,
         "Wait until V of this tile has arrived.",
         "Start O += P V with wgmma. One thread asks for the K after next and for the next V.",
         "Wait for O. This warpgroup releases V."), 5,
        {"k": "1 5", "v": "4 5", "s": "2", "ml": "3", "o": "5 6"},
        "Q, and two buffers each for K and V, in 16 bits, swizzled; mbarriers",
        "S, then P, and O as wgmma fragments in fp32; m and l of each row", 1, 1),
    "step08": Loop(
        "a producer, and consumers that take turns", BEFORE,
        "one thread asks for Q; the consumers wait for it",
        ("Wait for the turn. Wait for V of the tile before; start O += P V of that tile.",
         "Wait for K of this tile; start S = Q K^T. Pass the turn on.",
         "Wait for both products. This consumer releases K, and V of the tile before.",
         "Mask where needed. Softmax: new m and l; O is rescaled; P replaces that of the tile "
         "before."), 2,
        {"k": "2 3", "v": "1 3", "s": "2", "ml": "4", "o": "1"},
        "Q, and two buffers each for K and V, in 16 bits, swizzled; mbarriers",
        "S, P of the tile before, and O as wgmma fragments; m and l of each row", 1, 1,
        consumers=True, scale=0.95),
    "step09": Loop(
        "P V of the tile before runs during the softmax", BEFORE,
        "S and P of the first tile",
        ("Wait for the turn. Wait for K of this tile; start S = Q K^T.",
         "Wait for V of the tile before; start O += P V of that tile. Pass the turn on.",
         "Wait for S alone. This consumer releases K.",
         "Mask where needed. Softmax: new m and l. P V still runs.",
         "Wait for O. Release V of the tile before. O is rescaled; P replaces that one."), 4,
        {"k": "1 3", "v": "2 5", "s": "1", "ml": "4", "o": "2 5"},
        "Q, and two buffers each for K and V, in 16 bits, swizzled; mbarriers",
        "S, P of the tile before, and O as wgmma fragments; m and l of each row", 1, 1,
        consumers=True, scale=0.95),
    "step10": Loop(
        "a thread block takes one tile of queries after the other", THREE,
        "S and P of the first tile",
        ("Wait for K of this tile; start S = Q K^T.",
         "Wait for V of the tile before; start O += P V of that tile.",
         "Wait for S alone. Mask. P with the m that is there, unless it is too small. Release K.",
         "Wait for O. Release V of the tile before. P replaces that of the tile before."), 3,
        {"k": "1 3", "v": "2 4", "s": "1", "ml": "3", "o": "2", "stored": "last O"},
        "Q, O, and three buffers each for K and V, in 16 bits, swizzled; mbarriers",
        "S, P of the tile before, and O as wgmma fragments; m and l of each row", 1, 1,
        consumers=True, after="release Q; O / l goes to shared memory, and from there to O",
        scale=0.75),
    "step11": Loop(
        "a plan says which tiles of keys are visited", THREE,
        "S and P of the first tile",
        ("Wait for K of the next tile of the plan; start S = Q K^T.",
         "Wait for V of the tile before; start O += P V of that tile.",
         "Wait for S alone. Mask it by bits where the plan says so. P, then release K.",
         "Wait for O. Release V of the tile before. P replaces that of the tile before."), 3,
        {"k": "1 3", "v": "2 4", "s": "1", "ml": "3", "o": "2", "stored": "last O"},
        "Q, O, and three buffers each for K and V, in 16 bits, swizzled; mbarriers",
        "S, P of the tile before, and O as wgmma fragments; m and l of each row", 1, 1,
        consumers=True, after="release Q; O / l goes to shared memory, and from there to O",
        scale=0.75),
    "step12": Loop(
        "three warps transpose V; P V of each tile begins at 0",
        (Buffer("v", "v", "V transposed"), Buffer("v", "v", "next V", True, 1, 1),
         Buffer("k", "k", "K"), Buffer("k", "k", "next K", True, 1, 1)),
        "wait for Q",
        ("Wait for K of this tile; S = Q K^T, and wait for it. Release K.",
         "Mask. P in e4m3; if it exceeds 448, P again with a larger m.",
         "Wait for V of this tile, transposed; P V, and wait for it. Release V.",
         "O becomes O plus P V."), 2,
        {"k": "1", "v": "3", "s": "1", "ml": "2", "o": "4", "stored": "last O"},
        "Q, K, V and V transposed in e4m3, O in 16 bits, swizzled; mbarriers",
        "S or P V, P, and O as wgmma fragments; m and l of each row", 1, 0,
        consumers=True, after="release Q; O / l goes to shared memory, and from there to O",
        scale=0.6),
}
