"""The blocks of docs/profiling*.md: code and changes of its stages, what the lab says of them, and what tools
on a GPU said of them: sections of tests/gpu/h200/walk.log."""

import re
import subprocess
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import fill

from plots.sections import with_section
from plots.tools.lab import SECTOR_BYTES, report_of, table
from tests.lib.programs import REPOSITORY, Program

PATCHES = sorted((REPOSITORY / "steps/walk").glob("*.patch"))
STAGES = [path.stem for path in PATCHES]
END = STAGES[0].partition("_")[0]  # the step in which the walk ends
LOG = REPOSITORY / "tests/gpu/h200/walk.log"
HEADS, SEQLEN = 64, 4096  # of the problem on the GPU: what the lab counts for one head and fewer keys is scaled
SMALL, KERNEL = 256, "softmax_kernel"
SCALE = HEADS * (SEQLEN / SMALL) ** 2
SCHEDULERS = 132 * 4  # of an H200, each of which can issue an instruction in a cycle
TIMED = (*STAGES[1:], END)
METRICS = (
    "Duration",
    "L1/TEX Cache Throughput",
    "L2 Cache Throughput",
    "DRAM Throughput",
    "Compute (SM) Throughput",
    "L1/TEX Hit Rate",
    "L2 Hit Rate",
    "Registers Per Thread",
    "Block Limit Registers",
    "Block Limit Shared Mem",
    "Block Limit Warps",
    "Theoretical Occupancy",
    "Achieved Occupancy",
    "Warp Cycles Per Issued Instruction",
)
LIMITS = (
    "Elapsed Cycles",
    "DRAM Throughput",
    "L1/TEX Cache Throughput",
    "SM Active Cycles",
    "Compute (SM) Throughput",
    "Registers Per Thread",
)
COPY = 16 * HEADS * SEQLEN**2  # bytes that the kernel reads and writes: a score three times, a probability once


