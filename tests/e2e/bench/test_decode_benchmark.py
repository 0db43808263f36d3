"""make bench DECODE=1 on the CPU backend: its cases, how it judges answers, its records and their file."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from plots.bench import decode as bench_decode
from plots.bench import run
from plots.bench.decode import (
    Cache,
    DecodeBenchmark,
    DecodeCase,
    DecodeInputs,
    ExactDecode,
    decode_cases,
    decode_line,
    quick_decode_cases,
)
from plots.bench.device import Device, StepLibrary
from plots.bench.turns import Plan
from plots.figures import decode
from tests.lib.programs import STEP_DIR, read_records
from tests.lib.reference import as_doubles
from tests.lib.steps import step_names

pytestmark = pytest.mark.cpu_only("make bench itself is the test on a GPU")

ORIGIN = {"commit": "0123456789ab", "device": "NVIDIA H200"}
STOPWATCH = {"flush_bytes": 8192, "is_asynchronous": False}
SMALL = DecodeCase(2, 4, 2, "70", 64)
FORMS = [SMALL, DecodeCase(3, 4, 2, "log:3-90", 64, page_size=16), DecodeCase(2, 8, 2, "50", 64, 4, kv_dtype="e4m3")]
CACHE_16_BIT, CACHE_E4M3, CACHE_PAGES = 1, 2, 4  # bits of Step::caches (attention.h)


@pytest.fixture(autouse=True)
def few_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """K and V of these cases need no more."""
    monkeypatch.setattr(bench_decode, "REPEATED", 256 * 509)


@pytest.fixture(scope="module")
def libraries() -> list[StepLibrary]:
    return [StepLibrary(STEP_DIR / f"lib{name}.so") for name in step_names("decode")]


def test_no_case_is_missing_or_repeated() -> None:
    names = list(map(str, decode_cases()))
    assert len(set(names)) == len(names) and set(map(str, quick_decode_cases())) <= set(names)
    assert sum("D=128" in name and name.endswith("decode bf16") for name in names) == 23 + 1  # and uneven lengths
    for words in (
        "D=64 32/8 B=64 N=32768",
        "B=64 N=log:100-32768",
        "pages=16",
        "pages=64",
        "pages=256",
        "e4m3",
        "Nq=16",
    ):
        assert any(set(words.split()) <= set(name.split()) for name in names), words


def test_a_case_counts_the_bytes_of_its_cache() -> None:
    assert decode_cases()[0].fields()["cache_bytes"] == 2 * 2 * 8 * 4096 * 128
    uneven = DecodeCase(3, 4, 2, "log:3-90", 64)
    assert uneven.fields()["cache_bytes"] == 2 * 2 * 2 * 64 * uneven.fields()["keys"] < 2 * 2 * 2 * 64 * 3 * 90
    e4m3 = DecodeCase(2, 4, 2, "70", 64, kv_dtype="e4m3")
    assert e4m3.fields()["cache_bytes"] == SMALL.fields()["cache_bytes"] // 2 + 8 * 2 * 2


@pytest.mark.parametrize("case", FORMS, ids=str)
def test_rows_are_those_in_memory(libraries: list[StepLibrary], case: DecodeCase) -> None:
    """What the reference computes with is what a step finds by strides and tables."""
    device = Device(libraries[0])
    inputs = DecodeInputs(device, Cache(device), case)
    size = case.rows_in_memory() * case.head_dim
    bits = inputs.v.download(np.empty(size, np.uint8 if case.kv_dtype == "e4m3" else np.uint16))
    x = as_doubles(bits, case.kv_dtype)
    for batch, kv_head in ((0, 0), (case.batch - 1, case.kv_heads - 1)):
        key = int(case.each_length[batch]) - 1
        if case.page_size:
            paged = x.reshape(-1, case.page_size, case.kv_heads, case.head_dim)
            expected = paged[inputs.table[batch, key // case.page_size], key % case.page_size, kv_head]
        else:
            expected = x.reshape(case.batch, case.kv_heads, case.longest(), case.head_dim)[batch, kv_head, key]
        scale = 1.0 if inputs.scales is None else float(inputs.scales[1, batch, kv_head])
        assert (inputs.rows(2, batch, kv_head)[-1] == scale * expected).all()


def test_verdicts_agree_with_the_reference(libraries: list[StepLibrary]) -> None:
    device = Device(libraries[0])
    inputs = DecodeInputs(device, Cache(device), SMALL)
    exact = ExactDecode(inputs)
    answers = {(b, h): answer for b, h, _, answer in exact.heads}

    def result(change: float, batch: int, head: int) -> tuple[np.ndarray, np.ndarray]:
        answer = answers[batch, head]
        return answer.o[0, 0] * (1 + change), answer.lse[0, 0]

    assert exact.judge(partial(result, 0))["right"] and not exact.judge(partial(result, 0.1))["right"]
    batch, head, queries, answer = exact.heads[-1]
    q = as_doubles(inputs.q[batch, head], "bf16")
    k, v = (inputs.rows(tensor, batch, head // 2) for tensor in (1, 2))
    weights = np.exp(q @ k.T * SMALL.head_dim**-0.5)
    assert np.allclose(answer.o[0, 0], weights @ v / weights.sum()) and queries.tolist() == [0]


def test_every_step_is_right_and_beside_its_limits(libraries: list[StepLibrary]) -> None:
    for case in FORMS:
        needed = CACHE_PAGES * (case.page_size > 0) | (CACHE_E4M3 if case.kv_dtype == "e4m3" else CACHE_16_BIT)
        records = DecodeBenchmark(libraries, ORIGIN, Plan(0.0), None, (), **STOPWATCH).records(case)
        taking = [step.name for step in libraries if step.caches & needed == needed]
        assert {record["step"] for record in records} <= set(taking)
        if case == SMALL:
            assert len(records) == len(taking)
        for record in records:
            assert record["right"] and record["kind"] == "decode" and record["median_ms"] > 0
            assert min(record["read_ms"], record["empty_ms"], record["graph_ms"], record["speed_over_read"]) > 0
            assert record["extra_bytes"] >= 0 and record["rows_checked"] > 0
            json.dumps(record)


def test_a_wrong_step_is_not_timed(libraries: list[StepLibrary], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepLibrary, "decode", lambda *_: None)
    records = DecodeBenchmark(libraries[:1], ORIGIN, Plan(0.0), None, (), **STOPWATCH).records(SMALL)
    assert [record["right"] for record in records] == [False] and "median_ms" not in records[0]
    assert "WRONG" in decode_line(SMALL, records) and decode_line(SMALL, []).endswith(": no step takes it")


def test_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys) -> None:
    name = step_names("decode")[0]
    build = tmp_path / "build"
    build.mkdir()
    for file in (name, f"lib{name}.so"):
        (build / file).symlink_to(STEP_DIR / file)
    for what, value in {
        "measure_ceilings": lambda _: ORIGIN,
        "torch_on_a_gpu": lambda: None,
        "Plan": partial(Plan, 0.0),
        "decode_cases": lambda: [SMALL],
        "DecodeBenchmark": partial(DecodeBenchmark, **STOPWATCH),
    }.items():
        monkeypatch.setattr(run, what, value)
    words = SimpleNamespace(build=build, results=tmp_path / "results", quick=False, kind="decode", only=[])
    assert run.run(words) == 0
    assert "read " in capsys.readouterr().out
    path = tmp_path / "results/decode/bench_0123456789ab.jsonl"
    assert [record["step"] for record in read_records(path)] == [name]
    assert run.run(words) == 0 and len(read_records(path)) == 1  # the case is there


def test_the_table_of_a_page(libraries: list[StepLibrary], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    step = libraries[-1].name
    results = decode.DecodeResults(tmp_path)
    assert decode.decode_speed(results, step, "")[0].endswith("`make bench DECODE=1`.")
    other = replace(SMALL, kv_dtype="e4m3", page_size=16)
    record = {
        **ORIGIN,
        **SMALL.fields(),
        "step": step,
        "date": "2026-11-26T20:00:00Z",
        "median_ms": 0.0123,
        "right": True,
    }
    record |= {"read_ms": 0.01, "empty_ms": 0.003}
    rival = {**record, "short": "cudnn", "median_ms": 0.0111} | {"step": None}
    old = {**record, "date": "2026-11-25T20:00:00Z", "median_ms": 1.0}
    (tmp_path / "h100").mkdir()
    elsewhere = [{**record, "device": "NVIDIA H100 80GB", "read_ms": 0.02, "median_ms": 0.0234}]
    for name, records in (("b", [record, rival]), ("a", [old]), ("c", elsewhere)):
        folder = tmp_path / "h100" if name == "c" else tmp_path
        (folder / f"bench_{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    monkeypatch.setattr(decode, "decode_cases", lambda: [SMALL, other])
    text = decode.decode_speed(decode.DecodeResults(tmp_path), step, "another")
    assert "NVIDIA H200" in text[0] and text[2].endswith("| of the limit | cuDNN |")
    assert text[4] == "| 4 / 2, D = 64 | 2 | 70 | 0 | 10.0 | **12.3** | 1.23 | 11.1 |" and len(text) == 5
    text = decode.decode_speed(decode.DecodeResults(tmp_path), step, "another", decode.DecodeResults(tmp_path / "h100"))
    assert "NVIDIA H100 80GB, commit 0123456789ab" in text[0] and text[4].endswith("| 11.1 | 20.0 | **23.4** | – |")
