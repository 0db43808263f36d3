"""Writes what is measured and counted into the pages of the steps: speed, lab, roofline; and the
programs' options, the roofline's example, clocks, the scores of mutants, the course of exercises and wrong
answers to them into their pages; and into links to regions of the source the lines where they are.

Usage: python3 -m plots.figures.pages RESULTS-OF-A-GPU DOCS PROGRAMS

Reads the benchmark's records in RESULTS-OF-A-GPU, those of chapter 0 in a file beside it, and runs the steps of the
CPU backend in PROGRAMS. Writes between the markers of DOCS/stepNN.md, fNN.md, options.md, roofline.md, measuring.md, mutants.md,
exercises.md and wrong-answers.md, and in the links of all pages of DOCS.
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from plots.figures import walk
from plots.figures.decode import DecodeResults, decode_speed
from plots.figures.records import Results, load
from plots.sections import with_lines, with_section
from plots.tools.lab import Report, human, report_of
from tests.lib.programs import REPOSITORY, Program, read_records
from tests.lib.steps import every_step, facts, source_of

# With the head dimension: the second for steps that take no other, the third for decode steps.
SHAPES = {"-n 256 -d 64": 64, "-n 256 -d 256": 256, "-H 8 -G 2 -k 1024 -d 64": 64}
DECODE_SHAPE = list(SHAPES)[2]
SEQLEN, HEAD_DIMS, MASKS = 4096, (64, 128, 256), ("full", "causal")
SHARED = {
    "shared_load": "loads",
    "shared_store": "stores",
    "ldmatrix": "ldmatrix",
    "copy_shared": "cp.async",
    "wgmma_read": "wgmma",
}
LOOPS = {
    "mma.sync": ("tensor cores", "`mma.sync`", "mma"),
    "wgmma": ("tensor cores", "`wgmma`", "wgmma"),
    "wgmma e4m3": ("tensor cores", "`wgmma` with e4m3", "wgmma_e4m3"),
}
BACKWARD_RIVALS = {"fa2": "FlashAttention-2", "fa3": "FlashAttention-3", "cudnn": "cuDNN"}
RIVALS = {
    "fa2": "FlashAttention-2",
    "fa3": "FlashAttention-3",
    "fa3_fp8": "FlashAttention-3 in e4m3",
    "fp16": "step {before} in fp16",
}
WRITER = "`make pages`"
MUTANTS = REPOSITORY / "plots/results/mutants.jsonl"
FOUNDATIONS = REPOSITORY / "plots/results/foundations.jsonl"


def cells(*words: object) -> str:
    return f"| {' | '.join(map(str, words))} |"


def grid(head: list[str], rows: list[list[str]]) -> list[str]:
    return [cells(*head), cells("---", *["---:"] * (len(head) - 1)), *(cells(*row) for row in rows)]


def record_of(results: Results, step: str, head_dim: int, mask: str) -> dict | None:
    found = results.select(step=step, seqlen=SEQLEN, head_dim=head_dim, mask=mask, dtype=results.dtype_of(step))
    return found[0] if found else None


def speed(results: Results, step: str, before: str) -> list[str]:
    """TFLOP/s of the step and the one that it builds on, and relative to others and to mma.sync."""
    dtype, fp16 = results.dtype_of(step), before.removeprefix("step")
    if before and results.dtype_of(before) != dtype:
        before = ""
    columns = [(head_dim, mask) for head_dim in HEAD_DIMS for mask in MASKS]
    own = [record_of(results, step, *column) for column in columns]
    if not any(own):
        return [f"Not measured on a GPU yet: `make bench{' BACKWARD=1' * (source_of(step).kind == 'backward')}`."]
    old = [before and record_of(results, before, *column) for column in columns]

    backward = dtype == "bf16"

    def row(label: str, cell: Callable[[dict, dict | None], str]) -> list[str]:
        return [label, *(cell(r, o) if r else "–" for r, o in zip(own, old, strict=True))]

    name = f"step {step.removeprefix('step')}, TFLOP/s"
    rows = [
        row(f"**{name}**", lambda r, _: f"**{r['tflops']:.4g}**"),
        *(
            row(
                f"speedup over {name.format(before=fp16)}",
                lambda r, _, field=f"speed_over_{short}": f"{r[field]:.3g}" if field in r else "–",
            )
            for short, name in (BACKWARD_RIVALS if backward else RIVALS).items()
            if any(r and f"speed_over_{short}" in r for r in own)
        ),
        row("of the mma.sync ceiling", lambda r, _: f"{100 * r['tflops'] / r['ceiling_mma_tflops']:.0f} %"),
    ]
    first = next(r for r in own if r)
    if first["ceiling"].startswith("wgmma"):
        kind = f"ceiling_{LOOPS[first['ceiling']][2]}_tflops"
        rows.append(row(f"of the {first['ceiling']} ceiling", lambda r, _: f"{100 * r['tflops'] / r[kind]:.0f} %"))
    if before:
        name = f"step {before.removeprefix('step')}, TFLOP/s"
        rows.insert(0, row(name, lambda _, o: f"{o['tflops']:.4g}" if o else "–"))
        rows.insert(
            2,
            row(
                f"speedup over step {before.removeprefix('step')}",
                lambda r, o: f"{r['tflops'] / o['tflops']:.2f}" if o else "–",
            ),
        )
    return [
        f"[Speed](measuring.md) on one {first['device']}, {dtype}, N = {SEQLEN}, batch {first['batch']}, "
        f"{first['heads'] * first['head_dim']} / D heads (commit {first['commit'][:12]}, "
        f"{first['date'][:10]}):",
        "",
        *grid(["", *(f"D = {d}, {mask}" for d, mask in columns)], rows),
    ]


def masked(results: Results, step: str) -> list[str]:
    """The masks that FlexAttention was measured with, too."""
    dtype = results.dtype_of(step)
    full = {(r["head_dim"], r["seqlen"]): r["flops"] for r in results.select(step=step, dtype=dtype, mask="full")}
    rows = [
        [
            f"`{r['mask']}`",
            r["head_dim"],
            r["seqlen"],
            f"{r['speed_over_flex']:.3g}",
            f"{r['mask_blocks'] / r['mask_blocks_active'] / r['speed_over_full']:.2f}",
            f"{full[r['head_dim'], r['seqlen']] / r['flops'] / r['speed_over_full']:.2f}",
        ]
        for r in results.select(step=step, dtype=dtype)
        if "speed_over_flex" in r and "speed_over_full" in r and r["mask"] not in MASKS
    ]
    return (
        [
            "",
            "Masks: the speedup over compiled FlexAttention, and the time of a block of 128 x 128 that is "
            "not fully masked and of an unmasked entry, as multiples of those with the full mask.",
            "",
            *grid(
                ["mask", "D", "N", "speedup over FlexAttention", "time per block", "time per entry"],
                sorted(rows, key=lambda row: (row[1], row[2], row[0])),
            ),
        ]
        if rows
        else []
    )


def roofline(results: Results, step: str) -> list[str]:
    """Where the step stands in the roofline figure."""
    record = record_of(results, step, 128, "full")
    if record is None:
        return []
    intensity = record["flops"] / record["must_move_bytes"]
    units, loop, kind = LOOPS.get(record["ceiling"], ("fp32 multiply-adds (FFMA)", "FFMA", "ffma"))
    peak, copy = record[f"ceiling_{kind}_tflops"], record["ceiling_copy_gb_per_s"]
    share = 100 * record["must_move_bytes"] / record["median_ms"] * 1e-6 / copy
    ridge = peak * 1e3 / copy
    tighter = "device memory is" if intensity < ridge else f"the {units.partition(' (')[0]} are"
    return [
        "",
        f"[Roofline](roofline.md) at D = 128, no mask: the break-even between device memory and the {units} is "
        f"at {ridge:.0f} operations per byte ({peak:.0f} TFLOP/s of {loop} / {copy * 1e-3:.2f} TB/s of a copy). "
        f"Step {step.removeprefix('step')} does {intensity:.4g} for each byte that must move, so {tighter} the "
        f"tighter limit. The step reaches {'less than ' * (share < 1)}{max(share, 1):.0f} % of the speed of a "
        f"copy and {100 * record['tflops'] / peak:.0f} % of that of {loop}.",
    ]


def headline_of(results: Results, ceiling: str) -> dict:
    """The fastest step that is compared with this ceiling, for the problem of the README's table."""
    return max(
        (record for record in results.headline("full") if record["ceiling"] == ceiling),
        key=lambda record: record["tflops"],
    )


