"""--report: tables with source text, drawings, annotated source, rooflines, and refusals."""

import json
import os
import re
import resource
import subprocess
from pathlib import Path

import pytest

from tests.lib.kinds import MASK_STEPS, NAIVE
from tests.lib.programs import DEVICE, REPOSITORY, RIGHT, USAGE, WRONG, Program, read_records

pytestmark = pytest.mark.cpu_only("a GPU build refuses --report")

# The kinds of access to it, as fields of records name them.
DEVICE_MEMORY = ("global_load", "global_store", "copy_global", "tensor_load", "tensor_store")
FAULTY_SOURCE = REPOSITORY / "tests/lib/faulty_step.cu"
DOCUMENT = REPOSITORY / "docs/lab.md"
FAULTY = "steps/step99_faulty.cu"

SMALL = ("-n", 32, "-H", 1, "-d", 32)


def line_of(path: Path, text: str) -> int:
    """The number of the only line that contains `text`."""
    (number,) = [i for i, line in enumerate(path.read_text().splitlines(), 1) if text in line]
    return number


def run_faulty(program: Path, fault: str, *options: object, **env: str) -> subprocess.CompletedProcess:
    """Runs in the directory where it was built, where its source is found."""
    return Program(program.name, program.parent).run(*SMALL, *options, env={"FAULT": fault, **env}, cwd=program.parent)


def part(stdout: str, name: str) -> list[str]:
    """The lines from the first that begins with `name`, up to the findings."""
    lines = stdout.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith(name))
    return lines[first : next(i for i, line in enumerate(lines) if line.startswith("findings"))]


# --- The table ------------------------------------------------------------------------------------


def test_lines_come_with_their_source(kind_step: Program) -> None:
    table = part(kind_step.run_right("-n", 100, "--report=traffic,banks", cwd=REPOSITORY).stdout, "lab ")
    places = [re.fullmatch(r" {11}(\S+):(\d+)  (\S.*)", line) for line in table]
    places = [found for found in places if found]
    assert len(places) >= 5
    for file, number, text in (found.groups() for found in places):
        line = (REPOSITORY / file).read_text().splitlines()[int(number) - 1]
        assert text == line.strip()[:100].rstrip() or line.strip().startswith(text)


def test_intensity_is_flop_by_bytes(kind_step: Program, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    stdout = kind_step.run_right("-n", 128, "--report=traffic,banks", "-j", path).stdout
    (record,) = read_records(path)
    sectors = sum(record[f"lab_{kind}_sectors"] for kind in DEVICE_MEMORY)
    assert f" {record['flops'] / (32 * sectors):.1f} FLOP a byte of the sectors counted" in stdout
    if record["step"] != NAIVE:  # which moves S and P too
        intensity = record["flops"] / record["least_bytes"]
        assert f" {intensity:.1f} FLOP a byte that must move" in stdout


def test_a_pass_that_does_not_end_has_no_intensity(tmp_path: Path) -> None:
    """The kernels that prepare a mask already fail, so nothing is known of the pass."""
    path, most = tmp_path / "lab.json", 400 << 20
    done = Program(MASK_STEPS[0]).run(
        "-n",
        64,
        f"--report=traffic,roofline:h200,json:{path}",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (most, most)),
    )
    assert done.returncode == DEVICE
    assert done.stderr.splitlines()[0] == "simt: no memory for the stacks of 32 threads"
    assert len(done.stderr.splitlines()) == 2
    assert "findings   0" in done.stdout and "nan" not in done.stdout
    assert "intensity" not in done.stdout and "roofline" not in done.stdout
    assert "bound" not in {record["record"] for record in read_records(path)}


# --- A drawing ------------------------------------------------------------------------------------


