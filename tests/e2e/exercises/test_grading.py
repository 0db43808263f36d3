"""The workflow that a teacher copies into the students' repositories: its commands, in a copy of the tree."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.lib.programs import REPOSITORY, built_commit

sys.path.insert(0, str(REPOSITORY / "steps/exercises"))
import classroom  # noqa: E402
from table import EXERCISES  # noqa: E402

pytestmark = pytest.mark.cpu_only("the workflow names the CPU backend")


def test_the_workflow_grades_a_repository(tmp_path: Path) -> None:
    """A solution, an untouched file, and a file that is missing."""
    workflow = yaml.safe_load((REPOSITORY / "docs/grade.yml").read_text())
    job, env = workflow["jobs"]["grade"], workflow["env"]
    commands = "\n".join(step["run"] for step in job["steps"] if "run" in step)
    solved, untouched, missing = env["EXERCISES"].split()
    course, answers = (tmp_path / step["with"]["path"] for step in job["steps"][1::-1])
    answers.mkdir()
    (answers / f"{solved}.cu").write_text(classroom.sources(EXERCISES[solved])[0])
    (answers / f"{untouched}.cu").write_text(classroom.sources(EXERCISES[untouched])[1])
    shutil.copytree(REPOSITORY / "steps", course / "steps", ignore=shutil.ignore_patterns("*[0-9].cu", "exf*.cu"))
    for name in ("Makefile", "common", "docs", "plots", "tests"):
        (course / name).symlink_to(REPOSITORY / name)
    subprocess.run(["cp", "-rl", REPOSITORY / "build", course / "build"], check=True)
    summary = tmp_path / "summary.md"
    subprocess.run(
        [workflow["defaults"]["run"]["shell"], "-eo", "pipefail", "-c", commands],
        cwd=tmp_path,
        check=True,
        env=os.environ | env | {"GITHUB_STEP_SUMMARY": str(summary), "COMMIT": built_commit()},
    )
    rows = json.loads((tmp_path / job["steps"][-1]["with"]["path"]).read_text())["exercises"]
    most = {name: EXERCISES[name].points for name in env["EXERCISES"].split()}
    assert {row["exercise"]: (row["points"], row["of"]) for row in rows} == {
        solved: (most[solved],) * 2,
        untouched: (0, most[untouched]),
        missing: (0, most[missing]),
    }
    assert f"total     {most[solved]:4g} of {sum(most.values()):2}, " in summary.read_text()
