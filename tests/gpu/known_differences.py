"""What nvcc generates differently from g++: differences between the lab and Nsight Compute, each
computed exactly, so that none can cover up another.

Each function returns, by count, how many more the GPU has than the lab. Tensors on the device begin
at multiples of 256 bytes.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

WARP = 32
TILE = 32  # step 01: rows and columns of a block
SECTOR_FLOATS = 8
LANES = 8  # step 02: threads that share a row
WARPS = 4  # from step 02b on: of a thread block
VECTOR = 8  # elements in 16 bytes
MULTIPROCESSORS = 132  # of an H200


@dataclass(frozen=True)
class Shape:
    """The problem that the options of a run describe."""

    batch: int
    heads: int
    seqlen: int
    seqlen_kv: int
    head_dim: int
    causal: bool

    @classmethod
    def of(cls, options: str) -> "Shape":
        words = options.split()
        given = dict(zip(words[::2], words[1::2]))
        seqlen = int(given["-n"])
        return cls(int(given["-b"]), int(given["-H"]), seqlen, int(given.get("-k", seqlen)),
                   int(given["-d"]), given.get("-m") == "causal")

    def keys(self, query: int) -> int:
        """How many keys a query attends."""
        if not self.causal:
            return self.seqlen_kv
        return min(max(query + 1 + self.seqlen_kv - self.seqlen, 0), self.seqlen_kv)


def wide_loads(lab: Counter, _: Shape) -> Counter:
    """Step 01, scores: four consecutive q_shared[row][i], the same for all lanes, are one load of
    16 bytes, which takes two wavefronts. Half of all loads are of q_shared."""
    q_loads = lab["shared_load_requests"] // 2
    return Counter(shared_load_requests=q_loads // 4 - q_loads,
                   shared_load_wavefronts=2 * (q_loads // 4) - q_loads)


def wide_loads_of_probs(_: Counter, shape: Shape) -> Counter:
    """Step 01, output: the same for p_shared[row][i]; the keys after the last group of four are
    also one load of 16 bytes."""
    requests = wavefronts = 0
    for first_q in range(0, shape.seqlen, TILE):
        for q in range(first_q, min(first_q + TILE, shape.seqlen)):
            for k in range(0, shape.keys(q), TILE):
                keys = min(TILE, shape.keys(q) - k)
                vectors = (keys + 3) // 4
                requests += vectors - keys
                wavefronts += 2 * vectors - keys
    blocks = shape.batch * shape.heads * ((shape.head_dim + TILE - 1) // TILE)
    return Counter(shared_load_requests=blocks * requests,
                   shared_load_wavefronts=blocks * wavefronts)


def loop_requests(keys: int, first: int, blocks: list[int]) -> tuple[int, int]:
    """Requests and sectors of one pass over a row of `keys` floats that begins at element `first`.
    Each lane first does the iterations that fit in no unrolled block of 4, one by one; then it uses
    the largest blocks that still fit. Lanes that execute the same load of the same block form one
    request, even if they are at different positions of the row."""
    requests: dict[tuple, set[int]] = {}
    for lane in range(WARP):
        iteration, left = 0, max(-(-(keys - lane) // WARP), 0)
        for block in blocks:
            count = left % 4 if block == 1 else left // block * block
            for i in range(count):
                sector = (first + (iteration + i) * WARP + lane) // SECTOR_FLOATS
                requests.setdefault((block, i), set()).add(sector)
            iteration, left = iteration + count, left - count
    return len(requests), sum(map(len, requests.values()))


def unrolled_loops(lab: Counter, shape: Shape) -> Counter:
    """Step 01, softmax: the loops over a row are unrolled, the first two by 16, 8 and 4, the last
    by 4. If only some lanes have one more iteration, lanes are at different positions."""
    gpu = Counter()
    heads = shape.batch * shape.heads
    for row in range(heads * shape.seqlen):
        keys, first = shape.keys(row % shape.seqlen), row * shape.seqlen_kv
        for blocks, loads, stores in (([1, 16, 8, 4], 2, 0), ([1, 4], 1, 1)):
            requests, sectors = loop_requests(keys, first, blocks)
            gpu["global_load_requests"] += loads * requests
            gpu["global_load_sectors"] += loads * sectors
            gpu["global_store_requests"] += stores * requests
            gpu["global_store_sectors"] += stores * sectors
    for what in ("requests", "sectors"):
        gpu[f"global_store_{what}"] += heads * shape.seqlen  # of LSE, by lane 0
        gpu[f"global_store_{what}"] -= lab[f"global_store_{what}"]
        gpu[f"global_load_{what}"] -= lab[f"global_load_{what}"]
    gpu["l1_load_sectors"] = gpu["global_load_sectors"]
    return gpu


def split_stores(lab: Counter, shape: Shape) -> Counter:
    """Step 02: the first of a row's stores of 8 bytes is split into two of 4 bytes, which access
    the same sectors. LSE has one request for each group of rows that has one of O."""
    chunks = -(-shape.head_dim // (4 * LANES))
    requests = lab["global_store_requests"] // (chunks + 1)
    rows = shape.batch * shape.heads * shape.seqlen
    return Counter(global_store_requests=requests,
                   global_store_sectors=rows * LANES * 8 // 32)


def tile_rows(shape: Shape) -> tuple[int, int]:
    """From step 02c on: rows of Q and of K in a tile."""
    return 128 if shape.head_dim <= 128 else 64, 64 if shape.head_dim <= 64 else 32


def vector_load(places: list[tuple[int, int]], vectors: int) -> Counter:
    """One request for vectors of 16 bytes: for each lane, its row and its vector in the row. A row
    has `vectors` vectors and one of padding. Eight lanes are served at a time."""
    groups = [Counter((row * (vectors + 1) + vector) % 8 for row, vector in places[i:i + 8])
              for i in range(0, len(places), 8)]
    wavefronts = sum(max(group.values()) for group in groups)
    return Counter(shared_load_requests=int(bool(places)), shared_load_wavefronts=wavefronts,
                   shared_conflicts=wavefronts - len(groups))


def last_load(_: Counter, shape: Shape) -> Counter:
    """From step 02c on, store of O: lanes with nothing to store exit before the last of their
    loads."""
    q_rows = tile_rows(shape)[0]
    return last_load_of(shape, q_rows, q_rows // WARPS)


def last_load_of(shape: Shape, q_rows: int, rows: int) -> Counter:
    """The same for tiles of `q_rows` queries, `rows` of a warp."""
    vectors = shape.head_dim // VECTOR
    places = [divmod(i, vectors) for i in range(rows * vectors - WARP, rows * vectors)]
    all_lanes, gpu = vector_load(places, vectors), Counter()
    for first in range(0, -(-shape.seqlen // q_rows) * q_rows, rows):
        stored = [place for place in places if first + place[0] < shape.seqlen]
        gpu.update(vector_load(stored, vectors))
        gpu.subtract(all_lanes)
    return Counter({count: shape.batch * shape.heads * more for count, more in gpu.items()})


def whole_entries(lab: Counter, shape: Shape) -> Counter:
    """Step 05: the four numbers of a QueryTile, once for each warp, and the two of a KeyTile, once
    for each tile of a warp, are one load each. All lanes read the same sector."""
    q_rows, kv_rows = tile_rows(shape)
    warps = shape.batch * shape.heads * -(-shape.seqlen // q_rows) * WARPS
    mma_of_tile = 2 * (q_rows // WARPS // 16) * (kv_rows // 8) * (shape.head_dim // 16)
    loads = -3 * warps - lab["mma"] // mma_of_tile
    more = last_load(lab, shape)
    more.update(global_load_requests=loads, global_load_sectors=loads, l1_load_sectors=loads)
    return more


def fewer_loads(lab: Counter, shape: Shape) -> Counter:
    """Step 06: the numbers of a QueryTile, of a KeyTile and of a row of mask bits are one load each.
    At the end all lanes load 16 bytes of O, also those that have nothing to store."""
    pairs = shape.head_dim == 256  # two warps share 32 rows, and each has half of the columns
    vectors = (128 if pairs else shape.head_dim) // VECTOR
    rows = [first for first in range(0, -(-shape.seqlen // 128) * 128, 8)
            for _ in range(1 + pairs) for _ in range(shape.batch * shape.heads)]
    warps, gpu, stored = len(rows) // 4, Counter(), Counter()
    for first in rows:
        for i in range(0, 8 * vectors, WARP):
            served = sum(first + j // vectors < shape.seqlen for j in range(i, i + WARP, 8))
            stored.update(requests=int(served > 0), wavefronts=served)
            gpu.update(shared_load_requests=1, shared_load_wavefronts=4)
    gpu.subtract(shared_load_requests=stored["requests"],
                 shared_load_wavefronts=stored["wavefronts"])
    entries = lab["global_load_requests"] - lab["copy_requests"] - 4 * warps
    loads = -3 * warps - (entries // 2 if pairs else 0)
    gpu.update(global_load_requests=loads, global_load_sectors=loads, l1_load_sectors=loads)
    if not pairs:
        bits, words = lab["shared_load_requests"] - stored["requests"], tile_words(shape)
        gpu.update(shared_load_requests=bits // words - bits,
                   shared_load_wavefronts=bits // words * (words // 2) - bits)
    return gpu


def tile_words(shape: Shape) -> int:
    """Step 06: words of 32 keys in a row of a tile's mask bits."""
    return 4 if shape.head_dim <= 64 else 2