def example(results: Results) -> str:
    """The roofline's two bounds for the problem of the README's table."""
    record = headline_of(results, "mma.sync")
    mma, copy = record["ceiling_mma_tflops"], record["ceiling_copy_gb_per_s"] * 1e-3
    ffma, ridge = record["ceiling_ffma_tflops"], mma / copy
    return "\n".join(
        [
            f"Example: B = {record['batch']}, H = {record['heads']}, N = {SEQLEN}, D = 128. In the run of the "
            f"tables, an {record['device']} reached {mma:.0f} TFLOP/s of `mma.sync` and {copy:.2f} TB/s of "
            "memory.",
            "",
            *grid(
                ["", "work", "time at least"],
                [
                    [
                        "GEMMs",
                        f"{record['flops'] * 1e-9:.0f} * 10^9 operations",
                        f"{record['flops'] / mma * 1e-9:.2f} ms",
                    ],
                    [
                        "device memory",
                        f"{record['must_move_bytes'] * 1e-6:.0f} * 10^6 bytes",
                        f"{record['must_move_bytes'] / copy * 1e-9:.2f} ms",
                    ],
                ],
            ),
            "",
            "So the tensor cores are the limit, not memory. The two times are equal at "
            f"`{mma:.0f} / {copy:.2f} = {ridge:.0f}` operations per byte, the *ridge* of the roofline. "
            "Attention without S and P in memory reaches it at about N = "
            f"{round(ridge * (2 + 1 / 128), -1):.0f}. The first steps do not use tensor cores: with the "
            f"{ffma:.0f} TFLOP/s of FFMA ([below](#the-ceilings)) the ridge is at {ffma / copy:.0f}.",
        ]
    )


