"""Bad options: one line that names the option, the value and valid values; exit code 2."""

import re
import resource
from pathlib import Path

import pytest

from tests.lib.kinds import MASK_STEPS
from tests.lib.programs import BACKEND, DEVICE, RIGHT, USAGE, Program, read_records

HUGE = "99999999999999999999"

# Options, and what the line must contain: the option, the value, valid values.
BAD_OPTIONS = [
    # Numbers that are malformed, zero, negative or huge.
    *[
        ([option, value], [name, value, "from 1 to"])
        for option, name in (
            ("-b", "--batch"),
            ("-H", "--heads"),
            ("-G", "--kv-heads"),
            ("-n", "--seqlen"),
            ("-k", "--seqlen-kv"),
            ("-d", "--head-dim"),
        )
        for value in ("0", "-1", "two", "1.5", "12x", "0x10", "1e3", "nan", HUGE, f"-{HUGE}", " 5", "+5", "5 ")
    ],
    (["--batch", ""], ["--batch", "integer"]),
    (["--batch=2147483648"], ["--batch 2147483648", "from 1 to 2147483647"]),
    (["--seqlen", "2000000000"], ["--seqlen 2000000000", "from 1 to 1073741824"]),
    *[(["--head-dim", value], [f"--head-dim {value}", "from 1 to 256"]) for value in ("257", "65536", "65537")],
    (
        ["-b", "2147483647", "-H", "2147483647", "-n", "1000000000", "-d", "256"],
        ["--batch 2147483647", "--heads 2147483647", "--seqlen 1000000000", "GB"],
    ),
    (["-b", "100000", "-n", "1000000"], ["--batch 100000", "--seqlen 1000000", "GB"]),
    (["-k", "1000000000", "-d", "256", "-H", "64"], ["--seqlen-kv 1000000000", "GB"]),
    *[
        (["--scale", value], ["--scale", value, "finite number"])
        for value in ("x", "nan", "inf", "-inf", "1e999", "1.0.0", "", " 1", "+1", "0x1", "infinity")
    ],
    *[(["--scale", value], [f"--scale {value}", "must be positive"]) for value in ("0", "-1", "1e-39", "1e300", "33")],
    *[
        (["--min-time", value], ["--min-time", value, right])
        for value, right in (("x", "finite number"), ("nan", "finite number"), ("-1", "0 or more"))
    ],
    *[(["--repeat", value], ["--repeat", value, "from 0 to"]) for value in ("-1", "x", HUGE, "1.5")],
    *[
        (["--seed", value], ["--seed", value, "from 0 to 2^64 - 1"])
        for value in ("-1", "x", "18446744073709551616", HUGE, "1.5", "", " 5", "+5", "- 5")
    ],
    # Names that do not exist.
    *[(["--dtype", value], ["--dtype", value, "fp16 or bf16"]) for value in ("fp32", "FP16", "")],
    *[
        (["--mask", value], ["--mask", value, "full or causal"])
        for value in ("diagonal", "window:32", "FULL", "m.npy", "")
    ],
    *[(["--layout", value], ["--layout", value, "bhnd or bnhd"]) for value in ("nhbd", "")],
    (["--input", "uniform"], ["--input uniform", "normal, outlier, spiky, sink, constant", "directory"]),
    *[(["--check", value], ["--check", value, "all, rows:N or none"]) for value in ("some", "row:5", "")],
    *[
        (["--check", f"rows:{value}"], ["--check rows:", value, "from 1 to"])
        for value in ("0", "-5", "x", HUGE, "", " 5", "+5")
    ],
    *[
        (["--mask-block", value], ["--mask-block", value, "two sizes", "128x64"])
        for value in ("128", "x64", "64x", "-1x64", "128x64x", "axb", "", " 1x1", "+1x1", "1x 1", "1x+1")
    ],
    *[
        (["--mask-block", value], ["--mask-block", value, "each size must be from 1 to 16384"])
        for value in (
            "0x64",
            "64x0",
            "0x0",
            "16385x64",
            "64x999999999",
            "12345678901x64",
            f"{HUGE}x{HUGE}",
            "4294967296x64",
            "64x18446744073709551680",
        )
    ],
    # If a value does not fit in the line, only its middle is left out.
    (["--dtype", "x" * 3000], ["--dtype xxx", "xxx: must be fp16 or bf16"]),
    # Values that contradict each other.
    (["-H", "4", "-G", "3"], ["--kv-heads 3", "divide", "--heads 4"]),
    (["-H", "2", "-G", "4"], ["--kv-heads 4", "divide", "--heads 2"]),
    # Options that exclude each other; test_options_that_need_a_run has the others.
    (["--draw-mask", "--info"], ["--draw-mask", "--info must not be given"]),
    # Options that do not exist or are ambiguous; values that are missing or too many.
    *[
        ([*before, option, *after], [f": {option}: {fault}; --help lists the options"])
        for before, option, after, fault in (
            ([], "--nonsense", ["-n", "5"], "no such option"),
            (["-n", "5"], "--nonsense=3", ["-d", "64"], "no such option"),
            ([], "-z", ["-n", "5"], "no such option"),
            (["-n", "5"], "-z5", ["-d", "64"], "no such option"),
            ([], "--se", ["5"], "may be short for --seqlen, --seqlen-kv or --seed"),
            (["-n", "5"], "--sc=1", [], "may be short for --scales or --scale"),
            (["-n", "5"], "--batch", [], "needs a value"),
            (["-n", "5"], "-b", [], "needs a value"),
            (["-n", "5"], "--mask-b", [], "needs a value"),
            ([], "--info=yes", [], "takes no value"),
        )
    ],
    (["attend"], ["attend", "unexpected argument", "--help"]),
    (["-n", "5", "16"], ["16", "unexpected argument", "--help"]),
]