def hopper_tiles(step: str, head_dim: int) -> tuple[int, int]:
    """From step 07 on: rows of Q and of K in a tile."""
    if step == "step07":
        return 192 if head_dim in (96, 128) else 128, 128 if head_dim <= 128 else 64
    if step == "step12":
        return 192, 128
    if step in ("step10", "step11"):
        return (192 if head_dim <= 128 else 128,
                128 if head_dim <= 64 else 64 if head_dim <= 128 else 80)
    return 192 if head_dim <= 64 else 128, 80 if head_dim > 128 else 192 if head_dim > 64 else 128


def whole_boxes(step: str) -> Callable[[Counter, Shape], Counter]:
    """From step 07 on: Nsight Compute counts all sectors of a box, also those outside of the
    tensor, which become 0. Boxes are 64 rows of Q, or a tile of K or V, and 64 or 32 columns of 16
    bits, or all of 8 bits; in step 11 also the spans of 64 queries, which are always inside."""
    def amount(lab: Counter, shape: Shape) -> Counter:
        block_m, block_n = hopper_tiles(step, shape.head_dim)
        columns = (shape.head_dim // 2 if step == "step12" else
                   64 if shape.head_dim % 64 == 0 else 32)
        tiles = shape.batch * shape.heads * -(-shape.seqlen // block_m)
        q_boxes = tiles * block_m // 64 * (
            1 if step == "step12" else shape.head_dim // columns)
        span_boxes = tiles * block_m // 64 if step == "step11" else 0
        rows = 64 * q_boxes + block_n * (lab["tensor_loads"] - q_boxes - span_boxes)
        gpu = Counter(tensor_load_sectors=rows * 2 * columns // 32 + 16 * span_boxes)
        gpu.subtract(tensor_load_sectors=lab["tensor_load_sectors"])
        if step == "step07":
            gpu.update(last_load_of(shape, block_m, 16))
        if step == "step10":
            gpu.update(more_blocks(tiles, 4 * block_m // 64))
        return gpu
    return amount


def more_blocks(tiles: int, consumers: int) -> Counter:
    """Step 10 has a thread block for each multiprocessor, of which the CPU backend has 4. Each has
    a warpgroup and the warps that are `consumers`, which read once that there is no more work, as
    its producer stores."""
    more = min(tiles, MULTIPROCESSORS) - min(tiles, 4)
    return Counter(shuffles=more * (4 + consumers), barriers=more * (4 + consumers),
                   shared_load_requests=more * consumers, shared_load_wavefronts=more * consumers,
                   shared_store_requests=more, shared_store_wavefronts=more)


@dataclass(frozen=True)
class Known:
    """A difference and a short reason."""

    reason: str
    amount: Callable[[Counter, Shape], Counter]


KNOWN = {
    ("step01", "scores_kernel"): Known("nvcc: four loads of q_shared are one", wide_loads),
    ("step01", "output_kernel"): Known("nvcc: four loads of p_shared are one",
                                       wide_loads_of_probs),
    ("step01", "softmax_kernel"): Known("nvcc: unrolled loops, lanes at different places",
                                        unrolled_loops),
    ("step02", "attention_kernel"): Known("nvcc: one store of a row is made as two", split_stores),
    ("step02c", "attention_kernel"): Known("nvcc: the last load is made by what stores it",
                                           last_load),
    ("step03", "attention_kernel"): Known("nvcc: the last load is made by what stores it",
                                          last_load),
    ("step04", "attention_kernel"): Known("nvcc: the last load is made by what stores it",
                                          last_load),
    **{(step, "attention_kernel"): Known("what a box has outside of the tensor is counted",
                                         whole_boxes(step))
       for step in ("step08", "step09", "step11", "step12")},
    ("step10", "attention_kernel"): Known("what a box has outside of the tensor is counted; more "
                                          "multiprocessors", whole_boxes("step10")),
    ("step07", "attention_kernel"): Known("what a box has outside of the tensor is counted; nvcc: "
                                          "the last load is made by what stores it",
                                          whole_boxes("step07")),
    ("step06", "attention_kernel"): Known("nvcc: wider loads", fewer_loads),
    ("step06", "pair_kernel"): Known("nvcc: wider loads", fewer_loads),
    ("step05", "attention_kernel"): Known("nvcc: an entry of a list is one load, the last load is "
                                          "made by what stores it", whole_entries),
}