def exponentials(results: Results) -> str:
    """Their time, beside that of the products."""
    record = headline_of(results, "mma.sync")
    mma, exp = record["ceiling_mma_tflops"], record["ceiling_exp_g_per_s"] * 1e-3
    times = ", ".join(f"{4 * d / mma:.2f} ps at D = {d}" for d in (128, 64, 32))
    return (
        "The exponentials matter because their unit is slow: it computes 16 per clock in each SM "
        f"(streaming multiprocessor). In the run of the tables, an {record['device']} computed {exp:.1f} * 10^12 per second, so one entry "
        f"takes {1 / exp:.2f} ps. Its share of the GEMMs takes `4 * D / ({mma:.0f} * 10^12)` seconds: {times}. At "
        "D = 32 the exponentials are the limit."
    )


def counts(report: Report) -> dict[str, str]:
    run = report.run
    loaded, stored = (
        human(report.sector_bytes(kinds)) + "B"
        for kinds in (("global_load", "copy_global", "tensor_load"), ("global_store", "tensor_store"))
    )
    return {
        "loaded from device memory": loaded,
        "stored to device memory": stored,
        **{f"wavefronts of shared memory: {name}": human(run[f"{kind}_wavefronts"]) for kind, name in SHARED.items()},
        "bank conflicts, in wavefronts": human(report.sum_of("conflicts")),
        "TMA copies, of a box each": human(run["tensor_load_requests"] + run["tensor_store_requests"]),
        "mma": human(run["mma"]),
        "wgmma, counted once per warpgroup": human(run["wgmma"]),
        "mma with a copy in flight": f"{100 * run['mma_under_copy'] / run['mma']:.0f} %" if run["mma"] else "–",
        "barriers (`__syncthreads()`), counted once per warp": human(run["barriers"]),
    }


