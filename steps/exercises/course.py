"""The exercises in the order of a course: of each how hard it is, how long it takes and what it trains.

Level 1 needs the text and its primer, 2 a drawing or a table first, 3 a plan of several changes that
depend on each other. Minutes are the authors' estimates, without the reading. What a broken kernel
trains must not name its fault.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Chapter:
    """entries: the exercise, its level, minutes, and what it trains."""

    title: str
    entries: tuple[tuple[str, int, int, str], ...]


COURSE = (
    Chapter(
        "First programs",
        (
            ("ex00", 1, 10, "an index for each thread, the number of blocks, a copy back"),
            ("exf02", 1, 20, "coalescing: which lane takes which element"),
            ("exf03", 1, 15, "banks, padding and a swizzle on a small tile"),
            ("exf04", 1, 15, "a reduction within a warp, and between the warps of a block"),
            ("exf05", 1, 15, "what a barrier protects; an index that is off by one"),
            ("exf06", 2, 15, "a sorting network drawn for a few keys"),
            ("exf07", 1, 15, "reuse in registers; loads per multiply-add"),
            ("exf08b", 2, 20, "which lane holds which element of C"),
            ("exf08c", 2, 20, "waits and barriers of a pipeline of copies"),
            ("exf09", 1, 15, "events between streams"),
            ("exf10", 2, 20, "an atomic lock, its fences, and the order of two locks"),
            ("exf11", 2, 25, "the barriers of a cluster, and stores into other blocks"),
            ("broken33", 2, 15, "which threads a barrier orders"),
            ("broken34", 2, 20, "how long a block must stay"),
        ),
    ),
    Chapter(
        "Threads and warps",
        (
            ("ex02", 1, 30, "reductions over a warp by shuffles; coalesced loops"),
            ("broken16", 1, 20, "reading counts of sectors line by line"),
            ("ex01", 1, 20, "indices of heads and batch entries, strides, grouped heads"),
            ("ex03", 1, 25, "bounds of incomplete tiles, and who must reach a barrier"),
        ),
    ),
    Chapter(
        "The online softmax",
        (
            ("ex05", 1, 20, "the update of l and O when the maximum grows"),
            ("ex06", 2, 25, "the end of a row: the sum over lanes, LSE, rows without a key"),
            ("ex04", 2, 30, "the causal mask for any lengths, and where the loop ends"),
            ("broken13", 1, 20, "checking a rule of masks by hand on small cases"),
            ("broken01", 2, 25, "reading a report that names two lines"),
            ("ex07", 2, 40, "reuse in registers; loads per multiply-add"),
            ("ex25", 3, 60, "the order of loops, and the traffic that it causes"),
        ),
    ),
    Chapter(
        "Tensor cores",
        (
            ("ex08", 2, 35, "which lane holds which element of operand A"),
            ("ex10", 2, 30, "which query and key an element of C belongs to"),
            ("ex11", 2, 30, "reductions over the four lanes that share a row"),
            ("ex09", 2, 30, "C as operand A without an exchange"),
            ("broken12", 2, 25, "patterns of wrong rows"),
            ("broken07", 2, 25, "finding a fault from what is right and what is wrong"),
            ("broken09", 2, 25, "where a NaN comes from"),
            ("broken08", 2, 25, "masked scores, and rows without a key"),
            ("broken10", 3, 30, "the range of fp16, and rare rescaling"),
        ),
    ),
    Chapter(
        "Shared memory and ldmatrix",
        (
            ("ex14", 2, 30, "banks, conflicts and padding"),
            ("ex15", 2, 35, "coalesced copies of 16 bytes"),
            ("broken15", 1, 15, "counts of wavefronts, and what they follow from"),
            ("ex12", 2, 35, "addresses of ldmatrix for Q and K"),
            ("ex13", 2, 30, "ldmatrix with and without .trans"),
            ("ex24", 3, 50, "a swizzle, used wherever a tile is written or read"),
            ("broken11", 2, 25, "faults that only large problems show"),
        ),
    ),
    Chapter(
        "Asynchronous copies",
        (
            ("ex17", 2, 35, "waits that leave the newest copies in flight"),
            ("ex16", 2, 40, "commit, wait, barrier: who may read and overwrite when"),
            ("broken04", 2, 25, "barriers, and which threads reach them"),
            ("broken02", 2, 25, "which copies a wait covers"),
            ("broken03", 2, 25, "groups of copies"),
            ("broken14", 1, 20, "full and incomplete tiles under each mask"),
            ("ex26", 3, 90, "from a measurement to a change that was predicted"),
        ),
    ),
    Chapter(
        "Masks and variants",
        (
            ("ex18", 2, 30, "tiles that a mask leaves out, cuts or leaves whole"),
            ("ex19", 2, 35, "a loop over a list with prefetch"),
            ("ex20", 2, 35, "bits of a mask for the elements of a fragment"),
            ("ex22", 2, 30, "units of scores; the order of cap and mask"),
            ("ex21", 2, 45, "a bias in the right unit at the right element"),
            ("ex23", 3, 45, "a change of the online softmax derived from its formula"),
            ("broken05", 1, 20, "why an answer depends on the order of threads"),
            ("broken06", 3, 35, "following the state of a loop when nothing is reported"),
            ("broken23", 2, 30, "when a buffer may be overwritten"),
        ),
    ),
    Chapter(
        "One barrier for each tile",
        (
            ("broken28", 2, 25, "what a barrier says about reads and copies"),
            ("broken21", 3, 35, "finding a fault that few rows show"),
            ("broken22", 2, 25, "who must wait for whom"),
        ),
    ),
    Chapter(
        "Hopper",
        (
            ("ex27", 3, 60, "descriptors of swizzled tiles, TMA loads"),
            ("broken17", 2, 25, "addresses that depend on the head dimension"),
            ("ex28", 3, 75, "a pipeline of stages: full and empty barriers, parities"),
            ("broken18", 2, 25, "what ends a phase of an mbarrier"),
            ("ex29", 3, 60, "two GEMMs in flight, and what may be touched meanwhile"),
            ("broken19", 3, 30, "faults that a GPU shows rarely"),
            ("broken20", 3, 35, "what a producer and its consumers must agree on"),
            ("broken24", 3, 30, "reading reports about TMA stores"),
            ("broken25", 2, 25, "when the diagnosis names a symptom"),
            ("broken26", 3, 35, "memory that two pipelines share"),
        ),
    ),
    Chapter(
        "Plans, lists and fp8",
        (
            ("ex30", 3, 75, "ranges of tiles, rounded outwards and inwards"),
            ("broken27", 3, 30, "ordinary memory beside TMA loads"),
            ("ex31", 3, 90, "bytes through ldmatrix, prmt and stmatrix; scales"),
        ),
    ),
    Chapter(
        "The backward pass",
        (
            ("ex32", 1, 20, "a dot product by a warp; D = rowsum(dO o O)"),
            ("broken29", 1, 20, "which gradients a wrong number can reach"),
            ("ex37", 2, 30, "who adds up what belongs to several heads"),
            ("ex33", 2, 30, "products with P^T and dS^T, and which part a thread has"),
            ("ex34", 2, 35, "the causal mask, seen from the keys"),
            ("broken30", 1, 20, "what a test with equal numbers of heads does not show"),
            ("ex35", 2, 35, "operand B whose sum runs over the rows of a tile"),
            ("ex36", 2, 35, "sums in the order of fragments, additions of 16 bytes"),
            ("broken31", 2, 25, "why a right answer proves little"),
            ("broken32", 3, 35, "finding a fault from what is right and what is wrong"),
            ("ex38", 3, 60, "the mask of each query, transposed to lists of each block of keys"),
            ("broken35", 2, 25, "who decides what is loaded, and who uses it"),
        ),
    ),
    Chapter(
        "Decode",
        (
            ("ex39", 2, 30, "merging parts of a softmax, of lanes and of warps"),
            ("ex40", 2, 30, "dividing keys evenly, and merging by LSE"),
            ("broken36", 2, 20, "what has to happen before a block may be counted"),
            ("broken37", 1, 15, "what one pass leaves to the next"),
            ("ex42", 3, 45, "equal shares of uneven work, and where they are cut"),
            ("broken39", 2, 20, "which lengths a test has to try"),
            ("ex41", 2, 30, "addresses by way of a table, looked up ahead"),
            ("broken38", 2, 20, "what a loop carries from one tile to the next"),
        ),
    ),
)