def test_drawing_of_a_bank_conflict(faulty: Path) -> None:
    line = line_of(FAULTY_SOURCE, "return row_shared[")
    done = run_faulty(faulty, "bank conflict", f"--report=access:{FAULTY}:{line}")
    assert done.returncode == RIGHT, done.stderr
    offsets = [8 * lane for lane in range(32)]
    expected = [
        f"access     shared load at {FAULTY}:{line} in faulty_kernel",
        "           return row_shared[stride * threadIdx.x];",
        "           block 0, warp 0, 4 bytes a lane",
        "           offsets in dynamic shared memory, in bytes",
    ]
    for first in range(0, 32, 8):
        for name, values in (
            ("lane", range(first, first + 8)),
            ("offset", offsets[first : first + 8]),
            ("bank", [offset // 4 % 32 for offset in offsets[first : first + 8]]),
        ):
            expected.append(f"           {name:7}" + "".join(f" {value:9}" for value in values))
    expected.append("           2 wavefronts: 1 would do without conflicts, the worst is 2-way")
    assert part(done.stdout, "access") == expected


def test_drawing_of_sectors(faulty: Path) -> None:
    """Each of 32 threads stores 16 bits in its own row; rows are 64 bytes apart."""
    line = line_of(FAULTY_SOURCE, "o_row[d] =")
    drawing = part(run_faulty(faulty, "none", f"--report=access:step99_faulty.cu:{line}").stdout, "access")
    assert drawing[0] == f"access     global store at {FAULTY}:{line} in faulty_kernel"
    assert drawing[3] == "           offsets in O, in bytes"
    offsets = [64 * i for i in range(8)]
    assert drawing[5:7] == [
        "           offset " + "".join(f" {i:9}" for i in offsets),
        "           sector " + "".join(f" {i // 32:9}" for i in offsets),
    ]
    assert drawing[-1] == "           32 sectors of 32 bytes, 6 % of them used"


def test_drawing_in_the_documentation() -> None:
    """docs/lab.md shows the beginning of a drawing as the program prints it."""
    (shown,) = re.findall(r"```text\n(access .*?)```", DOCUMENT.read_text(), re.DOTALL)
    place = re.search(r" at (\S+:\d+) in ", shown)[1]
    before = DOCUMENT.read_text().split(shown)[0]
    step = re.findall(r"at steps/(\w+?)_", before)[-1]  # of the examples before it
    stdout = Program(step).run_right(f"--report=access:{place}", cwd=REPOSITORY).stdout
    assert shown in stdout


def test_lanes_that_take_no_part_are_marked(faulty: Path) -> None:
    line = line_of(FAULTY_SOURCE, "o_row[d] =")
    drawing = part(run_faulty(faulty, "none", "-n", 30, f"--report=access:{FAULTY}:{line}").stdout, "access")
    assert drawing[-3].endswith(f" {64 * 29:9} {'-':>9} {'-':>9}")


def test_nothing_at_a_line(faulty: Path, tmp_path: Path) -> None:
    line = line_of(FAULTY_SOURCE, "o_row[d] =")
    done = run_faulty(
        faulty, "none", f"--report=access:{FAULTY}:{line + 1}", "-o", tmp_path / "out", "-j", tmp_path / "records"
    )
    assert done.returncode == USAGE and done.stderr.count("\n") == 1
    assert f"access:{FAULTY}:{line + 1}: no access there; " in done.stderr
    assert not list(tmp_path.iterdir())


def test_tensors_of_a_mask_have_names() -> None:
    """The kernels that list the tiles and pack their bits read all tensors of a mask."""
    program, sources = Program(MASK_STEPS[0]), ("tile_list.cuh", "partial_tiles.cuh")
    problem = ("-n", 256, "-m", "window:50")
    records = program.run(*problem, "--report=json:-", cwd=REPOSITORY).stdout.splitlines()
    lines = [
        (record["file"].rpartition("/")[2], record["line"])
        for record in map(json.loads, records)
        if record["record"] == "line" and record["file"].endswith(sources) and record["global_load_requests"] > 0
    ]
    drawings = "".join(
        program.run_right(*problem, f"--report=access:{source}:{line}", cwd=REPOSITORY).stdout
        for source, line in sorted(set(lines))
    )
    for name in (
        "kv_num_blocks",
        "kv_indices",
        "block_mask_types",
        "partial_block_mask_indices",
        "partial_block_masks",
    ):
        assert f"offsets in {name}, in bytes" in drawings


# --- Annotated source -----------------------------------------------------------------------------


def test_counts_in_the_margin(faulty: Path) -> None:
    source = FAULTY_SOURCE.read_text().splitlines()
    done = run_faulty(faulty, "bank conflict", "--report=annotate")
    lines = part(done.stdout, f"annotate   faulty_kernel in {FAULTY}")
    assert lines[:2] == [
        f"annotate   faulty_kernel in {FAULTY}",
        f"{'sectors':>10} {'wavefronts':>10} {'conflicts':>10} {'issued':13} |",
    ]
    load = line_of(FAULTY_SOURCE, "return row_shared[")
    assert f"{'':10} {2:10} {1:10} {'':13} |{load:5}  {source[load - 1]}" in lines
    store = line_of(FAULTY_SOURCE, "o_row[d] =")  # 32 columns, 32 rows
    assert f"{32 * 32:10} {'':10} {'':10} {'':13} |{store:5}  {source[store - 1]}" in lines
    # Whole functions; each line once and unchanged; no code that was not executed.
    shown = [re.match(r".{47}\|( *\d+)(?:  (.*))?$", line) for line in lines[2:]]
    numbers = [int(found[1]) for found in shown if found]
    assert numbers == sorted(set(numbers))
    assert all((found[2] or "") == source[int(found[1]) - 1] for found in shown if found)
    assert line_of(FAULTY_SOURCE, "__global__ void faulty_kernel(") in numbers
    assert line_of(FAULTY_SOURCE, "static Fault chosen_fault() {") not in numbers


def test_margin_adds_up(kind_step: Program, tmp_path: Path) -> None:
    path = tmp_path / "report"
    stdout = kind_step.run_right("-n", 100, f"--report=annotate,json:{path}", cwd=REPOSITORY).stdout
    margin = sum(
        int(line[:10]) for line in part(stdout, "annotate") if re.match(r" *\d+ .{36}\|", line) and line[:10].strip()
    )
    counted = sum(
        record[f"{kind}_sectors"]
        for record in read_records(path)
        if record["record"] == "kernel"
        for kind in DEVICE_MEMORY
    )
    assert margin == counted > 0


def test_missing_source_is_reported(faulty: Path, tmp_path: Path) -> None:
    source, elsewhere = faulty.parent / FAULTY, tmp_path / "elsewhere.cu"
    source.rename(elsewhere)
    try:
        done = run_faulty(faulty, "none", "--report=annotate,traffic")
    finally:
        elsewhere.rename(source)
    assert done.returncode == RIGHT
    assert f"annotate   faulty_kernel: no lines of {FAULTY}\n" in done.stdout
    assert re.search(rf"^ {{11}}{FAULTY}:\d+$", done.stdout, re.MULTILINE)


def test_source_that_was_edited_is_not_quoted(faulty: Path) -> None:
    source = faulty.parent / FAULTY
    times = source.stat().st_atime_ns, source.stat().st_mtime_ns
    os.utime(source)
    try:
        done = run_faulty(faulty, "none", "--report=annotate,traffic")
    finally:
        os.utime(source, ns=times)
    assert (
        f"lab        {FAULTY} is newer than this program: lines may differ and are not quoted\nfindings   0\n"
    ) in done.stdout
    assert f"annotate   faulty_kernel: no lines of {FAULTY}\n" in done.stdout


# --- A roofline -----------------------------------------------------------------------------------

GPU_FILE = """# numbers that divide well
name = Small GPU
multiprocessors = 4
clock_mhz = 1000   # of each
mma_tflops = 2
fp32_tflops = 0.5
memory_gb_per_s = 100
"""


def test_gpu_file_in_the_documentation(any_step: Program, tmp_path: Path) -> None:
    (text,) = re.findall(r"```text\n(name = .*?)```", DOCUMENT.read_text(), re.DOTALL)
    path = tmp_path / "my.gpu"
    path.write_text("\ufeff" + text)  # as some editors write it
    assert "roofline   My GPU: " in any_step.run_right("-n", 32, f"--report=roofline:{path}").stdout


def bounds_of(stdout: str) -> dict[str, float]:
    """From the unit to its time in microseconds."""
    found = re.findall(r"^ {11}(\S+ \S+) .* takes at least +([\d.]+) us$", stdout, re.MULTILINE)
    return {unit: float(time) for unit, time in found}


def test_roofline_from_a_file(kind_step: Program, tmp_path: Path) -> None:
    gpu, records = tmp_path / "small.gpu", tmp_path / "records"
    gpu.write_text(GPU_FILE)
    stdout = kind_step.run_right("-n", 256, f"--report=roofline:{gpu}", "-j", records).stdout
    (record,) = read_records(records)
    bounds = bounds_of(stdout)
    waves = sum(
        record[f"lab_{kind}_wavefronts"]
        for kind in ("shared_load", "shared_store", "ldmatrix", "copy_shared", "wgmma_read")
    )
    expected = {"shared memory": waves / 4e9}
    if record["lab_mma"] + record["lab_wgmma"]:
        expected["tensor cores"] = (record["lab_mma"] * 4096 + record["lab_wgmma_flop"]) / 2e12
    else:
        expected["fp32 units"] = record["flops"] / 0.5e12
    moved = record["least_bytes"] + (16 * 2 * 256 * 256 if record["step"] == NAIVE else 0)
    expected["device memory"] = moved / 100e9
    assert bounds == {unit: pytest.approx(1e6 * time, abs=6e-4) for unit, time in expected.items()}
    binding = max(expected, key=expected.get)
    assert f"bound by {binding}: no pass on this GPU takes less than {bounds[binding]:.3f} us" in stdout
    assert "roofline   Small GPU: least times" in stdout and f"peaks from {gpu}\n" in stdout


@pytest.mark.parametrize("name", ["h200", "a100", "rtx4090"])
def test_named_gpus(any_step: Program, name: str) -> None:
    stdout = any_step.run_right("-n", 64, f"--report=roofline:{name}").stdout
    assert len(bounds_of(stdout)) == 3 and "peaks from " in stdout and "NVIDIA" in stdout


def test_peaks_of_the_h200_are_the_measured_ones(any_step: Program, tmp_path: Path) -> None:
    """To three digits, or within the variation of the ceilings from run to run."""
    path = tmp_path / "report"
    any_step.run_right("-n", 64, f"--report=roofline:h200,json:{path}")
    peaks = {record["unit"]: record["peak_per_s"] for record in read_records(path) if record["record"] == "bound"}
    measured = read_records(REPOSITORY / "plots/results/ceilings.jsonl")
    for unit, field, scale in (
        ("tensor cores", "ceiling_mma_tflops", 1e12),
        ("device memory", "ceiling_copy_gb_per_s", 1e9),
    ):
        best = max(record[field] for record in measured) * scale
        assert peaks[unit] == pytest.approx(best, rel=0.05), unit


def test_a_small_grid_is_reported(any_step: Program, tmp_path: Path) -> None:
    assert (
        "multiprocessors: most of it would idle"
        in any_step.run_right("-n", 32, "-H", 1, "--report=roofline:h200").stdout
    )


# --- What is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change, line",
    [
        (("clock_mhz = 1000", "clock_mhz = fast"), "line 4: "),
        (("clock_mhz = 1000", "clock_mhz = -1"), "line 4: "),
        (("clock_mhz", "clock"), "line 4: "),
        (("clock_mhz = 1000", "clock_mhz"), "line 4: "),
        (("clock_mhz = 1000", ""), ""),
        (("name = Small GPU", ""), ""),
        (("name = Small GPU", "name ="), "line 2: "),
    ],
)
def test_bad_gpu_files(any_step: Program, tmp_path: Path, change: tuple, line: str) -> None:
    path = tmp_path / "bad.gpu"
    assert change[0] in GPU_FILE
    path.write_text(GPU_FILE.replace(*change, 1))
    done = any_step.run(f"--report=roofline:{path}")
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert done.stderr.count("\n") == 1
    assert f'--report=roofline:{path}: {line}must hold lines "key = value"' in done.stderr


@pytest.mark.parametrize(
    "list_, said",
    [
        ("roofline:h100", "must be h200, a100, rtx4090 or a file of a GPU: No such file"),
        ("roofline:", "must be h200, a100, rtx4090 or a file of a GPU"),
        ("roofline:/", "must hold lines"),
        ("roofline", "must be one or more of races"),
        ("access:a.cu", "must be a source file, a colon and the number of a line"),
        ("access:a.cu:0", "must be a source file, a colon and the number of a line"),
        ("access:a.cu:12x", "must be a source file, a colon and the number of a line"),
        ("access::12", "must be a source file, a colon and the number of a line"),
        ("json:", "must name a file"),
        ("json:/no/such/folder", "cannot write: No such file or directory"),
        ("json:/", "cannot write: Is a directory"),
        ("races,races", "races: the part is asked for twice"),
        ("access:a.cu:1,access:a.cu:2", "access:a.cu:2: the part is asked for twice"),
        ("races,", "must be one or more of races"),
        ("annotated", "must be one or more of races"),
        ("x" * 600, "must be one or more of races"),
    ],
)
def test_bad_lists(any_step: Program, list_: str, said: str) -> None:
    done = any_step.run(f"--report={list_}")
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert done.stderr.count("\n") == 1 and "--report=" in done.stderr
    assert said in done.stderr


# --- Launches that fail ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault, finding",
    [
        ("deadlock", "finding    the launch ended early\n           at steps/step99_faulty.cu:"),
        ("deadlock", "DEADLOCK: threads 0 in __syncthreads(), threads 1-31 in __syncwarp\n"),
        (
            "large block",
            "finding    launch limits exceeded\n           in faulty_kernel: block of 2048 "
            "x 1 x 1 threads: x is 2048, at most 1024\n",
        ),
    ],
)
def test_findings_decide_the_exit_code(faulty: Path, tmp_path: Path, fault: str, finding: str) -> None:
    done = run_faulty(faulty, fault, f"--report=json:{tmp_path / 'report'}")
    assert done.returncode == WRONG, done.stderr
    assert finding in done.stdout
    records = read_records(tmp_path / "report")
    findings = [record for record in records if record["record"] == "finding"]
    assert len(findings) == records[0]["findings"] >= 1
    assert done.stdout.endswith(f"findings   {len(findings)}\n")
