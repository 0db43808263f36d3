"""What a GPU can do at best: --ceilings measures it and saves it for later runs."""

import re
from pathlib import Path

import pytest

from tests.lib.programs import RIGHT, USAGE, Program, read_records

SMALL = ("-b", 1, "-H", 1, "-n", 64, "-r", 1, "--min-time", 0)
CEILINGS = (
    "ceiling_ffma_tflops",
    "ceiling_mma_tflops",
    "ceiling_wgmma_tflops",
    "ceiling_wgmma_e4m3_tflops",
    "ceiling_exp_g_per_s",
    "ceiling_copy_gb_per_s",
    "ceiling_date",
)


@pytest.mark.cpu_only("a GPU has ceilings")
def test_cpu_backend_has_no_ceilings(any_step: Program, tmp_path: Path) -> None:
    done = any_step.run("--ceilings", "-j", tmp_path / "records")
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert done.stderr == (f"{any_step.name}: --ceilings: needs a GPU; the CPU backend does not know how fast one is\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.gpu_only("the CPU backend has no ceilings")
def test_saved_ceilings_are_used_by_every_step(step: Program, tmp_path: Path) -> None:
    """Without a file, or with another GPU's, a run says how to measure ceilings."""
    cache, records = tmp_path / "cache", tmp_path / "records"
    env = {"XDG_CACHE_HOME": str(cache)}
    unknown = step.run(*SMALL, env=env)
    assert unknown.returncode == RIGHT
    assert re.search(r"\nceiling    unknown for this GPU: .* --ceilings measures it\n", unknown.stdout)
    done = step.run("--ceilings", "-j", records, env=env)
    assert (done.returncode, done.stderr) == (RIGHT, "")
    kept = cache / "attention-steps" / "ceilings.txt"
    assert f"kept in    {kept}\n" in done.stdout
    assert step.run(*SMALL, "-j", records, env=env).returncode == RIGHT
    kept.write_text(kept.read_text().replace("device ", "device other "))
    assert step.run(*SMALL, "-j", records, env=env).returncode == RIGHT
    first, same, other = read_records(records)
    assert {name: first[name] for name in CEILINGS} == {name: same[name] for name in CEILINGS}
    assert not {*CEILINGS} & {*other} and other["ceiling_percent"] is None


@pytest.mark.gpu_only("the CPU backend has no ceilings")
def test_unwritable_cache_is_reported_and_no_error(any_step: Program) -> None:
    done = any_step.run("--ceilings", env={"XDG_CACHE_HOME": "/proc/nowhere"})
    assert done.returncode == RIGHT and "\nnot kept   XDG_CACHE_HOME" in done.stdout
