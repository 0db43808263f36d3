"""The exercises and the broken kernels: where each comes from, how it is checked, what it is worth.

The task text of ex07 is ex07_NAME.md. Its solution is a step, with ex07_NAME.solution.patch applied
if there is one, or ex07_NAME.solution.cu; ex07_NAME.patch turns the solution into the file that the
student starts from. A broken kernel is the same: broken07_NAME.patch puts one fault into a step.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """A part of an exercise, and what it is worth. Each of `cases` is a line of options of a step,
    such as "-n 100 -m causal". All of them must have the right answer and no finding of the lab.

    counts: fields of the lab's record of a run (docs/json-records.md) whose sum is compared with the
        solution's in the last of the cases; one with a minus is subtracted. A GPU compares times
        instead. Full points up to 1.2 times as much, none from 10 times on.
    gpu: the problem that a GPU is timed with; without it, the last of the cases.
    gpu_limits: full points up to so many times the solution's time, none from so many times on.
    setting: of the CPU backend, such as "SIMT_SHARED=48K" (docs/cpu-backend.md).
    """

    what: str
    points: int
    cases: tuple[str, ...]
    counts: tuple[str, ...] = ()
    gpu: str = ""
    gpu_limits: tuple[float, float] = (1.2, 10)
    setting: str = ""


@dataclass(frozen=True)
class Exercise:
    """step: the source, "step02", or a program of chapter 0, "f02". configs: the arguments of CONFIG<...>
    in its table that are kept, so that it compiles in a second. rule: see judge.c. judge: "judge_e4m3"
    if Q, K and V are e4m3, "judge_backward" if gradients are computed, "judge_spans" if so with masks of spans, "judge_decode" if the step is one of decode. fails: words that the check of
    the untouched starting file prints; @TEXT@ in them is the place of the only line of this file with
    TEXT."""

    name: str
    step: str
    configs: tuple[str, ...]
    parts: tuple[Part, ...]
    fails: str
    rule: str = ""
    judge: str = "judge"

    @property
    def points(self) -> int:
        return sum(part.points for part in self.parts)

    @property
    def is_foundation(self) -> bool:
        return self.step.startswith("f")


# A table, a line for each part.
# fmt: off
EXERCISES = {exercise.name: exercise for exercise in (
    Exercise("ex00", "f01", (), (
        Part("one block: 256 elements", 1, ("-n 256",)),
        Part("whole blocks", 1, ("-n 1024", "-n 2560")),
        Part("any number of elements", 2, ("-n 1000", "-n 1", "-n 257", "-n 100000"))),
        fails="255 of 256 elements are wrong: element 1 is 0, should be 2.5"),
    Exercise("exf02", "f02", (), (
        Part("right answers", 1, ("-n 10000 --stage=chunks", "-n 5001 --stage=staged", "-n 100")),
        Part("eight particles for each thread", 2, ("-n 10000 --stage=chunks",),
             counts=("global_load_sectors", "global_store_sectors"),
             gpu="-n 10000000 --stage=chunks", gpu_limits=(1.1, 3)),
        Part("the results, by way of shared memory", 2, ("-n 10000 --stage=staged",),
             counts=("global_store_sectors",), gpu="-n 10000000 --stage=staged", gpu_limits=(1.1, 3))),
        fails="global_load_sectors + global_store_sectors is"),
    Exercise("exf03", "f03", (), (
        Part("right answers", 1, ("-n 100 --stage=naive", "-n 100 --stage=padded", "-n 33 --stage=padded",
                                  "-n 100 --stage=swizzled", "-n 33 --stage=swizzled")),
        Part("padding", 2, ("-n 128 --stage=padded",),
             counts=("shared_load_wavefronts", "shared_store_wavefronts"),
             gpu="-n 8192 --stage=padded", gpu_limits=(1.1, 3)),
        Part("a swizzle", 2, ("-n 128 --stage=swizzled",),
             counts=("shared_load_wavefronts", "shared_store_wavefronts"),
             gpu="-n 8192 --stage=swizzled", gpu_limits=(1.1, 3))),
        fails="shared_load_wavefronts + shared_store_wavefronts is"),
    Exercise("exf04", "f04", (), (
        Part("a warp", 1, ("-n 128 --stage=shuffles", "-n 90 --stage=shuffles")),
        Part("a block", 2, ("-n 1000 --stage=shuffles", "-n 1024 --stage=atomics")),
        Part("many blocks", 1, ("-n 5000 --stage=last-block", "-n 100000 --stage=shuffles")),
        Part("no more shuffles than needed", 1, ("-n 5000 --stage=atomics",),
             counts=("shuffles",), gpu="-n 100000000 --stage=atomics")),
        fails="with -n 128 --stage=shuffles: shuffles WRONG the sum is"),
    Exercise("exf05", "f05", (), (
        Part("one block", 2, ("-n 256 --stage=hillis-steele", "-n 100 --stage=hillis-steele")),
        Part("several blocks", 2, ("-n 512 --stage=warps", "-n 70001 --stage=warps")),
        Part("two barriers in a round", 1, ("-n 3 --stage=hillis-steele", "-n 5000 --stage=hillis-steele"),
             counts=("barriers",), gpu="-n 100000000 --stage=hillis-steele")),
        fails="shared memory race: read of what another thread wrote, no barrier between"),
    Exercise("exf06", "f06", (), (
        Part("one chunk of 512 keys", 2, ("-n 512", "-n 300")),
        Part("several chunks", 2, ("-n 1024", "-n 5000"))),
        fails="bitonic WRONG element 1 is 20213891, should be 15916492"),
    Exercise("exf07", "f07", (), (
        Part("a whole tile", 1, ("-n 128 --stage=registers",)),
        Part("any side", 1, ("-n 7 --stage=registers", "-n 131 --stage=registers")),
        Part("16 loads for 64 multiply-adds", 2, ("-n 128 --stage=registers",),
             counts=("shared_load_wavefronts",), gpu="-n 2048 --stage=registers", gpu_limits=(1.1, 3))),
        fails="registers WRONG row 0, column 0 is 0, should be"),
    Exercise("exf08b", "f08b", (), (
        Part("8 rows and columns", 1, ("-n 8 --stage=mma",)),
        Part("a whole tile", 2, ("-n 16 --stage=mma", "-n 128 --stage=mma")),
        Part("any side", 1, ("-n 77 --stage=mma", "-n 130 --stage=mma"))),
        fails="write to what another thread of the block wrote, nothing orders them"),
    Exercise("exf08c", "f08c", (), (
        Part("one pair of tiles", 1, ("-n 64 --stage=pipeline",)),
        Part("slots are used again", 2, ("-n 250 --stage=pipeline", "-n 300 --stage=pipeline")),
        Part("one barrier for each pair", 1, ("-n 250 --stage=pipeline",),
             counts=("barriers",), gpu="-n 4096 --stage=pipeline"),
        Part("products beside copies", 1, ("-n 250 --stage=pipeline",),
             counts=("mma", "-mma_under_copy"), gpu="-n 4096 --stage=pipeline",
             gpu_limits=(1.05, 1.5))),
        fails="use of shared memory that a cp.async is on its way to"),
    Exercise("exf09", "f09", (), (
        Part("the oldest operation first", 1, ("-n 5000 --stage=events",)),
        Part("the newest operation first", 2, ("-n 5000 --stage=events", "-n 3 --stage=events"),
             setting="SIMT_ORDER=reverse"),
        Part("a random order", 1, ("-n 5000 --stage=events",), setting="SIMT_ORDER=random:7")),
        fails="the newest operation first"),
    Exercise("exf10", "f10", (), (
        Part("one lock", 2, ("-n 500 --stage=lock", "-n 2000 --stage=lock")),
        Part("two locks", 2, ("-n 500 --stage=two-locks", "-n 2000 --stage=two-locks"))),
        fails="read of what another thread of the block wrote, nothing orders them"),
    Exercise("exf11", "f11", (), (
        Part("one row", 2, ("-n 2000 --stage=cluster", "-n 2048 --stage=cluster")),
        Part("several rows, in other orders of blocks", 2, ("-n 5000 --stage=cluster",), setting="SIMT_ORDER=random:3"),
        Part("the row is read once", 1, ("-n 4096 --stage=cluster",), counts=("global_load_sectors",),
             gpu="-n 67108864 --stage=cluster")),
        fails="read of shared memory that nobody wrote"),
    Exercise("ex01", "step01", (), (
        Part("several heads", 1, ("-n 40 -k 70 -H 3 -d 32",)),
        Part("several batch entries", 1, ("-n 70 -k 40 -H 2 -b 3 -d 32",)),
        Part("heads that share keys and values", 2,
             ("-n 40 -k 70 -H 6 -G 2 -d 32", "-n 64 -H 6 -G 3 -m causal -d 32",
              "-n 33 -k 50 -H 4 -G 1 -b 2 -d 32", "-n 50 -k 40 -H 4 -G 2 -b 2 --layout bnhd -d 32"))),
        fails="two blocks write the same bytes"),
    Exercise("ex02", "step01", (), (
        Part("32 equal scores: the sum", 1, ("-n 32 -d 8 -i constant",)),
        Part("different scores, rows of any length, a causal mask", 2,
             ("-n 32 -d 8", "-n 40 -k 9 -d 8", "-n 40 -k 75 -d 8", "-n 32 -d 8 -m causal",
              "-n 64 -i spiky --scale 2", "-n 70 -d 64 -m causal --scale 32",
              "-n 90 -k 40 -d 8 -m causal")),
        Part("ten shuffles for each row", 1, ("-n 64 -d 8",),
             counts=("shuffles",), gpu="-b 4 -H 16 -n 2048 -d 8"),
        Part("sectors of global memory", 1, ("-n 128 -k 256 -d 8",),
             counts=("global_load_sectors",), gpu="-b 4 -H 16 -n 2048 -d 8")),
        fails="64 of 64 checked rows of O, 64 of LSE"),
    Exercise("ex03", "step01", (), (
        Part("a head dimension that is no multiple of 32", 1, ("-n 64 -d 40", "-n 32 -d 7")),
        Part("queries and keys that are no multiples of 32", 2,
             ("-n 65 -k 64", "-n 64 -k 75", "-n 33 -k 31")),
        Part("all of it, a causal mask, one key", 1,
             ("-n 77 -d 50 -m causal", "-n 90 -k 40 -d 33 -m causal", "-n 1 -k 1 -d 1"))),
        fails="out of bounds"),
    Exercise("ex04", "step02", ("__half, 64, 64, 32",), (
        Part("an incomplete tile of keys", 1, ("-n 64 -k 75", "-n 100 -k 5")),
        Part("a causal mask, as many queries as keys", 1, ("-n 128 -m causal", "-n 77 -m causal")),
        Part("more keys than queries, and fewer", 2,
             ("-n 40 -k 100 -m causal", "-n 100 -k 40 -m causal", "-n 70 -k 1 -m causal")),
        Part("tiles that nobody attends are left out", 1, ("-n 258 -k 64 -m causal",),
             counts=("barriers",), gpu="-b 4 -H 16 -n 4096 -k 1024 -m causal")),
        fails="rows of zeros past the last key take part"),
    Exercise("ex05", "step02", ("__half, 64, 64, 32",), (
        Part("one tile of keys", 1, ("-n 64 -k 32",)),
        Part("a maximum that grows from tile to tile", 3, ("-n 128", "-n 256 -i spiky")),
        Part("incomplete tiles, a causal mask, rows without a key, large scores", 2,
             ("-n 100 -k 75", "-n 77 -m causal", "-n 90 -k 40 -m causal",
              "-n 70 -m causal --scale 32"))),
        fails="a maximum that grows"),
    Exercise("ex06", "step02", ("__half, 64, 64, 32",), (
        Part("the rows of whole tiles", 2,
             ("-n 64 -k 32 -i constant", "-n 64 -k 32", "-n 128 -i spiky --scale 2")),
        Part("incomplete tiles", 1, ("-n 77 -k 100 -d 37", "-n 1 -k 1")),
        Part("rows without a key, large scores", 2,
             ("-n 100 -k 40 -m causal", "-n 70 -k 1 -m causal", "-n 70 -m causal --scale 32"))),
        fails="the final division by the softmax denominator is missing"),
    Exercise("ex07", "step02", ("__half, 64, 64, 32",), (
        Part("16 rows and 8 keys: s[0][0]", 1, ("-n 16 -k 8",)),
        Part("whole tiles: all entries of s", 1, ("-n 64 -k 32", "-n 128")),
        Part("incomplete tiles, fewer columns", 1, ("-n 100 -k 75", "-n 77 -m causal -d 40")),
        Part("few loads from shared memory", 3, ("-n 64",),
             counts=("shared_load_requests", "shared_load_wavefronts"), gpu="-b 4 -H 16 -n 2048")),
        fails="32 of 32 checked rows of O, 32 of LSE"),
    Exercise("ex08", "step02b", ("__half, 64", "__half, 128"), (
        Part("8 queries: a[0] and a[2]", 1, ("-n 8 -k 64",)),
        Part("16 rows for each warp: a[1] and a[3], too", 2, ("-n 64", "-n 128 -k 64 -d 128")),
        Part("incomplete tiles, a causal mask, grouped heads", 1,
             ("-n 100 -k 75", "-n 150 -m causal -d 128", "-n 77 -k 130 -H 4 -G 2"))),
        fails="16 of 16 checked rows of O, 16 of LSE"),
    Exercise("ex09", "step02b", ("__half, 64", "__nv_bfloat16, 64"), (
        Part("8 queries and 8 keys: a[0]", 1, ("-n 8 -k 8",)),
        Part("16 rows for each warp: a[1]", 1, ("-n 64 -k 8",)),
        Part("tiles of 64 keys: a[2] and a[3], too", 2, ("-n 64", "-n 128 -i spiky")),
        Part("incomplete tiles, a causal mask, bf16", 1,
             ("-n 100 -k 75", "-n 150 -m causal", "-n 77 -k 130 -m causal -t bf16"))),
        fails="16 of 16 checked rows of O, 0 of LSE"),
    Exercise("ex10", "step02b", ("__half, 64",), (
        Part("an incomplete tile of keys", 2, ("-n 64 -k 75", "-n 64 -k 1", "-n 128 -k 110")),
        Part("a causal mask", 2, ("-n 128 -m causal",)),
        Part("both; more keys than queries and fewer; rows without a key", 2,
             ("-n 77 -m causal", "-n 40 -k 109 -m causal", "-n 150 -k 43 -m causal -H 4 -G 2"))),
        fails="128 of 128 checked rows of O, 128 of LSE"),
    Exercise("ex11", "step02b", ("__half, 64",), (
        Part("equal scores: the sum", 1, ("-n 64 -i constant",)),
        Part("different scores: the maximum, too", 2, ("-n 64", "-n 256 -i spiky --scale 2")),
        Part("incomplete tiles, a causal mask, rows without a key, large scores", 2,
             ("-n 100 -k 75", "-n 77 -m causal", "-n 90 -k 40 -m causal",
              "-n 70 -m causal --scale 32")),
        Part("no more shuffles than needed", 1, ("-n 64 -k 256",),
             counts=("shuffles",), gpu="-b 4 -H 16 -n 2048")),
        fails="128 of 128 checked rows of O, 128 of LSE"),
    Exercise("ex12", "step02c", ("__half, 64", "__half, 128"), (
        Part("8 queries and 8 keys", 1, ("-n 8 -k 8",)),
        Part("all rows of a warp", 1, ("-n 128 -k 8",)),
        Part("tiles of 64 keys", 2, ("-n 128 -k 64", "-n 128 -i spiky", "-n 200 -d 128")),
        Part("incomplete tiles, a causal mask, grouped heads", 1,
             ("-n 77 -k 130 -m causal", "-n 150 -k 75 -H 4 -G 2")),
        Part("one load for four registers", 1, ("-n 128",),
             counts=("ldmatrix_requests", "shared_load_requests"), gpu="-b 4 -H 16 -n 2048")),
        fails="16 of 16 checked rows of O, 16 of LSE"),
    Exercise("ex13", "step02c", ("__half, 64", "__half, 128"), (
        Part("8 keys", 1, ("-n 8 -k 8",)),
        Part("tiles of 64 keys", 2, ("-n 128 -k 64", "-n 128 -i spiky", "-n 200 -d 128")),
        Part("incomplete tiles, a causal mask, grouped heads", 1,
             ("-n 77 -k 130 -m causal", "-n 150 -k 75 -H 4 -G 2")),
        Part("one load for four registers", 1, ("-n 128",),
             counts=("ldmatrix_requests", "shared_load_requests"), gpu="-b 4 -H 16 -n 2048")),
        fails="16 of 16 checked rows of O, 0 of LSE"),
    Exercise("ex14", "step02b", ("__half, 32", "__half, 64", "__half, 96"), (
        Part("right answers", 1, ("-n 64", "-n 100 -k 75", "-n 77 -k 130 -m causal")),
        Part("wavefronts at D = 64", 2, ("-n 100 -m causal", "-n 64 -k 256 -H 1"),
             counts=("shared_load_wavefronts", "shared_store_wavefronts"),
             gpu="-b 4 -H 16 -n 2048", gpu_limits=(1.1, 3)),
        Part("wavefronts at D = 32 and 96", 2,
             ("-n 100 -d 96", "-n 64 -k 256 -d 32 -H 1", "-n 64 -k 128 -d 96 -H 1"),
             counts=("shared_load_wavefronts", "shared_store_wavefronts"),
             gpu="-b 4 -H 16 -n 2048 -d 96", gpu_limits=(1.1, 3))),
        fails="shared_load_wavefronts"),
    Exercise("ex15", "step02b", ("__half, 64", "__half, 96"), (
        Part("right answers", 1, ("-n 64", "-n 100 -k 75", "-n 100 -H 3 --layout bnhd -m causal")),
        Part("sectors", 2, ("-n 100 -k 75 -d 96", "-n 128 -k 256"),
             counts=("global_load_sectors",), gpu="-b 4 -H 16 -n 2048", gpu_limits=(1.1, 3)),
        Part("instructions", 2, ("-n 90 -H 3 --layout bnhd -d 96", "-n 128 -k 256 -H 1"),
             counts=("global_load_requests", "shared_store_requests"),
             gpu="-b 4 -H 16 -n 2048 -d 96", gpu_limits=(1.1, 3))),
        fails="global_load_sectors is"),
    Exercise("ex16", "step03", ("__half, 64",), (
        Part("one tile of keys", 1, ("-n 128 -k 64",)),
        Part("several tiles of keys", 2, ("-n 128", "-n 256")),
        Part("incomplete tiles, grouped heads, a causal mask", 1,
             ("-n 100 -k 75", "-n 40 -k 150 -H 4 -G 2", "-n 130 -m causal")),
        Part("tiles of queries without a key", 1, ("-n 300 -k 20 -m causal",))),
        fails="use of shared memory that a cp.async is on its way to"),
    Exercise("ex17", "step04", ("__half, 64",), (
        Part("right answers", 1, ("-n 128 -k 192", "-n 100 -k 150 -m causal",
                                  "-n 300 -k 20 -m causal")),
        Part("copies in flight, two tiles of keys", 2,
             ("-n 130 -k 65", "-n 150 -k 100 -m causal", "-n 128 -k 128"),
             counts=("mma", "-mma_under_copy"),
             gpu="-b 4 -H 16 -n 2048 -m causal", gpu_limits=(1.05, 1.2)),
        Part("copies in flight, eight tiles of keys", 2, ("-n 300 -k 40 -m causal", "-n 128 -k 512"),
             counts=("mma", "-mma_under_copy"),
             gpu="-b 4 -H 16 -n 2048", gpu_limits=(1.05, 1.2))),
        fails="mma - mma_under_copy is"),
    Exercise("ex18", "step04", ("__half, 64",), (
        Part("right answers", 1, ("-n 128 -k 192", "-n 200 -k 129", "-n 129 -m causal",
                                  "-n 100 -k 162 -m causal", "-n 250 -k 100 -m causal")),
        Part("no more tiles than needed", 2, ("-n 200 -m causal", "-n 640 -k 192 -H 1 -m causal"),
             counts=("mma",), gpu="-b 4 -H 16 -n 2048 -m causal", gpu_limits=(1.1, 1.6)),
        Part("no more masks than needed", 2,
             ("-n 200 -k 90 -m causal", "-n 128 -k 200", "-n 300 -m causal",
              "-n 65 -k 1024 -H 1 -m causal"),
             counts=("shared_load_requests",), gpu="-b 4 -H 16 -n 2048", gpu_limits=(1.05, 1.2))),
        fails="mma is"),
    Exercise("ex19", "step05", ("__half, 64, 2",), (
        Part("full mask", 1, ("-n 128", "-n 100 -k 75")),
        Part("causal mask, and a mask with gaps", 2,
             ("-n 256 -m causal", "-n 128 -k 320 -m blocks:0.5 --mask-block 128x64 -s 4",
              "-n 300 -k 500 -m blocks:0.5 --mask-block 128x64")),
        Part("rows without a slot", 1,
             ("-n 128 -k 64 -m empty", "-n 300 -k 20 -m causal",
              "-n 300 -k 300 -m blocks:0.2 --mask-block 128x64")),
        Part("the next K in flight", 1, ("-n 128 -k 512 -m blocks:0.6 --mask-block 128x64",),
             counts=("mma", "-mma_under_copy"),
             gpu="-b 4 -H 16 -n 2048", gpu_limits=(1.05, 1.2))),
        fails="256 of 256 checked rows of O, 256 of LSE"),
    Exercise("ex20", "step05", ("__half, 64, 2", "__half, 128, 2"), (
        Part("one query", 2, ("-n 1 -k 64 -m random:0.5", "-n 1 -k 200 -m random:0.5")),
        Part("many queries", 2, ("-n 128 -k 64 -m random:0.5", "-n 256 -m window:100")),
        Part("incomplete tiles, D = 128, rows without a key", 1,
             ("-n 100 -k 150 -m random:0.5", "-n 128 -k 200 -d 128 -m random:0.01"))),
        fails="2 of 2 checked rows of O, 2 of LSE"),
    Exercise("ex21", "step04", ("__half, 64",), (
        Part("one head, whole tiles", 2, ("-n 128 -H 1 -m causal",)),
        Part("several heads and batch entries, grouped heads", 2,
             ("-n 128 -k 64 -H 4 -m causal", "-n 64 -b 2 -H 4 -G 2 -m causal")),
        Part("no mask, incomplete tiles, other lengths, rows without a key, large scores", 2,
             ("-n 100", "-n 77 -k 150", "-n 70 -k 150 -m causal", "-n 90 -k 40 -m causal",
              "-n 70 -m causal --scale 32"))),
        fails="one head", rule="alibi"),
    Exercise("ex22", "step04", ("__half, 64",), (
        Part("whole tiles, scores of all sizes", 2,
             ("-n 128", "-n 128 --scale 2", "-n 128 -i spiky")),
        Part("incomplete tiles, a causal mask, rows without a key", 2,
             ("-n 100 -k 75", "-n 77 -m causal", "-n 90 -k 40 -m causal"))),
        fails="whole tiles", rule="softcap"),
    Exercise("ex23", "step04", ("__half, 64",), (
        Part("one head, whole tiles", 2, ("-n 128 -H 1",)),
        Part("several heads and batch entries, grouped heads", 2,
             ("-n 64 -H 4", "-n 64 -b 2 -H 4 -G 2", "-n 300 -H 3", "-n 140 -k 70 -b 2 -H 4 -G 2")),
        Part("rows with few keys or none, large scores", 2,
             ("-n 100 -m causal", "-n 90 -k 40 -m causal", "-n 100 -k 75 -i spiky",
              "-n 20 -H 8 -m causal --scale 32"))),
        fails="one head", rule="sinks"),
    Exercise("ex24", "step02c", ("__half, 32", "__half, 64", "__half, 128"), (
        Part("the answer is right, with no shared memory for padding", 1,
             ("-n 100 -k 75 -m causal", "-n 128 -d 128"),
             setting="SIMT_SHARED=48K"),
        Part("ldmatrix without bank conflicts, rows of 128 bytes", 2, ("-n 128 -d 128", "-n 128"),
             counts=("ldmatrix_conflicts",), gpu="-b 4 -H 16 -n 2048", setting="SIMT_SHARED=48K"),
        Part("no bank conflict at all, rows of 128 and 256 bytes", 2,
             ("-n 100 -m causal", "-n 128 -d 128"),
             counts=("shared_load_conflicts", "shared_store_conflicts", "ldmatrix_conflicts"),
             gpu="-b 4 -H 16 -n 2048 -d 128", setting="SIMT_SHARED=48K"),
        Part("no bank conflict at all, rows of 64 bytes", 1, ("-n 77 -k 140 -d 32", "-n 128 -d 32"),
             counts=("shared_load_conflicts", "shared_store_conflicts", "ldmatrix_conflicts"),
             gpu="-b 4 -H 16 -n 2048 -d 32")),
        fails="ldmatrix_conflicts is"),
    Exercise("ex25", "step02", ("__half, 64",), (
        Part("one tile of keys", 1, ("-n 64 -k 32 -H 1",)),
        Part("several tiles of keys, a maximum that grows", 3,
             ("-n 128 -H 1", "-n 64 -k 128 -H 1 -i spiky")),
        Part("incomplete tiles, several heads, a causal mask, rows without a key, large scores", 2,
             ("-n 70 -k 45 -H 4 -G 2", "-n 77 -b 2 -H 1 -m causal", "-n 90 -k 40 -m causal",
              "-n 70 -m causal --scale 32")),
        Part("no more traffic than is needed", 1, ("-n 128 -H 1",),
             counts=("global_load_sectors", "global_store_sectors"), gpu="-b 8 -H 32 -n 512")),
        fails="one tile of keys"),
    Exercise("ex26", "step04", ("__half, 64", "__half, 128"), (
        Part("the answer is right", 1,
             ("-n 100 -k 75", "-n 140 -k 100 -m causal", "-n 100 -d 128")),
        Part("products wait for fewer copies and barriers", 5, ("-n 128 -k 1024 -H 1",),
             counts=("mma", "-mma_under_copy", "barriers"),
             gpu="-b 4 -H 16 -n 4096 -d 128", gpu_limits=(1.05, 1.2))),
        fails="mma - mma_under_copy + barriers is"),
    Exercise("ex27", "step07", ("__half, 64", "__half, 96", "__half, 128"), (
        Part("16 keys: the descriptor, and Q K^T", 2, ("-n 64 -k 16", "-n 64 -k 9 -i spiky")),
        Part("tiles of 128 keys: V", 1, ("-n 128", "-n 64 -k 256")),
        Part("D = 128: two panels", 2, ("-n 64 -k 16 -d 128", "-n 200 -k 128 -d 128")),
        Part("panels of 32 columns, incomplete tiles, a causal mask, rows without a key", 1,
             ("-n 64 -k 128 -d 96", "-n 200 -k 300 -H 4 -G 2 -m causal",
              "-n 90 -k 40 -d 96 -m causal"))),
        fails="called at @start_qk<T, HEAD_DIM, BLOCK_N>(both@ (wgmma: the descriptor of A"),
    Exercise("ex28", "step08", ("__half, 64",), (
        Part("one tile of keys", 1, ("-n 64 -k 128 -H 1",)),
        Part("three tiles: each stage is used once", 1, ("-n 64 -k 384 -H 1", "-n 300 -k 256")),
        Part("stages are used again", 2, ("-n 64 -k 640 -H 1", "-n 64 -k 1664 -H 1")),
        Part("the same, with threads in another order", 1, ("-n 192 -k 640 -H 1",),
             setting="SIMT_ORDER=random:1"),
        Part("incomplete tiles, a causal mask, grouped heads, rows without a key", 1,
             ("-n 100 -k 900 -H 4 -G 2", "-n 500 -m causal", "-n 300 -k 20 -m causal"))),
        fails="called at @start_qk<T, HEAD_DIM, BLOCK_N>(s[0]@, called at "),
    Exercise("ex29", "step09", ("__half, 64",), (
        Part("right answers", 1,
             ("-n 64 -k 384", "-n 200 -k 600 -m causal", "-n 300 -k 20 -m causal",
              "-n 70 -m causal --scale 32")),
        Part("P V of a tile runs during the softmax of the next", 4,
             ("-n 64 -k 256 -H 1", "-n 100 -k 300 -m causal", "-n 64 -k 1536 -H 1"),
             counts=("shuffles", "-shuffles_under_wgmma"),
             gpu="-b 4 -H 16 -n 4096", gpu_limits=(1.05, 1.2))),
        fails="shuffles - shuffles_under_wgmma is"),
    Exercise("ex30", "step11", ("__half, 64",), (
        Part("right answers", 1,
             ("-n 192 -k 129", "-n 300 -m causal", "-n 192 -m window:191", "-n 400 -m document:3",
              "-n 300 -k 20 -m causal", "-n 192 -k 256 -m build/cpu/masks/empty_query.npy")),
        Part("no more tiles than needed", 2,
             ("-n 500 -k 90 -m window:100", "-n 900 -m document:2", "-n 768 -H 1 -m document:12"),
             counts=("wgmma",), gpu="-b 4 -H 16 -n 4096 -m document:64", gpu_limits=(1.05, 1.5)),
        Part("none for a query that attends nothing", 1,
             ("-n 192 -k 768 -H 1 -m build/cpu/masks/few_keys.npy",), counts=("wgmma",),
             gpu="-b 4 -H 16 -n 4096 -m document:64", gpu_limits=(1.05, 1.5)),
        Part("no more masks than needed", 2,
             ("-n 300 -k 384 -m prefix:130", "-n 700 -m document:3", "-n 192 -k 6144 -H 1"),
             counts=("shared_load_requests",), gpu="-b 4 -H 16 -n 4096", gpu_limits=(1.05, 1.2))),
        fails="wgmma is"),
    Exercise("ex31", "step12", ("__half, 64", "__half, 128"), (
        Part("one key: the columns of V, and the scales", 2, ("-n 64 -k 1", "-n 64 -k 1 -H 4 -G 2")),
        Part("8 keys: a matrix", 1, ("-n 64 -k 8",)),
        Part("32 keys: four matrices", 1, ("-n 64 -k 32",)),
        Part("tiles of 192 keys, D = 128, incomplete tiles, a causal mask, grouped heads", 1,
             ("-n 64 -k 192", "-n 200 -k 300 -m causal -d 128", "-n 130 -k 100 -H 4 -G 2 -b 2")),
        Part("stmatrix without bank conflicts", 1, ("-n 64 -k 128 -d 128", "-n 64 -k 192"),
             counts=("shared_store_conflicts",), gpu="-b 4 -H 16 -n 4096 -d 128",
             gpu_limits=(1.05, 1.2))),
        fails="read of shared memory that nobody wrote", judge="judge_e4m3"),
    Exercise("ex32", "step13", (), (
        Part("a head dimension of 32", 1, ("-n 20 -d 32 -H 1",)),
        Part("any head dimension", 1, ("-n 20 -d 7 -H 1", "-n 20 -k 30 -d 50 -m causal -t bf16 -H 1")),
        Part("grouped heads, batch entries, another layout", 1,
             ("-n 20 -k 30 -H 4 -G 2 -b 2 -d 8 --layout bnhd",))),
        fails="D is missing: dS is P o dP", judge="judge_backward"),
    Exercise("ex33", "step14", (), (
        Part("one tile", 2, ("-n 32 -k 32 -H 1",)),
        Part("several tiles, other head dimensions", 1, ("-n 70 -k 100", "-n 40 -d 100", "-n 40 -d 200 -m causal")),
        Part("few loads from shared memory", 2, ("-n 64 -H 1",),
             counts=("shared_load_requests",), gpu="-b 4 -H 16 -n 2048")),
        fails="query tile 0 is missing", judge="judge_backward"),
    Exercise("ex34", "step14", (), (
        Part("no mask, incomplete tiles", 1, ("-n 100 -k 75",)),
        Part("causal, as many queries as keys", 1, ("-n 96 -m causal", "-n 77 -m causal")),
        Part("causal, more keys than queries and fewer", 2,
             ("-n 40 -k 100 -m causal", "-n 63 -k 32 -m causal", "-n 1 -k 70 -m causal")),
        Part("tiles that are masked are left out", 2, ("-n 256 -H 1 -m causal", "-n 250 -k 100 -H 1 -m causal"),
             counts=("barriers",), gpu="-b 4 -H 16 -n 2048 -m causal")),
        fails="the mask is ignored: all entries are unmasked", judge="judge_backward"),
    Exercise("ex35", "step14b", ("__half, 64", "__half, 128"), (
        Part("a warp has one fragment of rows in the kernel for keys", 2, ("-n 64 -d 128 -H 1",)),
        Part("it has two", 1, ("-n 128 -H 1",)),
        Part("incomplete tiles, a causal mask, grouped heads", 1,
             ("-n 100 -k 75", "-n 77 -k 130 -H 4 -G 2 -m causal", "-n 90 -d 128 -m causal")),
        Part("each operand is loaded once", 2, ("-n 256 -H 1",),
             counts=("ldmatrix_requests",), gpu="-b 4 -H 16 -n 4096")),
        fails="query tile 0 is missing", judge="judge_backward"),
    Exercise("ex36", "step15", ("__half, 64", "__half, 128"), (
        Part("one block of keys", 2, ("-n 128 -H 1",)),
        Part("several blocks of keys, several heads", 1, ("-n 128 -k 300", "-n 128 -d 128 -H 4 -G 2")),
        Part("incomplete tiles of queries", 2, ("-n 100 -k 75", "-n 1 -k 200", "-n 48 -k 70 -d 128 -m causal"))),
        fails="key/value tile 0 is missing", judge="judge_backward"),
    Exercise("ex37", "step13", (), (
        Part("each query head has keys of its own", 1, ("-n 20 -k 30 -H 3 -d 8",)),
        Part("two query heads share a key/value head", 1, ("-n 20 -k 30 -H 4 -G 2 -d 8",)),
        Part("other groups, several batch entries", 2,
             ("-n 20 -k 30 -H 6 -G 2 -b 2 -d 8 -m causal", "-n 20 -k 40 -H 4 -G 1 -d 40 --layout bnhd"))),
        fails="two blocks write the same bytes", judge="judge_backward"),
    Exercise("ex38", "step17g", ("__half, 64", "__half, 128"), (
        Part("right answers", 1,
             ("-n 300 -m causal", "-n 200 -k 90 -m window:50", "-n 256 -m window:2", "-n 400 -m document:3",
              "-n 130 -k 200 -H 4 -G 2", "-n 300 -d 128 -m window:100",
              "-n 192 -k 256 -m build/cpu/masks/empty_query.npy")),
        Part("no more tiles than needed", 2,
             ("-n 500 -k 90 -m window:100", "-n 300 -k 20 -m causal", "-n 768 -H 1 -m document:12"),
             counts=("wgmma",), gpu="-b 4 -H 16 -n 4096 -m document:64", gpu_limits=(1.05, 1.5)),
        Part("no more masks than needed", 2,
             ("-n 300 -k 384 -m prefix:130", "-n 700 -m document:3",
              "-n 192 -k 768 -H 1 -m build/cpu/masks/few_keys.npy"),
             counts=("shared_load_requests",), gpu="-b 4 -H 16 -n 4096", gpu_limits=(1.05, 1.2)),
        Part("a consumer skips the ends of a list", 1,
             ("-n 300 -d 128 -m causal", "-n 256 -d 128 -H 1 -m window:1"),
             counts=("wgmma",), gpu="-b 4 -H 16 -n 4096 -d 128 -m window:128", gpu_limits=(1.05, 1.5))),
        fails="wgmma is", judge="judge_spans"),
    Exercise("ex39", "step18", ("__half, 64", "__half, 128"), (
        Part("keys of one warp", 2, ("-k 10 -H 1", "-k 8 -d 128 -H 4 -G 2")),
        Part("keys of all warps", 2, ("-k 300", "-k 200 -d 128 -i spiky")),
        Part("several lengths, queries without a key", 1,
             ("-b 2 --lengths 0,70 -H 4 -G 2", "-n 3 -k 100 -b 2 --lengths 2,90"))),
        fails="it is the row of a query that attends to no key", judge="judge_decode"),
    Exercise("ex40", "step19", ("__half, 64, 1", "__half, 64, 4", "__half, 128, 4"), (
        Part("parts of equal length", 2, ("-k 1024 -H 4 -G 1", "-k 2048 -d 128 -H 8 -G 2")),
        Part("other lengths, empty parts", 2,
             ("-k 1000 -H 4 -G 1", "-k 3000 -b 2 --lengths 100,3000 -H 4 -G 1", "-k 900 -b 2 --lengths 0,700 -i spiky")),
        Part("no key is read twice", 1, ("-k 3000 -H 4 -G 1",),
             counts=("global_load_sectors",), gpu="-b 1 -H 32 -G 8 -k 32768 -d 128")),
        fails="use of a float that nobody has set: at ", judge="judge_decode"),
    Exercise("ex41", "step20b", ("__half, 64, 1", "__half, 64, 4", "__half, 128, 4"), (
        Part("a cache without pages", 1, ("-k 300 -H 4 -G 1", "-b 2 --lengths 30,200 -d 128 -H 8 -G 2 --layout bnhd")),
        Part("one sequence in pages", 2,
             ("-k 40 -H 2 -G 2 --page-size 64", "-k 256 -H 4 -G 1 --page-size 16", "-k 300 -d 128 -H 4 -G 1 --page-size 32")),
        Part("several sequences, a window, sequences without a key", 2,
             ("-b 3 --lengths 0,300,31 -H 4 -G 1 --page-size 16", "-n 2 -k 150 -H 4 -G 2 -m window:33 --page-size 32",
              "-b 4 --lengths 1-700 -H 2 -G 1 --page-size 256")),
        Part("as few loads as the solution, or its time", 1, ("-k 4000 -H 4 -G 1 --page-size 16",),
             counts=("global_load_requests",), gpu="-b 1 -H 32 -G 8 -k 32768 -d 128 --page-size 16", gpu_limits=(1.1, 2))),
        fails="read of global memory that nobody wrote: at common/device/decode_part.cuh", judge="judge_decode"),
    Exercise("ex42", "step20", ("__half, 64, 1", "__half, 64, 4", "__half, 128, 4"), (
        Part("whole row groups", 1, ("-k 60 -H 4 -G 4", "-k 128 -H 16 -G 4 -b 8")),
        Part("shares that begin and end within a row group", 2, ("-k 3000 -H 4 -G 1", "-k 2000 -H 8 -G 2 -d 128")),
        Part("other lengths", 2,
             ("-b 3 --lengths 700,0,2500 -H 4 -G 2", "-b 9 --lengths log:1-2000 -H 4 -G 1",
              "-n 3 -b 3 --lengths 2,900,300 -H 4 -G 2 -m window:200")),
        Part("no tile is read twice", 1, ("-b 5 --lengths 100,1500,64,900,1 -H 4 -G 1",),
             counts=("global_load_sectors",), gpu="-b 64 -H 32 -G 8 --lengths log:100-32768 -d 128", gpu_limits=(1.1, 3))),
        fails="values never written", judge="judge_decode"),
    Exercise("broken01", "step02", ("__half, 64, 64, 32",), (
        Part("two tiles of keys", 2, ("-n 64",)),
        Part("more tiles, incomplete ones, a causal mask, grouped heads", 1,
             ("-n 128", "-n 100 -k 75", "-n 90 -k 70 -m causal", "-n 77 -H 4 -G 2"))),
        fails="no barrier between: at @k[j] = *reinterpret_cast<const float4 *>(@"),
    Exercise("broken02", "step04", ("__half, 64",), (
        Part("one tile of keys", 1, ("-n 128 -k 64",)),
        Part("several tiles, incomplete ones, a causal mask, no keys", 2,
             ("-n 256", "-n 100 -k 175 -m causal", "-n 300 -k 20 -m causal")),
        Part("the copies overlap the products as in step 04", 1, ("-n 256",),
             counts=("mma", "-mma_under_copy"), gpu="-b 4 -H 16 -n 2048")),
        fails=", called at @multiply_qk<T, HEAD_DIM>(s, @"),
    Exercise("broken03", "step04", ("__half, 64",), (
        Part("one tile of keys", 1, ("-n 128 -k 64",)),
        Part("several tiles, incomplete ones, a causal mask, no keys", 1,
             ("-n 256", "-n 100 -k 175 -m causal", "-n 300 -k 20 -m causal")),
        Part("the copies overlap the products as in step 04", 2, ("-n 256",),
             counts=("mma", "-mma_under_copy"), gpu="-b 4 -H 16 -n 2048")),
        fails=", called at @multiply_pv<T, HEAD_DIM>(o, @"),
    Exercise("broken04", "step03", ("__half, 64",), (
        Part("one tile of keys", 1, ("-n 90 -k 64", "-n 128 -k 64")),
        Part("several tiles, a causal mask, grouped heads", 2,
             ("-n 90", "-n 200 -k 130", "-n 70 -k 100 -m causal", "-n 130 -H 4 -G 2"))),
        fails="others wait elsewhere: at @all warps have read K@"),
    Exercise("broken05", "step05", ("__half, 64, 2",), (
        Part("no mask", 1, ("-n 256",)),
        Part("a causal mask, a window, grouped heads", 2,
             ("-n 200 -m causal", "-n 200 -k 256 -m window:80", "-n 130 -H 4 -G 2"))),
        fails="no barrier between: at @const int head = row.head;@"),
    Exercise("broken06", "step05", ("__half, 64, 2",), (
        Part("three documents", 2, ("-n 256 -m document:3",)),
        Part("windows, other masks, grouped heads", 1,
             ("-n 256 -m window:80", "-n 200 -m causal", "-n 256 -m blocks:0.5",
              "-n 200 -k 256 -H 4 -G 2 -m window:50"))),
        fails="V of key/value tile 2 is stale"),
    Exercise("broken07", "step02b", ("__half, 64",), (
        Part("two tiles of keys, and scores that grow from tile to tile", 2,
             ("-n 64 -k 128", "-n 64 -k 256 -i spiky")),
        Part("incomplete tiles, a causal mask, rows without a key, grouped heads", 1,
             ("-n 100 -k 75", "-n 100 -m causal", "-n 90 -k 70 -m causal", "-n 70 -H 4 -G 2"))),
        fails="O is not rescaled"),
    Exercise("broken08", "step02b", ("__half, 64",), (
        Part("more queries than keys", 2, ("-n 90 -k 40 -m causal",)),
        Part("other scales and lengths, grouped heads", 1,
             ("-n 90 -k 40 -m causal --scale 0.3", "-n 200 -k 100 -m causal --scale 0.05",
              "-n 40 -k 90 -m causal", "-n 100 -k 75", "-n 70 -k 60 -H 4 -G 2 -m causal"))),
        fails="expected -inf: the row attends to no key"),
    Exercise("broken09", "step02b", ("__half, 64",), (
        Part("full mask", 1, ("-n 64", "-n 100 -k 75")),
        Part("causal, as many keys as queries and more", 1,
             ("-n 130 -m causal", "-n 77 -k 130 -m causal")),
        Part("causal, fewer keys than queries", 2,
             ("-n 90 -k 40 -m causal", "-n 130 -k 65 -m causal -H 4 -G 2"))),
        fails="all wrong rows attend to no key"),
    Exercise("broken10", "step02b", ("__half, 64", "__nv_bfloat16, 64"), (
        Part("normal inputs", 1, ("-n 130", "-n 77 -m causal -i outlier")),
        Part("spiky inputs, bf16", 1, ("-n 256 -i spiky --scale 0.07 -t bf16",)),
        Part("spiky inputs, fp16", 2,
             ("-n 256 -i spiky --scale 0.07", "-n 200 -i spiky -m causal",
              "-n 130 -k 300 -i spiky --scale 2",
              "-n 269 -k 128 -H 1 -i spiky --scale 0.069999 -s 104"))),  # growth of almost 16
        fails="Inf where a finite number belongs"),
    Exercise("broken11", "step02c", ("__half, 32",), (
        Part("few heads", 1, ("-n 300 -H 4 -d 32", "-n 5 -k 16 -H 256 -d 32")),
        Part("many heads", 3,
             ("-n 5 -k 16 -H 300 -d 32", "-n 130 -k 20 -b 10 -H 18 -G 3 -d 32 -m causal"))),
        fails="two blocks write the same bytes: at @lse_global[first + row] =@"),
    Exercise("broken12", "step02b", ("__half, 64",), (
        Part("full mask, an even number of keys", 1, ("-n 64", "-n 128 -k 74")),
        Part("full mask, an odd number of keys", 1, ("-n 64 -k 75",)),
        Part("causal", 2, ("-n 64 -m causal", "-n 77 -k 130 -m causal", "-n 90 -k 40 -m causal"))),
        fails="an odd number of keys: with -n 64 -k 75"),
    Exercise("broken13", "step02", ("__half, 64, 64, 32",), (
        Part("full mask", 1, ("-n 100 -k 75",)),
        Part("causal, as many keys as queries", 1, ("-n 130 -m causal",)),
        Part("causal, more keys than queries and fewer", 2,
             ("-n 1 -k 100 -m causal", "-n 77 -k 130 -m causal", "-n 90 -k 40 -m causal"))),
        fails="the causal mask is aligned to the top left"),
    Exercise("broken14", "step03", ("__half, 64",), (
        Part("whole tiles of keys", 1, ("-n 128", "-n 70 -k 64")),
        Part("causal", 1, ("-n 100 -m causal", "-n 77 -k 130 -m causal", "-n 90 -k 40 -m causal")),
        Part("incomplete tiles of keys", 2, ("-n 70 -k 65", "-n 130 -k 100", "-n 70 -k 1 --scale 4"))),
        fails="rows of zeros past the last key take part"),
    Exercise("broken15", "step02b", ("__half, 64",), (
        Part("the answer is right", 1, ("-n 64", "-n 100 -k 75", "-n 77 -m causal")),
        Part("wavefronts of the loads from shared memory", 3, ("-n 128",),
             counts=("shared_load_wavefronts",), gpu="-b 4 -H 16 -n 2048")),
        fails="shared_load_wavefronts is"),
    Exercise("broken16", "step01", (), (
        Part("the answer is right", 1,
             ("-n 64 -d 32", "-n 100 -k 75 -d 40", "-n 77 -k 40 -m causal -d 32")),
        Part("sectors of global memory", 3, ("-n 40 -k 512 -H 1 -d 32",),
             counts=("global_load_sectors", "global_store_sectors"),
             gpu="-b 4 -H 16 -n 2048 -d 32")),
        fails="global_load_sectors + global_store_sectors is"),
    Exercise("broken17", "step07", ("__half, 64", "__half, 128", "__half, 256"), (
        Part("D = 64 and 256", 1, ("-n 128", "-n 70 -k 100 -d 256 -H 1 -m causal")),
        Part("D = 128", 3, ("-n 128 -d 128", "-n 100 -k 75 -m causal -d 128"))),
        fails="all columns from 64 on"),
    Exercise("broken18", "step08", ("__half, 64",), (
        Part("whole tiles of keys", 1, ("-n 128", "-n 100 -k 256 -m causal")),
        Part("incomplete tiles of keys", 3,
             ("-n 64 -k 100", "-n 300 -k 200 -H 4 -G 2", "-n 200 -k 333 -m causal"))),
        fails="tensor copies brought 3584 bytes more than were expected"),
    Exercise("broken19", "step09", ("__half, 64",), (
        Part("two tiles of keys", 1, ("-n 64 -k 256",)),
        Part("more tiles", 2, ("-n 64 -k 512 -H 1", "-n 500 -m causal", "-n 300 -k 20 -m causal")),
        Part("P V runs beside the softmax as in step 09", 1, ("-n 64 -k 1536 -H 1",),
             counts=("shuffles", "-shuffles_under_wgmma"), gpu="-b 4 -H 16 -n 4096")),
        fails=", called at @start_pv<T, HEAD_DIM, Tiles<HEAD_DIM>::BLOCK_N>(@"),
    Exercise("broken20", "step10", ("__half, 128",), (
        Part("six tiles of keys", 1, ("-n 700 -d 128",)),
        Part("other lengths", 3,
             ("-n 700 -k 600 -d 128", "-n 700 -k 900 -d 128", "-n 700 -m causal -d 128"))),
        fails="DEADLOCK: threads 0 for the mbarrier"),
    Exercise("broken21", "step06b", ("__half, 64", "__half, 256"), (
        Part("normal inputs, and D = 256", 1,
             ("-n 256", "-n 100 -k 75 -m causal", "-n 100 -k 300 -d 256 -H 1 -i spiky")),
        Part("spiky inputs", 2,
             ("-n 512 -i spiky", "-n 384 -i spiky -m causal",
              "-n 300 -k 500 -H 4 -G 2 -i spiky --scale 0.05")),
        Part("m is raised as rarely as in step 06b", 1, ("-n 256",),
             counts=("shuffles",), gpu="-b 4 -H 16 -n 2048")),
        fails="68 of 1024 checked rows of O, 68 of LSE"),
    Exercise("broken22", "step06c", ("__half, 256",), (
        Part("normal inputs, and one tile of keys", 1,
             ("-n 128 -d 256 -H 1", "-n 100 -k 75 -m causal -d 256", "-n 128 -k 64 -d 256 -i spiky")),
        Part("spiky inputs, several tiles of keys", 2,
             ("-n 128 -k 128 -d 256 -H 1 -i spiky", "-n 200 -k 300 -m causal -d 256 -i spiky")),
        Part("no more barriers than in step 06c", 1, ("-n 256 -d 256 -H 1",),
             counts=("barriers",), gpu="-b 4 -H 16 -n 2048 -d 256")),
        fails="no barrier between: at @ldmatrix_x4(probs[i], @"),
    Exercise("broken23", "step05b", ("__half, 64, true",), (
        Part("no mask, a causal mask, whole blocks", 1,
             ("-n 256", "-n 300 -k 200 -m causal", "-n 512 -H 1 -m blocks:0.5")),
        Part("one PARTIAL tile in each list", 1, ("-n 512 -H 1 -m prefix:100",)),
        Part("several PARTIAL tiles, one after the other", 2,
             ("-n 512 -H 1 -m window:50", "-n 300 -k 500 -m random:0.5",
              "-n 256 -k 384 -H 4 -G 2 -m dilated:3"))),
        fails="use of shared memory that a cp.async is on its way to: at @const uint32_t word = words[n / 4] >>@"),
    Exercise("broken24", "step10b", ("__half, 64",), (
        Part("a tile of queries for each thread block", 1, ("-n 256", "-n 192 -k 100 -H 4 -G 2 -m causal")),
        Part("several", 3,
             ("-n 700", "-n 500 -k 300 -H 4 -G 2 -m causal", "-n 900 -k 20 -m causal"))),
        fails="a wgmma or tensor copy may still read: at @*(uint32_t *)((char *)o_warp + offset) =@"),
    Exercise("broken25", "step10c", ("__half, 64",), (
        Part("normal inputs", 1, ("-n 300 -m causal", "-n 300 -k 200")),
        Part("spiky inputs, nothing to mask", 1, ("-n 300 -k 640 -i spiky --scale 0.05",)),
        Part("spiky inputs, a causal mask, incomplete tiles", 2,
             ("-n 256 -i spiky --scale 0.05 -m causal", "-n 300 -k 200 -i spiky --scale 0.05",
              "-n 300 -k 500 -H 4 -G 2 -i spiky --scale 0.03 -m causal"))),
        fails="the mask is ignored: all keys are unmasked"),
    Exercise("broken26", "step10d", ("__half, 256",), (
        Part("a tile of queries for each thread block", 1,
             ("-n 256 -d 256", "-n 256 -k 200 -d 256 -m causal")),
        Part("several", 3,
             ("-n 128 -k 240 -H 6 -d 256", "-n 300 -k 200 -H 4 -G 2 -m causal -d 256"))),
        fails="a wgmma or tensor copy may still read: at common/device/store_tile.cuh"),
    Exercise("broken27", "step11b", ("__half, 64",), (
        Part("up to four tiles of keys", 1, ("-n 128 -k 256 -m random:0.5", "-n 128 -k 250 -m causal")),
        Part("bits in all tiles", 1, ("-n 512 -m random:0.5",)),
        Part("longer lists, other masks", 2,
             ("-n 512 -m causal", "-n 512 -m window:100", "-n 500 -k 400 -H 4 -G 2 -m document:4"))),
        fails="no barrier between: at @const int mask = tile.mask[consumer];@"),
    Exercise("broken28", "step06", ("__half, 64",), (
        Part("up to two tiles of keys", 1, ("-n 256", "-n 300 -k 200 -m causal")),
        Part("more tiles", 2,
             ("-n 128 -k 384 -H 1", "-n 128 -k 700 -H 4 -G 2", "-n 500 -m causal")),
        Part("one barrier for each tile", 1, ("-n 128 -k 512 -H 1",),
             counts=("barriers",), gpu="-b 4 -H 16 -n 2048")),
        fails="cp.async into what another thread may still read, no barrier between: at "),
    Exercise("broken29", "step14", (), (
        Part("one head", 1, ("-n 100 -H 1",)),
        Part("several heads", 3, ("-n 70", "-n 40 -k 60 -H 4 -G 2 -m causal"))),
        fails="read of global memory that nobody wrote: at @ds = p * (dp[i][j] - row_dots[q]);@", judge="judge_backward"),
    Exercise("broken30", "step14", (), (
        Part("each query head has keys of its own", 1, ("-n 70 -H 2",)),
        Part("query heads that share keys", 3, ("-n 70 -H 4 -G 2", "-n 40 -k 60 -H 3 -G 1 -m causal"))),
        fails="it must be the sum over the group", judge="judge_backward"),
    Exercise("broken31", "step15", ("__half, 64", "__half, 128"), (
        Part("one block of keys", 1, ("-n 100 -k 64 -d 128", "-n 128")),
        Part("several blocks of keys", 3, ("-n 64 -k 300", "-n 200 -d 128 -m causal"))),
        fails="two blocks write the same bytes: at @*four = make_float4(@", judge="judge_backward"),
    Exercise("broken32", "step15", ("__half, 64", "__half, 128"), (
        Part("D = 128", 2, ("-n 100 -d 128",)),
        Part("D = 64", 2, ("-n 100", "-n 77 -k 150 -m causal"))),
        fails="200 of 200 checked rows of dQ, 0 of 200 of dK, 0 of dV", judge="judge_backward"),
    Exercise("broken33", "f11", (), (
        Part("one row", 2, ("-n 2000 --stage=cluster",)),
        Part("several rows", 2, ("-n 5000 --stage=cluster",))),
        fails="shared memory race: read of what another thread wrote, no barrier between"),
    Exercise("broken34", "f11", (), (
        Part("one row", 2, ("-n 2000 --stage=cluster",)),
        Part("several rows", 2, ("-n 5000 --stage=cluster",))),
        fails="use of shared memory of a block that may have ended"),
    Exercise("broken35", "step17g", ("__half, 64", "__half, 128"), (
        Part("masks whose borders both consumers have", 1, ("-n 200 -k 150", "-n 300 -m document:3")),
        Part("other borders", 3, ("-n 200 -k 200", "-n 256 -d 128 -m causal"))),
        fails="read of shared memory that nobody wrote: at @const int4 two@", judge="judge_spans"),
    Exercise("broken36", "step19b", ("__half, 64, 1", "__half, 64, 4"), (
        Part("one part", 1, ("-k 60 -H 4 -G 1",)),
        Part("several parts", 3, ("-k 3000 -H 4 -G 1", "-k 900 -b 2 --lengths 100,900"))),
        fails="global memory race: one block reads what another writes", judge="judge_decode"),
    Exercise("broken37", "step19b", ("__half, 64, 1", "__half, 64, 4"), (
        Part("one part", 1, ("-k 60 -H 4 -G 1",)),
        Part("several parts", 3, ("-k 3000 -H 4 -G 1", "-k 900 -b 2 --lengths 100,900"))),
        fails="not 0 after the pass: ", judge="judge_decode"),
    Exercise("broken38", "step20b", ("__half, 64, 1", "__half, 64, 4"), (
        Part("one page, and four", 1, ("-k 200 -H 4 -G 1 --page-size 256", "-k 900 -H 4 -G 1 --page-size 256")),
        Part("more pages, smaller ones", 3,
             ("-k 3000 -H 4 -G 1 --page-size 256", "-b 2 --lengths 300,70 -H 4 -G 2 --page-size 16",
              "-n 2 -k 150 -H 4 -G 2 -m window:33 --page-size 32"))),
        fails="4 of 4 checked rows of O", judge="judge_decode"),
    Exercise("broken39", "step20", ("__half, 64, 1", "__half, 64, 4"), (
        Part("most lengths", 1, ("-k 1000 -H 4 -G 1", "-k 64 -H 4 -G 1")),
        Part("all lengths", 3, ("-k 65 -H 4 -G 1", "-b 3 --lengths 1025,300,193 -H 4 -G 2", "-n 4 -b 2 --lengths 66,131 -H 4 -G 2"))),
        fails="is explained (to 0.00019) by this: the last key that the mask allows is missing", judge="judge_decode"),
)}