def files_in(directory: Path) -> list[Path]:
    """All files, and the directories that hold none."""
    return sorted(p for p in directory.rglob("*") if p.is_file() or not any(p.iterdir()))


def refused(program: Program, directory: Path, *options: object, **more) -> str:
    """Runs it where it could write files; it must write none. Returns the one line on stderr."""
    before = files_in(directory)
    done = program.run(
        "--repeat", 0, "-o", directory / "out", "-j", directory / "records.json", *options, timeout=60, **more
    )
    assert done.returncode == USAGE, done
    assert done.stdout == ""
    assert re.fullmatch(r"[^\n]+\n", done.stderr), f"not one line: {done.stderr!r}"
    assert files_in(directory) == before
    return done.stderr


@pytest.mark.parametrize("options, fragments", BAD_OPTIONS, ids=[" ".join(options)[:60] for options, _ in BAD_OPTIONS])
def test_bad_options(any_step: Program, tmp_path: Path, options: list, fragments: list) -> None:
    line = refused(any_step, tmp_path, *options)
    assert line.startswith(f"{any_step.name}: ")
    assert [part for part in fragments if part not in line] == [], line


def test_reports_that_do_not_exist(any_step: Program, tmp_path: Path) -> None:
    """The message names the possible lists; a GPU build says which build can report."""
    line = refused(any_step, tmp_path, "--report=nonsense")
    if BACKEND == "cuda":
        assert "CPU backend" in line and "CPU backend" in refused(any_step, tmp_path, "--report")
    else:
        assert "--report=nonsense" in line and "counts" in line


@pytest.mark.parametrize(
    "instead, other",
    [
        ("--draw-mask", ["-o", "out"]),
        ("--draw-mask", ["-j", "records"]),
        ("--draw-mask", ["--save-mask", "mask"]),
        ("--info", ["-o", "out"]),
        ("--info", ["--save-mask", "mask"]),
    ],
)
def test_options_that_need_a_run(tmp_path: Path, instead: str, other: list[str]) -> None:
    """Without a run nothing is written, except a mask with --draw-mask --save-mask. A file of cases
    is not even read."""
    options = [instead, other[0], str(tmp_path / other[1])]
    if (instead, other[0]) == ("--draw-mask", "--save-mask"):
        Program(MASK_STEPS[0]).run_right(*options)
        assert (tmp_path / "mask").is_dir()
        return
    name = {"-o": "--output", "-j": "--json"}.get(other[0], other[0])
    for more in ([], ["--cases", "missing"]):
        done = Program(MASK_STEPS[0]).run(*options, *more)
        assert (done.returncode, done.stdout) == (USAGE, "")
        assert re.fullmatch(
            rf"{MASK_STEPS[0]}: {instead}: \w+ instead of running, so {name} must not be "
            r"given with it\n",
            done.stderr,
        )
    assert files_in(tmp_path) == []


# --- Files of cases ----------------------------------------------------------------------------

BAD_CASES = [
    ("", ["holds no case"]),
    ("# only a comment\n\n   \n", ["holds no case"]),
    ("-n 4\n-n five\n", [":2: ", "--seqlen five", "from 1 to"]),
    ("-n 4\n--nonsense\n", [":2: --nonsense: no such option"]),
    ("-n 4 -b\n", [":1: -b: needs a value"]),
    ("-n 4\n\n--cases other.txt\n", [":3: ", "--cases, --ceilings, --help and --version cannot stand here"]),
    ("--help\n", [":1: ", "--cases, --ceilings, --help and --version cannot stand here"]),
    ("-n 64\n--ceilings\n", [":2: --cases, --ceilings, --help and --version cannot stand here"]),
    ('-n 4\n-o "a b\n-n 5\n', [":2: cannot be split into words as a shell does"]),
    ("-n 4\n-n $(id)\n", [":2: cannot be split into words as a shell does"]),
    ("-n 4 --check some", [":1: ", "--check some", "all, rows:N or none"]),
    ("-n 4\n-n 4 --draw-mask\n", [":2: --draw-mask: ", "--output must not be given"]),
]


@pytest.mark.parametrize("text, fragments", BAD_CASES, ids=[f[-1] for _, f in BAD_CASES])
def test_bad_cases(any_step: Program, tmp_path: Path, text: str, fragments: list) -> None:
    """A mistake anywhere in the file is found before the first case runs."""
    path = tmp_path / "cases.txt"
    path.write_text(text)
    line = refused(any_step, tmp_path, "--cases", path)
    assert str(path) in line
    assert [part for part in fragments if part not in line] == [], line


