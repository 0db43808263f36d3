"""The blocks of docs/profiling.md: code and changes of its stages, what the lab says of them, and what tools
on a GPU said of them: sections of tests/gpu/h200/walk.log. A section that is not there yet is an empty block."""

import re
import subprocess
from functools import cache
from pathlib import Path

from plots.tools.lab import SECTOR_BYTES, report_of, table
from tests.lib.programs import REPOSITORY, Program

PATCHES = sorted((REPOSITORY / "steps/walk").glob("*.patch"))
STAGES = [path.stem for path in PATCHES]
END = STAGES[0].partition("_")[0]  # the step in which the walk ends
LOGS = REPOSITORY / "tests/gpu/h200"
HEADS, SEQLEN = 64, 4096  # of the problem on the GPU: what the lab counts for one head and fewer keys is scaled
SMALL, KERNEL = 512, "softmax_kernel"
COPY = 16 * HEADS * SEQLEN**2  # bytes that the kernel reads and writes: a score three times, a probability once


def text_block(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```"


@cache
def transcripts(path: Path = LOGS / "walk.log") -> dict[str, str]:
    """Sections by name; "" is the head: commit, date, GPU, toolkit."""
    if not path.exists():
        return {}
    head, *sections = re.split(r"^=== ", path.read_text(), flags=re.MULTILINE)
    return {"": head} | dict(section.split("\n", 1) for section in sections)


def on_gpu(name: str) -> str:
    """A section as a block, with its GPU, commit and date."""
    if name not in transcripts():
        return ""
    commit, date, gpu, _ = transcripts()[""].split("\n", 3)
    return f"On one {gpu.partition(',')[0]} ({commit}, {date}):\n\n{text_block(transcripts()[name])}"


def profile_of(stage: str) -> str:
    """What `make profile` prints of the softmax; of the last stage there is an older profile."""
    text = transcripts().get(f"profile_{stage}", "")
    if not text and stage == END:
        text = (LOGS / "profile.log").read_text()
    return next(iter(re.findall(rf"^kernel +{KERNEL}.*\n(?:(?!kernel|exit).*\n)*", text, re.MULTILINE)), "")


def ran(programs: Path, stage: str, options: str, keep: str) -> str:
    """A command, and the lines of its output that match, with those that continue them."""
    done = subprocess.run([programs / "walk" / stage, *options.split()], capture_output=True, text=True, check=False)
    lines = re.findall(rf"^(?:{keep}).*\n(?: .*\n)*", done.stdout + done.stderr, re.MULTILINE)
    said = "".join(lines).replace(f"{programs}/", "build/cpu/").replace(f"{REPOSITORY}/", "")
    return text_block(f"$ build/cpu/walk/{stage} {options}\n{said}")


def lines_of(programs: Path, stage: str, places: int) -> str:
    """What the lab counts for the lines with most work in the softmax."""
    options = f"-n {SMALL} -H 1 -d 64 --report=traffic,banks"
    block = ran(programs, stage, options, f"lab +{KERNEL}")
    lines = block.splitlines()
    ends = [i for i, line in enumerate(lines) if re.match(r" {11}\S+\.cu:\d+ ", line)]
    head = next(i for i, line in enumerate(lines) if line.startswith("lab "))
    return text_block("\n".join([lines[1], lines[head], *lines[head + 2:ends[places]]]))


def change(patch: Path) -> str:
    """A patch without the names of its files."""
    return "```diff\n" + re.sub(r"^(---|\+\+\+|@@).*\n", "", patch.read_text(), flags=re.MULTILINE) + "```"


def kernel(programs: Path) -> str:
    """The softmax of the first stage."""
    text = (programs / "walk" / f"{STAGES[0]}.cu").read_text()
    start, end = text.index("/** Copies KEYS"), text.index("/**\n * O[head]")
    return f"```cuda\n{text[start:end].rstrip()}\n```"


def stages(programs: Path, scratch: Path) -> str:
    """What bounds each stage, of counts; and the time where it was measured."""
    rows = []
    for stage in (*STAGES[1:], END):
        report = report_of(Program(stage, programs / ("walk" if stage != END else "")), stage,
                           f"-n {SMALL} -H 1 -d 64", scratch)
        (counted,) = [record for record in report.of("kernel") if record["kernel"] == KERNEL]
        bound = {record["unit"]: record["least_ms"] / record["work"] * HEADS * (SEQLEN / SMALL)**2
                 for record in report.of("bound") if record["work"]}
        sectors = counted["global_load_sectors"] + counted["global_store_sectors"]
        wavefronts = counted["shared_load_wavefronts"] + counted["shared_store_wavefronts"]
        time = re.search(r"^time +([\d.]+) ms", profile_of(stage), re.MULTILINE)
        rows.append([
            f"`{stage}`", f"{counted['global_load_sectors'] / counted['global_load_requests']:.0f}",
            f"{bound['device memory'] * sectors * SECTOR_BYTES:.1f} ms",
            f"{counted['shared_load_most_ways']}-way" if wavefronts else "–",
            f"{bound['shared memory'] * wavefronts:.1f} ms" if wavefronts else "–",
            f"{float(time[1]):.1f} ms" if time else "–",
            f"{COPY / float(time[1]) * 1e-9:.2f} TB/s" if time else "–"])
    return "\n".join(table(
        f"The softmax at B * H = {HEADS}, N = {SEQLEN} on an H200: least times from the lab's counts, and times as ncu "
        "measured them, where there are any:",
        ["stage", "sectors a load", "device memory, if no cache helped", "loads of shared memory",
         "shared memory at least", "time", "speed"], rows)).strip()


def blocks(programs: Path, scratch: Path) -> dict[str, str]:
    """By their names on the page."""
    first, right, coalesced, padded, small = STAGES
    return {
        "kernel": kernel(programs),
        "run": ran(programs, first, "-n 256 -H 1 -d 64 --report=races", "check|finding"),
        "race": on_gpu("racecheck"), "gdb": on_gpu("gdb"),
        "bounds": ran(programs, first, "-n 300 -H 1 -d 64", "simt|step01"),
        "memcheck": on_gpu("memcheck"),
        "fix_right": change(PATCHES[1]), "lab_right": lines_of(programs, right, 2),
        "ncu_right": on_gpu(f"ncu_{right}"),
        "fix_coalesced": change(PATCHES[2]), "lab_coalesced": lines_of(programs, coalesced, 2),
        "ncu_coalesced": on_gpu(f"ncu_{coalesced}"),
        "fix_padded": change(PATCHES[3]), "lab_padded": lines_of(programs, padded, 0),
        "ncu_padded": on_gpu(f"ncu_{padded}"),
        "fix_small": change(PATCHES[4]), "ncu_small": on_gpu(f"ncu_{small}"),
        "profile_end": text_block(profile_of(END)), "ncu_end": on_gpu(f"ncu_{END}"),
        "stages": stages(programs, scratch),
    }
