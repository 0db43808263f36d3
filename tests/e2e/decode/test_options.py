"""The options of decode steps, and what they refuse."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from tests.lib.decode import PAGE_SIZES, drawn_lengths
from tests.lib.programs import RIGHT, USAGE, Program, read_records

OWN = ("--lengths", "--page-size", "--kv-dtype", "--graph")


def refused(program: Program, *options: object) -> str:
    """The one line that the program writes."""
    done = program.run(*options)
    assert done.returncode == USAGE and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def record_of(program: Program, tmp_path: Path, *options: object) -> dict:
    path = tmp_path / "record.json"
    path.unlink(missing_ok=True)
    program.run_right(*options, "--json", path)
    return read_records(path)[0]


def options_of(text: str) -> set[str]:
    return set(re.findall(r"--[a-z-]+(?==|\n|\s)", text))


def test_a_step_lists_the_options_that_it_takes(step: Program, any_step: Program) -> None:
    listed = options_of(step.run("--help").stdout)
    assert {"--lengths", "--graph"} <= listed
    assert ("--page-size" in listed) == bool(step.facts["page_sizes"])
    assert ("--kv-dtype" in listed) == ("e4m3" in step.facts["kv_dtypes"])
    assert not options_of(any_step.run("--help").stdout) & set(OWN)


def test_other_steps_refuse_the_options(any_step: Program) -> None:
    for option in ("--lengths=5", "--page-size=16", "--kv-dtype=e4m3", "--graph"):
        name = option.partition("=")[0]
        assert f"{name}: {any_step.name} is no decode step" in refused(any_step, option)


def test_options_of_other_forms_of_the_cache_are_refused(step: Program) -> None:
    if not step.facts["page_sizes"]:
        assert f"--page-size: {step.name} takes no pages" in refused(step, "--page-size", 16)
    if "e4m3" not in step.facts["kv_dtypes"]:
        assert f"--kv-dtype: {step.name} takes no cache in e4m3" in refused(step, "--kv-dtype", "e4m3")


def test_a_step_says_what_it_is(step: Program) -> None:
    facts = json.loads(step.run("--info", "--json", "-").stdout)
    assert facts["kind"] == "decode" and facts["masks"] == ["full", "causal", "window"]
    assert facts["page_sizes"] in ([], list(PAGE_SIZES))
    assert set(facts["kv_dtypes"]) <= {"fp16", "bf16", "e4m3"} and facts["kv_dtypes"]
    assert isinstance(facts["deterministic"], bool)


@pytest.mark.cpu_only("SIMT_SHARED stands for a smaller GPU")
@pytest.mark.parametrize("shared_kb", [64, 99])
def test_gpus_with_less_shared_memory(step: Program, shared_kb: int) -> None:
    """The pass fits, or one line says how much is needed and how much there is."""
    done = step.run("-k", 40, "-H", 16, "-G", 1, "-d", 128, env={"SIMT_SHARED": f"{shared_kb}K"})
    if done.returncode == RIGHT:
        return
    assert done.returncode == USAGE
    needed, limit = map(int, re.search(r"needs (\d+) bytes .* this GPU has (\d+)\n", done.stderr).groups())
    assert needed > limit == shared_kb << 10


def test_the_defaults(one: Program, tmp_path: Path) -> None:
    record = record_of(one, tmp_path, "-k", 40)
    assert (record["seqlen"], record["mask"], record["lengths"], record["page_size"]) == (1, "causal", None, 0)
    assert record["shortest"] == record["longest"] == record["seqlen_kv"] == 40
    assert record["keys"] == 40 * record["batch"]


def test_a_list_of_lengths(one: Program, tmp_path: Path) -> None:
    record = record_of(one, tmp_path, "-b", 3, "--lengths", "5,0,9")
    assert (record["keys"], record["shortest"], record["longest"], record["seqlen_kv"]) == (14, 0, 9, 9)
    assert record_of(one, tmp_path, "-b", 1, "--lengths", "0")["longest"] == 0
    assert record_of(one, tmp_path, "-b", 2, "--lengths", "5,9", "-k", 20)["seqlen_kv"] == 20


@pytest.mark.parametrize("text", ["7-90", "0-3", "5-5", "log:1-300", "log:100-101", "log:40-40"])
@pytest.mark.parametrize("seed", [1, 2**63])
def test_drawn_lengths(one: Program, tmp_path: Path, text: str, seed: int) -> None:
    batch = 6
    record = record_of(one, tmp_path, "-b", batch, "-H", 1, "--lengths", text, "--seed", seed)
    expected = drawn_lengths(text, batch, seed)
    assert (record["keys"], record["shortest"], record["longest"]) == (sum(expected), min(expected), max(expected))


def test_lengths_of_a_file(one: Program, tmp_path: Path) -> None:
    np.save(tmp_path / "lengths.npy", np.array([3, 8], np.int32))
    assert record_of(one, tmp_path, "-b", 2, "--lengths", tmp_path / "lengths.npy")["keys"] == 11


@pytest.mark.parametrize(
    "options, says",
    [
        (("-b", 2, "--lengths", "5"), "--lengths 5: 1 lengths, must be one for each of --batch 2"),
        (("-b", 2, "--lengths", "5,6,7"), "--lengths 5,6,7: 3 lengths, must be one for each of --batch 2"),
        (("-b", 2, "--lengths", "5,-1"), 'length 1 is "-1", must be an integer from 0 to'),
        (("-b", 2, "--lengths", "5,21", "-k", 20), 'length 1 is "21", must be an integer from 0 to 20'),
        (("-b", 2, "--lengths", "5,x"), 'length 1 is "x", must be an integer'),
        (("-b", 2, "--lengths", "5,"), 'length 1 is "", must be an integer'),
        (("--lengths", ""), "--lengths: must name a list of lengths"),
        (("--lengths", "9-5"), "--lengths 9-5: must be A-B with 0 <= A <= B"),
        (("--lengths", "5-"), "--lengths 5-: must be A-B"),
        (("--lengths", "5-30", "-k", 20), "--lengths 5-30: must be A-B with 0 <= A <= B <= 20"),
        (("--lengths", "log:0-9"), "--lengths log:0-9: must be log:A-B with 1 <= A <= B"),
        (("--lengths", "log:9"), "--lengths log:9: must be log:A-B"),
        (("--seqlen", 17), "--seqlen 17: must be from 1 to 16"),
        (("--heads", 34, "--kv-heads", 2), "at most 16 query heads may share a key/value head"),
        (("--mask", "window:0"), "--mask window:0: "),
        (("--mask", "prefix:3"), "--mask prefix:3: "),
    ],
)
def test_refusals(one: Program, options: tuple, says: str) -> None:
    assert says in refused(one, *options)


@pytest.mark.parametrize("size", ["0", "8", "48", "512", "x"])
def test_other_sizes_of_pages_are_refused(paged_step: Program, size: str) -> None:
    assert f"--page-size {size}: must be 16, 32, 64, 128 or 256" in refused(paged_step, "--page-size", size)


@pytest.mark.cpu_only("SIMT_SMS stands for a GPU")
def test_a_window_larger_than_the_cache_changes_no_launch(step: Program) -> None:
    options = ("--info", "-b", 8, "-H", 1, "-G", 1, "-k", 100000, "-d", 128, "--mask")
    said = [step.run(*options, mask, env={"SIMT_SMS": "132"}).stdout for mask in ("causal", f"window:{2**31 - 1}")]
    one, other = ([line for line in text.splitlines() if " blocks of " in line] for text in said)
    assert one == other != []


@pytest.mark.cpu_only("a GPU has graphs")
def test_a_graph_is_timed_on_a_gpu_alone(one: Program) -> None:
    assert "--graph: needs a GPU" in refused(one, "--graph")


@pytest.mark.cpu_only("a GPU has times")
def test_a_record_of_the_cpu_backend_has_no_times(one: Program, tmp_path: Path) -> None:
    record = record_of(one, tmp_path, "-k", 20)
    assert not {"median_ms", "read_ms", "empty_ms", "graph_ms", "schedule_ms"} & set(record)


@pytest.mark.gpu_only("the CPU backend has no times")
def test_the_limits_are_in_the_record(step: Program, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    done = step.run("-k", 3000, "--graph", "--json", path)
    (record,) = read_records(path)
    assert 0 < record["empty_ms"] < record["read_ms"] <= record["median_ms"] and record["graph_ms"] > 0
    assert record["bound_ms"] == record["read_ms"] and record["bound_by"] == "reads of K and V"
    assert record["ceiling_percent"] == pytest.approx(100 * record["read_ms"] / record["median_ms"])
    assert "limits     an empty kernel" in done.stdout


def test_a_step_for_every_cache_chooses(step: Program, tmp_path: Path) -> None:
    """By the type of the cache, the rows of Q that share K and V, the head dimension, and whether there is one head."""
    if not {"fp16", "e4m3"} <= set(step.facts["kv_dtypes"]):
        pytest.skip("it takes caches of 16 bits, or e4m3, alone")
    few, many, e4m3 = "-n 4 -H 8 -G 2", "-n 5 -H 8 -G 2", "--kv-dtype e4m3"
    chosen = {
        options: step.run_right("-k", 40, *options.split()).stdout.partition("\nkernel")[2].split(":")[0].strip()
        for options in (
            few,
            many,
            f"{many} -b 3",
            f"{many} -d 256",
            "-n 5 -b 1 -H 4 -G 1",
            f"{few} {e4m3}",
            f"{many} {e4m3}",
        )
    }
    kinds = [*dict.fromkeys(chosen.values())]
    assert [kinds.index(kind) for kind in chosen.values()] == [0, 1, 1, 0, 0, 2, 2], chosen
