"""The decode problems of `make bench DECODE=1`, and how steps and baselines run them: beside each, in the same
turns, a kernel that only reads as many bytes, which is the limit, and an empty one."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property

import numpy as np

from common.python.attention_steps.library import DecodeTensors, Shape
from plots.bench.contestants import SEED, Contestant, to_16_bits
from plots.bench.device import Device, DeviceError, Graph, Memory, StepLibrary
from plots.bench.exact import Exact, HeadResult
from plots.bench.turns import Plan, Stopwatch, measure, reason_of
from tests.lib.decode import drawn_lengths
from tests.lib.problem import Problem
from tests.lib.reference import as_doubles, attention

READ, EMPTY, GRAPH = "read", "empty", "graph of "
GRAPH_BYTES = 100e6  # of K and V, below which a graph is replayed, too
# K and V repeat these numbers. As many are no multiple of a head of any problem, so no two heads are alike.
REPEATED = 256 * 60013
HEADS = 6  # that are compared with the exact result
CHECKED_KEYS = 1 << 17  # of these heads together, at most, or one head

# Query heads and key/value heads, with the batches and lengths of each.
GRID = ((1, 4096), (1, 32768), (1, 131072), (8, 8192), (32, 8192), (64, 2048))
UNEVEN = "log:100-32768"


@dataclass(frozen=True)
class DecodeCase:
    """One problem. Fields are named as in records."""

    batch: int
    heads: int
    kv_heads: int
    lengths: str  # of all sequences; or as --lengths takes them
    head_dim: int = 128
    seqlen: int = 1  # new queries
    page_size: int = 0
    kv_dtype: str = "bf16"
    dtype: str = "bf16"

    def __str__(self) -> str:
        words = [
            f"D={self.head_dim}",
            f"{self.heads}/{self.kv_heads}",
            f"B={self.batch}",
            f"N={self.lengths}",
            "decode",
        ]
        words += [f"Nq={self.seqlen}"] * (self.seqlen > 1) + [f"pages={self.page_size}"] * (self.page_size > 0)
        return " ".join(words + [self.kv_dtype])

    @cached_property
    def each_length(self) -> np.ndarray:
        if "-" in self.lengths:
            return np.array(drawn_lengths(self.lengths, self.batch, SEED), np.int32)
        return np.full(self.batch, int(self.lengths), np.int32)

    def even(self) -> bool:
        return "-" not in self.lengths

    def longest(self) -> int:
        return int(self.each_length.max())

    def element_bytes(self) -> int:
        return 1 if self.kv_dtype == "e4m3" else 2

    def tensor_bytes(self) -> int:
        """The bytes of K, or of V, that a pass must read."""
        return int(self.each_length.sum()) * self.kv_heads * self.head_dim * self.element_bytes()

    def page_counts(self) -> np.ndarray:
        return -(-self.each_length // self.page_size)

    def rows_in_memory(self) -> int:
        """Rows of K, or of V, of all heads."""
        pages = self.page_size and int(self.page_counts().sum()) * self.page_size
        return self.kv_heads * (pages or self.batch * self.longest())

    def shape(self) -> Shape:
        e4m3 = self.kv_dtype == "e4m3"
        sizes = self.batch, self.heads, self.kv_heads, self.seqlen, self.longest(), self.head_dim
        return Shape(*sizes, self.dtype == "bf16", True, e4m3=e4m3)

    def fields(self) -> dict:
        """The fields of its records; the mask is causal."""
        return {
            "kind": "decode",
            **{name: getattr(self, name) for name in IDENTITY},
            "mask": "causal",
            "dtype": self.dtype,
            "seqlen_kv": self.longest(),
            "keys": int(self.each_length.sum()),
            "cache_bytes": 2 * self.tensor_bytes() + 8 * self.batch * self.kv_heads * (self.kv_dtype == "e4m3"),
        }


# The fields that identify a case in a file.
IDENTITY = ("batch", "heads", "kv_heads", "lengths", "head_dim", "seqlen", "page_size", "kv_dtype")


def decode_cases() -> list[DecodeCase]:
    """Those of one query, D = 128; then D = 64, pages, uneven lengths, e4m3, several queries."""
    grid = [
        DecodeCase(batch, *heads, str(keys))
        for heads in ((32, 8), (64, 8), (32, 32), (16, 1))
        for batch, keys in GRID
        if heads != (32, 32) or batch != 32  # as many bytes as others, twice
    ]
    one, eight, many, short = (1, 32, 8, "32768"), (8, 32, 8, "8192"), (32, 32, 8, "8192"), (64, 32, 8, "2048")
    small = [DecodeCase(batch, 32, 8, keys, 64) for batch in (1, 8, 64) for keys in ("4096", "32768")]
    pages = [DecodeCase(*of, page_size=size) for of in (one, eight, many, short) for size in (16, 64, 256)]
    uneven = [DecodeCase(64, 32, 8, UNEVEN, page_size=size) for size in (0, 16, 64)]
    e4m3 = [DecodeCase(*of, kv_dtype="e4m3") for of in ((1, 32, 8, "4096"), one, eight, many, short)]
    several = [DecodeCase(*of, seqlen=queries) for of in (one, eight, many, short) for queries in (4, 16)]
    return grid + small + pages + uneven + e4m3 + several


def quick_decode_cases() -> list[DecodeCase]:
    return [DecodeCase(1, 32, 8, "4096"), DecodeCase(8, 32, 8, "8192"), DecodeCase(64, 16, 1, "2048")]


# --- Inputs and outputs ---------------------------------------------------------------------------


class Cache:
    """K and V on the device, for one case after another: memory of repeated random numbers."""

    def __init__(self, device: Device) -> None:
        self.device, self.memory, self.blocks = device, {}, {}

    def block(self, kv_dtype: str, tensor: int) -> np.ndarray:
        """The numbers that K (1) or V (2) repeats: bits."""
        key = kv_dtype, tensor
        if key not in self.blocks:
            generator = np.random.default_rng([SEED, tensor])
            if kv_dtype == "e4m3":  # any number but NaN, of usual sizes: scales make them about 1
                bits = generator.integers(0x30, 0x68, REPEATED, np.uint8)
                self.blocks[key] = bits | generator.integers(0, 2, REPEATED, np.uint8) << 7
            else:
                self.blocks[key] = to_16_bits(generator.standard_normal(REPEATED, np.float32), kv_dtype)
        return self.blocks[key]

    def tensors(self, case: DecodeCase) -> list[Memory]:
        """K and V of a case, and perhaps more behind their ends."""
        count = case.rows_in_memory() * case.head_dim
        found = []
        for tensor in (1, 2):
            key = case.kv_dtype, tensor
            if key not in self.memory or self.memory[key].size < count * case.element_bytes():
                self.memory.pop(key, None)
                block = self.block(*key)
                memory = self.device.allocate(count * case.element_bytes())
                for at in range(0, count, REPEATED):
                    memory.upload(block[: min(REPEATED, count - at)], at * case.element_bytes())
                self.memory[key] = memory
            found.append(self.memory[key])
        return found


class DecodeInputs:
    """All that a step gets of a case, and O and LSE."""

    def __init__(self, device: Device, cache: Cache, case: DecodeCase) -> None:
        self.case, self.cache, generator = case, cache, np.random.default_rng(SEED)
        shape = case.batch, case.heads, case.seqlen, case.head_dim
        self.q = to_16_bits(generator.standard_normal(shape, np.float32), case.dtype)
        self.k, self.v = cache.tensors(case)
        self.table = None
        if case.page_size:
            counts = case.page_counts()
            order, first = generator.permutation(int(counts.sum())), np.cumsum(counts) - counts
            self.table = np.zeros((case.batch, int(counts.max())), np.int32)
            for b, count in enumerate(counts):
                self.table[b, :count] = order[first[b] : first[b] + count]
        self.scales = None
        if case.kv_dtype == "e4m3":
            self.scales = generator.uniform(0.2, 0.4, (2, case.batch, case.kv_heads)).astype(np.float32)
        self.kept = {
            name: device.upload(array)
            for name, array in {
                "q": self.q,
                "lengths": case.each_length,
                "page_table": self.table,
                "k_scales": None if self.scales is None else self.scales[0],
                "v_scales": None if self.scales is None else self.scales[1],
            }.items()
            if array is not None
        }
        self.o = device.allocate(self.q.nbytes)
        self.lse = device.allocate(4 * case.batch * case.heads * case.seqlen)

    def poison(self) -> None:
        self.o.fill(0xFF)
        self.lse.fill(0xFF)

    def pointers(self) -> DecodeTensors:
        addresses = {name: memory.address for name, memory in self.kept.items()}
        addresses |= {name: getattr(self, name).address for name in ("k", "v", "o", "lse")}
        stride = 0 if self.table is None else self.table.shape[1]
        return DecodeTensors(page_table_stride=stride, **addresses)

    def rows(self, tensor: int, batch: int, kv_head: int) -> np.ndarray:
        """The keys (1) or values (2) of a sequence, as doubles [length, D]."""
        case = self.case
        key = np.arange(case.each_length[batch])
        if self.table is None:
            row = (batch * case.kv_heads + kv_head) * case.longest() + key
        else:
            page = self.table[batch, key // case.page_size].astype(np.int64)
            row = (page * case.page_size + key % case.page_size) * case.kv_heads + kv_head
        bits = self.cache.block(case.kv_dtype, tensor)
        x = as_doubles(bits.reshape(-1, case.head_dim)[row % (REPEATED // case.head_dim)], case.kv_dtype)
        return x if self.scales is None else float(self.scales[tensor - 1, batch, kv_head]) * x

    def result_of(self, batch: int, head: int) -> HeadResult:
        case, index = self.case, batch * self.case.heads + head
        o = np.empty((case.seqlen, case.head_dim), np.uint16)
        lse = np.empty(case.seqlen, np.float32)
        self.o.download(o, index * o.nbytes)
        self.lse.download(lse, index * lse.nbytes)
        return as_doubles(o, case.dtype), lse.astype(np.float64)


class ExactDecode(Exact):
    """The exact rows of some heads."""

    def __init__(self, inputs: DecodeInputs) -> None:  # pylint: disable=super-init-not-called
        case, self.heads, keys = inputs.case, [], 0
        for index in sorted({*np.linspace(0, case.batch * case.heads - 1, HEADS).astype(int).tolist()}):
            batch, head = divmod(index, case.heads)
            length = int(case.each_length[batch])
            keys += length
            if self.heads and keys > CHECKED_KEYS:
                break
            kv_head = head // (case.heads // case.kv_heads)
            q = as_doubles(inputs.q[batch, head], case.dtype)
            k, v = (inputs.rows(tensor, batch, kv_head) for tensor in (1, 2))
            p = Problem(seqlen=case.seqlen, seqlen_kv=length, head_dim=case.head_dim, dtype=case.dtype, mask="causal")
            answer = attention(p, *(x[None, None] for x in (q, k, v)))
            self.heads.append((batch, head, np.arange(case.seqlen), answer))
        self.allowed = 2 * max(answer.rounding_error for *_, answer in self.heads)


# --- Steps and baselines --------------------------------------------------------------------------


class DecodeCall:
    """A decode pass of a step, with all the memory that it needs."""

    def __init__(self, step: StepLibrary, inputs: DecodeInputs) -> None:
        self.step, self.inputs, case = step, inputs, inputs.case
        self.shape, self.page_size = case.shape(), case.page_size
        sizes = step.decode_bytes(self.shape, self.page_size)
        self.kept = [Device(step).allocate(size) for size in sizes]
        self.kept[0].fill()  # as Step::workspace_zero asks
        self.tensors = inputs.pointers()
        self.tensors.workspace, self.tensors.schedule = (memory.address for memory in self.kept)
        self.bytes = sum(sizes)
        self.schedule()

    def schedule(self) -> None:
        self.step.schedule(self.shape, self.page_size, self.tensors)

    def __call__(self) -> None:
        self.step.decode(self.shape, self.page_size, self.tensors)

    def graph(self) -> Graph:
        return self.step.graph(self.shape, self.page_size, self.tensors)

    def contestant(self) -> Contestant:
        fields = {"step": self.step.name, "extra_bytes": self.bytes}
        return Contestant(self.step.name, fields, self, self.inputs.result_of)


class DecodeBaseline:
    """A pass of a kernel of PyTorch on tensors without pages, of sequences of one length."""

    def __init__(self, torch, inputs: DecodeInputs, build: Callable) -> None:
        case, self.torch = inputs.case, torch
        shape = case.batch, case.kv_heads, case.longest(), case.head_dim
        self.kept = inputs
        tensors = [
            self.tensor(inputs.kept["q"], inputs.q.shape),
            *(self.tensor(memory, shape) for memory in (inputs.k, inputs.v)),
        ]
        self.call = build(torch, case, tensors)

    def tensor(self, memory: Memory, shape: tuple[int, ...]):
        """The memory as a tensor in bf16, without a copy."""
        data = {"shape": shape, "typestr": "<i2", "data": (memory.address, False), "version": 3}
        view = type("View", (), {"__cuda_array_interface__": data})()
        return self.torch.as_tensor(view, device="cuda").view(self.torch.bfloat16)

    def __call__(self) -> None:
        self.o = self.call()

    def result_of(self, batch: int, head: int) -> HeadResult:
        return self.o[batch, head].to(self.torch.float64).cpu().numpy(), None


def grouped_sdpa(torch, _case: DecodeCase, tensors: list, backend: str) -> Callable[[], object]:
    """A backend of scaled_dot_product_attention, of one query that attends to all keys."""
    attention_of = torch.nn.attention
    backends = [getattr(attention_of.SDPBackend, backend)]

    def call():
        with attention_of.sdpa_kernel(backends):
            return torch.nn.functional.scaled_dot_product_attention(*tensors, enable_gqa=True)

    return call


def packed_fa3(torch, _case: DecodeCase, tensors: list) -> Callable[[], object]:
    """FlashAttention-3 with the heads of a group as rows of a tile, in as many parts as it chooses."""
    views, forward = [tensor.transpose(1, 2) for tensor in tensors], torch.ops.flash_attn_3.fwd
    return lambda: forward(*views, is_causal=True, num_splits=0, pack_gqa=True)[0].transpose(1, 2)


def contiguous(case: DecodeCase) -> bool:
    return case.even() and case.page_size == 0 and case.kv_dtype == "bf16"


def of_one_query(case: DecodeCase) -> bool:
    return contiguous(case) and case.seqlen == 1


DECODE_BASELINES = (
    ("fa2", "FlashAttention-2", of_one_query, lambda *of: grouped_sdpa(*of, "FLASH_ATTENTION")),
    ("cudnn", "cuDNN", of_one_query, lambda *of: grouped_sdpa(*of, "CUDNN_ATTENTION")),
    ("fa3", "FlashAttention-3", contiguous, packed_fa3),
)


# --- The benchmark --------------------------------------------------------------------------------


class DecodeBenchmark:
    """Measures decode cases; the methods are those of Benchmark in run.py."""

    def __init__(
        self, steps: list[StepLibrary], origin: dict, plan: Plan, torch, baselines, **stopwatch: object
    ) -> None:
        self.steps, self.origin, self.plan, self.torch = steps, origin, plan, torch
        self.baselines = baselines if torch else ()
        self.device = Device(steps[0])
        self.cache = Cache(self.device)
        self.stopwatch = Stopwatch(self.device, **stopwatch)

    def contestants(self, inputs: DecodeInputs) -> tuple[list[Contestant], list[tuple[dict, str]]]:
        """Those that can run the case, after a pass of each; and fields and reasons of the others."""
        case, exact = inputs.case, ExactDecode(inputs)
        builders: list[tuple[dict, Callable[[], Contestant]]] = [
            ({"step": step.name}, lambda step=step: DecodeCall(step, inputs).contestant()) for step in self.steps
        ]
        for short, name, takes, build in self.baselines:
            if takes(case):
                fields = {"baseline": name, "short": short}

                def baseline(fields=fields, build=build) -> Contestant:
                    call = DecodeBaseline(self.torch, inputs, build)
                    return Contestant(fields["short"], fields, call, call.result_of)

                builders.append((fields, baseline))
        found, failed = [], []
        for fields, build in builders:
            inputs.poison()
            try:
                contestant = build()
                contestant.call()
                self.device.synchronize()
                contestant.fields |= exact.judge(contestant.result_of)
                found.append(contestant)
            except DeviceError as error:
                raise DeviceError(f"{case}: {fields}: {error}") from error
            except Exception as error:  # pylint: disable=broad-except
                failed.append((fields, reason_of(error)))
        return found, failed

    def records(self, case: DecodeCase) -> list[dict]:
        """The records of all steps and baselines; a step that does not take the case has none."""
        inputs = DecodeInputs(self.device, self.cache, case)
        contestants, failed = self.contestants(inputs)
        size = case.tensor_bytes()
        calls: dict[str, Callable[[], object]] = {
            READ: lambda: self.device.read(inputs.k, inputs.v, size),
            EMPTY: self.device.do_nothing,
        }
        for x in contestants:
            if not x.fields["right"]:
                continue
            calls[x.name] = x.call
            if isinstance(x.call, DecodeCall) and 2 * size < GRAPH_BYTES:
                calls[GRAPH + x.name] = x.call.graph()
        found = measure(calls, self.stopwatch, self.plan)
        problem = {**self.origin, **case.fields(), "seed": SEED}
        problem["date"] = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        limits = {f"{name}_ms": found.times[name].summary()["median_ms"] for name in (READ, EMPTY)}
        records = []
        for x in contestants:
            times = found.times.get(x.name)
            fields = {**x.fields, **problem, **limits}
            if times is not None:
                fields |= {**times.summary(), **times.speed_over(READ, found.times[READ])}
                fields["gb_per_s"] = 1e-6 * case.fields()["cache_bytes"] / fields["median_ms"]
                others = [y.name for y in contestants if "short" in y.fields and y.name in found.times and y is not x]
                for name in others:
                    fields |= times.speed_over(name, found.times[name])
            elif reason := found.failed.get(x.name):
                fields["failed"] = reason
            if graph := found.times.get(GRAPH + x.name):
                fields["graph_ms"] = graph.summary()["median_ms"]
            records.append(fields)
        refused = [{**fields, **problem, "failed": why} for fields, why in failed if "short" in fields]
        return records + refused


def decode_line(case: DecodeCase, records: list[dict]) -> str:
    """A line with the microseconds of each step and baseline, and the limit."""

    def told(record: dict) -> str:
        name = record.get("short") or record["step"].removeprefix("step")
        time = "FAILED" if "failed" in record else f"{1e3 * record.get('median_ms', math.nan):.1f}"
        return f"{name} {time if record.get('right', True) else 'WRONG'}"

    if not records:
        return f"{case}: no step takes it"
    limit = f"{1e3 * records[0]['read_ms']:.1f}" if "read_ms" in records[0] else "unknown"
    return f"{case}: read {limit} us, {', '.join(map(told, records))}"
