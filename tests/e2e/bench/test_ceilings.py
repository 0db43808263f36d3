"""What a GPU can do at best: measured by --ceilings, kept for every run after it."""

import re
from pathlib import Path

import pytest

from tests.lib.programs import RIGHT, USAGE, Program, read_rows

SMALL = ("-b", 1, "-H", 1, "-n", 64, "-r", 1, "--min-time", 0)
CEILINGS = ("ceiling_ffma_tflops", "ceiling_mma_tflops", "ceiling_exp_g_per_s",
            "ceiling_copy_gb_per_s", "ceiling_date")


@pytest.mark.cpu_only("a GPU has ceilings")
def test_cpu_backend_has_none(any_step: Program, tmp_path: Path) -> None:
    done = any_step.run("--ceilings", "-j", tmp_path / "rows")
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert done.stderr == (f"{any_step.name}: --ceilings: needs a GPU; the CPU backend does not "
                           "know how fast one is\n")
    assert list(tmp_path.iterdir()) == []


def test_ceilings_are_no_case(any_step: Program, tmp_path: Path) -> None:
    cases = tmp_path / "cases"
    cases.write_text("-n 64\n--ceilings\n")
    done = any_step.run("--cases", cases)
    assert done.returncode == USAGE and done.stdout == ""
    assert re.fullmatch(rf".*{cases}:2: --cases, --ceilings, .* cannot stand here\n", done.stderr)


@pytest.mark.gpu_only("the CPU backend has no ceilings")
def test_kept_ceilings_serve_every_step(step: Program, tmp_path: Path) -> None:
    """A damaged file is measured again; what else is in the row follows from them."""
    cache, rows = tmp_path / "cache", tmp_path / "rows"
    env = {"XDG_CACHE_HOME": str(cache)}
    done = step.run("--ceilings", "-j", rows, env=env)
    assert (done.returncode, done.stderr) == (RIGHT, "")
    (kept,) = cache.glob("attention-steps/ceilings-*.txt")
    assert f"kept in    {kept}\n" in done.stdout
    text = kept.read_text()
    assert step.run(*SMALL, "-j", rows, env=env).returncode == RIGHT
    assert kept.read_text() == text
    kept.write_text(text.replace("exp_g_per_s ", "exp_g_per_s 9"))
    assert step.run(*SMALL, "-j", rows, env=env).returncode == RIGHT
    first, same, fresh = read_rows(rows)
    assert {name: first[name] for name in CEILINGS} == {name: same[name] for name in CEILINGS}
    assert fresh["ceiling_date"] >= first["ceiling_date"]
    for name in CEILINGS[:-1]:
        assert first[name] > 0 and fresh[name] == pytest.approx(first[name], rel=0.1), name
    assert f"date {fresh['ceiling_date']}\n" in kept.read_text()


@pytest.mark.gpu_only("the CPU backend has no ceilings")
def test_unwritable_cache_is_told_and_no_obstacle(any_step: Program) -> None:
    done = any_step.run("--ceilings", env={"XDG_CACHE_HOME": "/proc/nowhere"})
    assert done.returncode == RIGHT and "\nnot kept   XDG_CACHE_HOME" in done.stdout