def text_block(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```"


@cache
def transcripts() -> dict[str, str]:
    """Sections by name; "" is the head: commit, date, GPU, toolkit."""
    head, *sections = re.split(r"^=== ", LOG.read_text(), flags=re.MULTILINE)
    return {"": head} | dict(section.split("\n", 1) for section in sections)


def recorded() -> str:
    """Where the transcripts come from."""
    commit, date, gpu, toolkit = transcripts()[""].strip().split("\n")
    name, driver = gpu.split(", ")
    return (
        f"The output of GPU tools on this page is from one {name} with driver {driver} and CUDA "
        f"{re.search('release ([0-9.]+)', toolkit)[1]} ({commit}, {date}). `...` stands for lines that are left out; "
        "[the log](../tests/gpu/h200/walk.log) has all of them."
    )


def section(name: str, shown: str = "") -> str:
    """The lines of a section that match."""
    lines = [line if re.search(shown, line) else "..." for line in transcripts()[name].splitlines()]
    return text_block("\n".join(line for line, after in pairwise([*lines, ""]) if line != "..." or after != "..."))


def metrics_of(stage: str) -> dict[str, tuple[str, str]]:
    """Value and unit of each line of ncu. Of two lines with one name, the first counts."""
    lines = re.findall(r"^ {4}(\S.*?) {2,}(?:(\S+) +)?([\d.,]+)$", transcripts()[f"ncu_{stage}"], re.MULTILINE)
    return {name: (value, unit) for name, unit, value in reversed(lines)}


def hints(stage: str, words: str) -> str:
    """What ncu prints of the limits of a stage, and what it concludes where it says one of these words: the first
    sentence, and those with numbers."""
    found = metrics_of(stage)
    blocks = ["\n".join(f"{name:<24}{' '.join(found[name])}".rstrip() for name in LIMITS)]
    for gain, hint in re.findall(
        r"^ +OPT +(Est\. .*\n)?(.*\n(?: {6,}\S.*\n)*)", transcripts()[f"ncu_{stage}"], re.MULTILINE
    ):
        first, *others = re.split(r"(?<=[a-z)]\.)\s*(?=[A-Z])", " ".join(hint.split()))
        if re.search(words, hint):
            told = " ".join([first, *(sentence for sentence in others if re.search(r"(?<!\w)\d", sentence))])
            blocks.append(
                f"OPT   {gain}" + fill(told, 110, initial_indent=" " * 6, subsequent_indent=" " * 6)[0 if gain else 6 :]
            )
    return text_block("\n\n".join(blocks))


def metrics() -> str:
    """Lines of ncu, for all stages beside each other."""
    columns = [
        {name: f"{value} {unit}" if unit in ("%", "ms") else value for name, (value, unit) in metrics_of(stage).items()}
        for stage in TIMED
    ]
    rows = [[name, *(column.get(name, "–") for column in columns)] for name in METRICS]
    return "\n".join(table("What ncu prints of each stage:", ["", *(f"`{stage}`" for stage in TIMED)], rows)).strip()


def profile_of(stage: str) -> str:
    """What `make profile` prints of the softmax."""
    return re.search(
        rf"^kernel +{KERNEL}.*\n(?:(?!kernel|exit).*\n)*", transcripts()[f"profile_{stage}"], re.MULTILINE
    )[0]


def ran(programs: Path, stage: str, options: str, keep: str) -> str:
    """A command, and the lines of its output that match, with those that continue them."""
    done = subprocess.run(
        [programs / "walk" / stage, *options.split()],
        capture_output=True,
        text=True,
        check=False,
        cwd=programs.parents[1],
    )  # the lab quotes the sources there
    lines = re.findall(rf"^(?:{keep}).*\n(?: .*\n)*", done.stdout + done.stderr, re.MULTILINE)
    return text_block(f"$ build/cpu/walk/{stage} {options}\n{''.join(lines)}")


def lines_of(programs: Path, stage: str, places: int) -> str:
    """What the lab counts for the lines with most work in the softmax."""
    options = f"-n {SMALL} -H 1 -d 32 --report=traffic,banks"
    block = ran(programs, stage, options, f"lab +{KERNEL}")
    lines = block.splitlines()
    ends = [i for i, line in enumerate(lines) if re.match(r" {11}\S+\.cu:\d+ ", line)]
    head = next(i for i, line in enumerate(lines) if line.startswith("lab "))
    return text_block("\n".join([lines[1], lines[head], *lines[head + 2 : ends[places]]]))


def change(patch: Path) -> str:
    """The lines that a patch takes away and adds."""
    return "```diff\n" + "".join(re.findall(r"^[-+](?![-+]{2} ).*\n", patch.read_text(), re.MULTILINE)) + "```"


def kernel(programs: Path) -> str:
    """The softmax of the first stage, up to its maxima."""
    text = (programs / "walk" / f"{STAGES[0]}.cu").read_text()
    parts = (
        text[text.index(start) :].partition(end)[0].rstrip()
        for start, end in (
            ("/** Copies KEYS", "/** Copies them"),
            ("__global__ void __launch_bounds__(WARPS", "  if (row_max"),
        )
    )
    return "```cuda\n" + "\n\n".join(parts) + "\n```"


def stages(programs: Path, scratch: Path) -> str:
    """What bounds each stage, of counts; and the time where it was measured."""
    rows = []
    for stage in TIMED:
        report = report_of(
            Program(stage, programs / ("walk" if stage != END else "")), stage, f"-n {SMALL} -H 1 -d 32", scratch
        )
        (counted,) = [record for record in report.of("kernel") if record["kernel"] == KERNEL]
        bound = {
            record["unit"]: record["least_ms"] / record["work"] * SCALE
            for record in report.of("bound")
            if record["work"]
        }
        sectors = counted["global_load_sectors"] + counted["global_store_sectors"]
        wavefronts = counted["shared_load_wavefronts"] + counted["shared_store_wavefronts"]
        cycles, issued = (float(metrics_of(stage)[name][0].replace(",", "")) for name in (LIMITS[0], LIMITS[4]))
        time = float(re.search(r"^time +([\d.]+) ms", profile_of(stage), re.MULTILINE)[1])
        rows.append(
            [
                f"`{stage}`",
                f"{counted['global_load_sectors'] / counted['global_load_requests']:.0f}",
                f"{bound['device memory'] * sectors * SECTOR_BYTES:.1f} ms",
                f"{counted['shared_load_most_ways']}-way" if wavefronts else "–",
                f"{bound['shared memory'] * wavefronts:.1f} ms" if wavefronts else "–",
                f"{time:.1f} ms",
                f"{COPY / time * 1e-9:.2f} TB/s",
                f"{cycles * SCHEDULERS * issued / 100 / (COPY / 16 / 32):.0f}",
            ]
        )
    return "\n".join(
        table(
            f"The softmax at B * H = {HEADS}, N = {SEQLEN} on an H200: least times from the lab's counts, and times as "
            f"`make profile` measured them. A copy of device memory reaches {SCALE / bound['device memory'] * 1e-9:.2f} TB/s:",
            [
                "stage",
                "sectors a load",
                "device memory, if no cache helped",
                "loads of shared memory",
                "shared memory at least",
                "time",
                "speed",
                "instructions for 32 scores",
            ],
            rows,
        )
    ).strip()


def blocks(programs: Path, scratch: Path) -> dict[str, str]:
    """By their names on the pages."""
    first, right, coalesced, padded, small = STAGES
    return {
        "recorded": recorded(),
        "kernel": kernel(programs),
        "run": ran(programs, first, "-n 256 -H 1 -d 64 --report=races", "check|finding"),
        "run_gpu": section("run", r"^\$|WRONG|first: |Map|\d,\d +\||right  |^exit"),
        "race": section("racecheck", r"^\$|^=|^exit"),
        "memcheck": section("memcheck", rf"^\$|^=|^{END}_|^exit"),
        "gdb": section("gdb", f"^(?!{END} |problem|input|device|kernel +(scores|output)|  +S and)"),
        "bounds": ran(programs, first, "-n 300 -H 1 -d 64", f"simt|{first}"),
        **{f"fix_{i}": change(patch) for i, patch in enumerate(PATCHES, 1)},
        "lab_2": lines_of(programs, right, 1),
        "lab_3": lines_of(programs, coalesced, 1),
        "hints_2": hints(right, r"global [la]"),
        "hints_3": hints(coalesced, "conflict"),
        "hints_4": hints(padded, ""),
        "hints_5": hints(small, ""),
        "profile": text_block(profile_of(END)),
        "ncu": section(f"ncu_{right}"),
        "metrics": metrics(),
        "stages": stages(programs, scratch),
    }


def write(docs: Path, programs: Path) -> None:
    with TemporaryDirectory() as scratch:
        made = blocks(programs, Path(scratch))
    for page in sorted(docs.glob("profiling*.md")):
        text = page.read_text()
        for name in re.findall(r"^<!-- (\w+): written by", text, re.MULTILINE):
            text = with_section(text, name, "`make pages`", made[name])
        page.write_text(text)