def lab(reports: dict[str, Report], step: str, before: str, shape: str) -> list[str]:
    """What the lab counts for the step and the one that it builds on, without what neither has."""
    names = [name for name in (before, step) if name in reports]
    columns = [counts(reports[name]) for name in names]
    rows = [[label, *(column[label] for column in columns)] for label in columns[0]]
    zeros = {"0", "–"} if reports[step].run["copy_shared_requests"] else {"0", "–", "0 %"}
    head = ["", *(f"step {name.removeprefix('step')}" for name in names)]
    return [
        "",
        f"The lab counts on the CPU backend, `./{step} {shape} --report` (one batch entry"
        f"{', two heads' * (shape != DECODE_SHAPE)}; counts that are 0 are left out). It counts what a kernel "
        "requests, and has no caches:",
        "",
        *grid(head, [row for row in rows if set(row[1:]) - zeros]),
    ]


def clocks(results: Results) -> str:
    """The clocks of the fastest step and of the loop that it is compared with."""
    record = headline_of(results, "wgmma")
    speed, peak, clock = record["tflops"], record["ceiling_wgmma_tflops"], record["sm_clock_mhz"]
    per_clock = 4096 * record["multiprocessors"]
    return (
        f"Example: step {record['step'].removeprefix('step')}, D = 128, no mask, N = {SEQLEN}. While the {record['device']} repeats it "
        f"alone, nvidia-smi reports {record['power_w']:.0f} W and a clock of {clock} MHz. The loop of "
        f"`wgmma` reaches {peak:.0f} TFLOP/s. The tensor cores of an SM do 4096 operations "
        f"per clock, so the clock of the loop is at least `{peak:.0f} * 10^12 / "
        f"({record['multiprocessors']} * 4096) = {peak * 1e6 / per_clock:.0f}` MHz. At {clock} MHz, "
        f"tensor cores that are always busy would do {per_clock * clock * 1e-6:.0f} TFLOP/s. The step "
        f"does {speed:.0f} in interleaved rounds, in which its clock is higher than alone. So its tensor "
        f"cores are busy nearly always, but its speed is {100 * speed / peak:.0f} % of the ceiling."
    )


def scores(path: Path) -> str:
    """How many mutants of each step the checks catch; a score is None if its sample is not judged."""
    records = read_records(path)
    counts = [key for key in records[0] if key not in ("step", "commit") and "percent" not in key]
    ends = ("percent", "least_percent", "most_percent")
    return "\n".join(
        grid(
            ["step", *(key.replace("_", " ") for key in counts), "score", "from", "to"],
            [
                [
                    record["step"].removeprefix("step"),
                    *(record[key] for key in counts),
                    *("–" if record[end] is None else f"{record[end]:.2f} %" for end in ends),
                ]
                for record in records
            ],
        )
    )


def times(program: str, records: list[dict]) -> str:
    """How fast the stages of a program of chapter 0 are on a GPU, for each size; nothing without records."""
    uses_mma = any(
        re.search(r"mma[._]sync", source.read_text()) for source in REPOSITORY.glob(f"steps/foundations/{program}_*.cu")
    )
    sizes: dict[int, list[dict]] = {}
    for record in records:
        if record["program"] == program and record.get("ms"):
            sizes.setdefault(record["n"], []).append(record)

    def row(r: dict) -> list[str]:
        gb_per_s, tflops = 1e-6 * r["bytes"] / r["ms"], 1e-9 * r["flops"] / r["ms"]
        rate = (
            [f"{gb_per_s:.0f} GB/s", f"{gb_per_s / r['copy_gb_per_s']:.2f} of a copy"]
            if r["bytes"]
            else [f"{tflops:.1f} TFLOP/s", f"{tflops / r['mma_tflops']:.2f} of mma.sync" if uses_mma else "–"]
            if r["flops"]
            else ["–", "–"]
        )
        return [
            f"`{r['stage']}`",
            f"{r['ms']:.4g}",
            *rate,
            *([f"{r['library_ms'] / r['ms']:.2f}"] if r["library"] else []),
        ]

    lines = []
    for n, stages in sizes.items():
        first = stages[0]
        head = [
            "stage",
            "ms",
            "rate",
            "of the ceiling",
            *([f"speed relative to {first['library']}"] if first["library"] else []),
        ]
        lines += [
            "",
            f"Times on one {first['device']}, n = {n:,}, medians of {first['samples']} runs in turns (commit "
            f"{first['commit'][:12]}):",
            "",
            *grid(head, [row(stage) for stage in stages]),
        ]
    return "\n".join(lines[1:])