@pytest.mark.parametrize("name", ["missing.txt", "."])
def test_cases_that_cannot_be_read(any_step: Program, tmp_path: Path, name: str) -> None:
    line = refused(any_step, tmp_path, "--cases", tmp_path / name)
    assert f"--cases {tmp_path / name}: cannot read it" in line


def test_case_that_is_refused_does_not_stop_the_others(any_step: Program, tmp_path: Path) -> None:
    """Only the run finds the mistake: the line is named, other cases run, the worst code counts."""
    path, records = tmp_path / "cases.txt", tmp_path / "records.json"
    path.write_text("-n 4\n-n 4 -H 4 -G 3\n-n 5\n")
    done = any_step.run("--repeat", 0, "-j", records, "--cases", path)
    assert done.returncode == USAGE
    assert done.stderr == f"{path}:2: --kv-heads 3: must divide --heads 4\n"
    assert [record["seqlen"] for record in read_records(records)] == [4, 5]
    assert done.stdout.splitlines() == [
        f"{path}:1: right: -n 4",
        f"{path}:2: refused: -n 4 -H 4 -G 3",
        f"{path}:3: right: -n 5",
    ]


def test_cases_take_blanks_comments_and_quotes(any_step: Program, tmp_path: Path) -> None:
    path, records = tmp_path / "cases.txt", tmp_path / "two # words.json"
    path.write_text(f'\ufeff# first\n\n  -n 3\t-b 2\t# rest\r\n-n 4 -j "{records}"\n-n 5 -j "{records}"')
    any_step.run_right("--cases", path)
    assert [record["seqlen"] for record in read_records(records)] == [4, 5]


def test_cases_may_begin_with_a_byte_order_mark(any_step: Program, tmp_path: Path) -> None:
    path = tmp_path / "cases.txt"
    path.write_text("-n 4\n", encoding="utf-8-sig")
    assert any_step.run_right("--cases", path).stdout == f"{path}:1: right: -n 4\n"


# --- Settings of the CPU backend ---------------------------------------------------------------


@pytest.mark.cpu_only("a GPU reads no such settings")
def test_bad_settings(any_step: Program, tmp_path: Path) -> None:
    """The unit tests have all values."""
    for variable in ("SIMT_ORDER", "SIMT_THREADS", "SIMT_MEMORY"):
        line = refused(any_step, tmp_path, "-n", 4, env={variable: "-1"})
        assert f"{variable}=-1: must be" in line


def test_sizes_beside_files_that_set_them(any_step: Program, tmp_path: Path) -> None:
    for option in ("-b", "-H", "-G", "-n", "-k", "-d"):
        line = refused(any_step, tmp_path, "--input", tmp_path, option, 8)
        assert f"must not be given with --input {tmp_path}" in line


def test_more_threads_than_a_stack_has_room_for(any_step: Program) -> None:
    any_step.run_right("-n", 4, env={"OMP_NUM_THREADS": "65536"})


@pytest.mark.cpu_only("a CUDA driver has stacks of its own")
def test_a_small_stack(any_step: Program) -> None:
    """The limit of the shell is no limit for threads."""
    any_step.run_right(
        "-n",
        64,
        env={"OMP_NUM_THREADS": "2"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, (128 << 10, 128 << 10)),
    )


@pytest.mark.cpu_only("its threads need room for shared memory, so that they cannot start")
def test_a_library_that_gives_up_gives_no_verdict(any_step: Program, tmp_path: Path) -> None:
    """OpenMP exits with 1, which would mean a wrong answer."""
    done = any_step.run("-n", 64, "-o", tmp_path / "out", env={"OMP_NUM_THREADS": "2", "OMP_STACKSIZE": "64K"})
    assert done.returncode == DEVICE and list(tmp_path.iterdir()) == []
    assert done.stderr.splitlines()[-1] == (
        f"{any_step.name}: a library or the step has ended the program, so there is no result"
    )


def test_messages_name_the_program(any_step: Program, tmp_path: Path) -> None:
    """A copy of a step has a name of its own."""
    copy = Program("mine", tmp_path)
    copy.path.symlink_to(any_step.path)
    assert copy.run("--help").stdout.startswith("Usage: ./mine [OPTION...]\n")
    assert copy.run("-n", "0").stderr.startswith("mine: --seqlen 0: ")


# --- The same options with valid values: a program that refuses everything fails here -----------


@pytest.mark.parametrize(
    "options",
    [
        ["-b", "3"],
        ["-H", "4", "-G", "2"],
        ["--scale", "1e-3"],
        ["--seed", "18446744073709551615"],
        ["--check", "rows:1"],
        ["--mask", "causal"],
        ["--layout=bnhd"],
        ["--mask-block", "1x1"],
        ["--min-time", "0"],
        ["-d32", "-tbf16"],
        ["--head-d", "96"],
    ],
    ids=" ".join,
)
def test_good_options(any_step: Program, options: list) -> None:
    done = any_step.run("--repeat", 0, "-n", 4, *options)
    assert (done.returncode, done.stderr) == (RIGHT, "")