def shares(program: str, records: list[dict]) -> str:
    """How the passes of a program of chapter 0 divide their time among stages: a table for each set of stages, with a
    row for each size. Stages that are named after a step are attention."""
    runs: list[list[dict]] = []
    for record in records:
        if record["program"] == program and record.get("ms"):
            of_run = runs and record["n"] == runs[-1][0]["n"] and record["stage"] not in [r["stage"] for r in runs[-1]]
            runs = [*runs[:-1], [*runs[-1], record]] if of_run else [*runs, [record]]
    tables: dict[tuple[str, ...], list[list[dict]]] = {}
    for run in sorted(runs, key=lambda run: run[0]["n"]):
        tables.setdefault(tuple(record["stage"] for record in run), []).append(run)

    def parts(run: list[dict]) -> list[tuple[list[dict], dict]]:
        """The stages of each pass, and that of them which is attention."""
        passes = [[r for r in run if r["pass"] == name] for name in dict.fromkeys(r["pass"] for r in run)]
        return [(part, next(r for r in part if r["stage"].startswith("step"))) for part in passes]

    lines = []
    for table in tables.values():
        first = table[0][0]
        head, rows = ["N"], [[f"{run[0]['n']:,}"] for run in table]
        for part, attention in parts(table[0]):
            head += [*(f"`{r['stage']}`" for r in part), f"share of `{attention['stage']}`"]
        for run, row in zip(table, rows, strict=True):
            for part, attention in parts(run):
                share = attention["ms"] / sum(r["ms"] for r in part)
                row += [*(f"{r['ms']:.3g}" for r in part), f"**{100 * share:.0f} %**"]
        lines += [
            "",
            f"Times in ms on one {first['device']}, medians of {first['samples']} runs in turns (commit "
            f"{first['commit'][:12]}), and the share of attention in the forward and in the backward pass:",
            "",
            *grid(head, rows),
        ]
    return "\n".join(lines[1:])


def with_times(page: Path, records: list[dict]) -> str:
    """A page of chapter 0 with the times of its program, where it has the markers."""
    text = page.read_text()
    for kind, content in (("times", times), ("shares", shares)):
        if f"<!-- foundations {kind} {page.stem}: " in text:
            text = with_section(text, f"foundations {kind} {page.stem}", WRITER, content(page.stem, records))
    return text


def foundation_records() -> list[dict]:
    return read_records(FOUNDATIONS) if FOUNDATIONS.exists() else []


def exercises(content: str) -> str:
    """The course of the exercises, or the wrong answers to them."""
    return subprocess.run(
        [sys.executable, REPOSITORY / "steps/exercises/catalogue.py", content],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.rstrip()


def taken(programs: Path) -> str:
    """What the steps take and need, a row for those that say the same."""
    rows: dict[tuple, list[str]] = {}
    for step in every_step():
        of = facts(programs / step)
        dims, least = of["head_dims"], of["needs_compute_capability"]
        text = source_of(step).path.read_text()  # no GPU after Hopper has wgmma
        exactly = " exactly" * ("wgmma_" in text or "supports_ring<CONFIGS, true>" in text)
        rows.setdefault(
            (
                "1 to 256" if dims == "any" else ", ".join(map(str, dims)),
                ", ".join(of["dtypes"]),
                ", ".join(of["masks"]),
                "any" if least is None else f"{least / 10}{exactly}",
                of["ceiling"],
            ),
            [],
        ).append(step.removeprefix("step"))
    return "\n".join(
        [
            cells("steps", "D", "types", "masks", "compute capability", "ceiling"),
            cells(*["---"] * 6),
            *(cells(", ".join(steps), *row) for row, steps in rows.items()),
        ]
    )


WHAT_IT_DOES = re.compile(r"^Computes .*\n(?:\S.*\n)*\n", re.MULTILINE)
OPTION = re.compile(r"^  (?:-\w, |    )--.*\n(?: {10,}.*\n)*", re.MULTILINE)  # and its explanation


def options(programs: Path) -> str:
    """The help of the first step, and the options that others have or describe otherwise."""
    told = {
        step.removeprefix("step"): subprocess.run(
            [programs / step, "--help"], capture_output=True, text=True, check=True
        ).stdout
        for step in every_step()
    }
    first = re.sub("^Usage: .*", "Usage: ./stepNN [OPTION...]", next(iter(told.values())))
    steps_of: dict[str, list[str]] = {}  # for each such option
    for step, text in told.items():
        for option in [*WHAT_IT_DOES.findall(text), *OPTION.findall(text)]:
            if option not in first:
                steps_of.setdefault(option, []).append(step)
    blocks: dict[str, str] = {}
    for option, steps in steps_of.items():
        title = f"Step{'s' * (len(steps) > 1)} {', '.join(steps)}"
        blocks[title] = blocks.get(title, "") + option
    return "\n\n".join([f"```text\n{first}```", *(f"{title}:\n\n```text\n{own}```" for title, own in blocks.items())])


def main() -> int:
    results, docs, programs = load(Path(sys.argv[1])), Path(sys.argv[2]), Path(sys.argv[3])
    results_of = {"forward": results, "backward": load(Path(sys.argv[1]).parent / "backward")}
    folder = Path(sys.argv[1]).parent / "decode"  # other GPUs have folders in it
    decode_results, more = DecodeResults(folder), [DecodeResults(x) for x in sorted(folder.iterdir()) if x.is_dir()]
    for page in docs.rglob("*.md"):
        page.write_text(with_lines(page))
    for page in docs.glob("f[0-9]*.md"):
        page.write_text(with_times(page, foundation_records()))
    steps = every_step()
    walk.write(docs, programs.resolve())
    with tempfile.TemporaryDirectory() as scratch:
        reports = {
            shape: {
                step: report_of(program, step, shape, Path(scratch))
                for step in steps
                if (program := Program(step, programs)).takes(head_dim)
                and (source_of(step).kind == "decode") == (shape == DECODE_SHAPE)
            }
            for shape, head_dim in SHAPES.items()
        }
    for step in steps:
        before = source_of(step).after
        page = docs / f"{step}.md"
        if not page.exists():
            print(f"pages: {page} is not written yet")
            continue
        shape = next(shape for shape in SHAPES if step in reports[shape])
        counted = lab(reports[shape], step, before, shape)
        if shape == DECODE_SHAPE:
            lines = [*decode_speed(decode_results, step, before, *more), *counted]
        else:
            own = results_of[source_of(step).kind]
            lines = [*speed(own, step, before), *masked(own, step), *roofline(own, step), *counted]
        content = "\n".join(lines)
        page.write_text(with_section(page.read_text(), "numbers", WRITER, content))
    for name, section, content in (
        ("options", "options", options(programs)),
        ("specification", "steps", taken(programs)),
        ("roofline", "example", example(results)),
        ("roofline", "exponentials", exponentials(results)),
        ("measuring", "clocks", clocks(results)),
        ("mutants", "scores", scores(MUTANTS)),
        ("exercises", "course", exercises("course")),
        ("wrong-answers", "wrong", exercises("wrong")),
    ):
        page = docs / f"{name}.md"
        page.write_text(with_section(page.read_text(), section, WRITER, content))
    return 0


if __name__ == "__main__":
    sys.exit(main())
