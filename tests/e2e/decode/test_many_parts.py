"""Rows in as many parts as on a GPU, in blocks that wait for each other."""

import pytest

from tests.lib.programs import BACKEND, Program
from tests.lib.steps import inherited, source_of, step_names
from tests.mutants.cases import IN_CLUSTERS, MANY_PARTS

WAITING = [name for name in step_names("decode") if inherited(name, "counts").get("waits_for_blocks")]


@pytest.mark.skipif(BACKEND != "cpu", reason="a GPU has as many multiprocessors as it has")
@pytest.mark.parametrize(
    "name, options",
    [
        pytest.param(
            name,
            options,
            marks=[pytest.mark.exhaustive] * (options in IN_CLUSTERS and "cluster" not in source_of(name).path.name),
        )
        for name in WAITING
        for options in MANY_PARTS
    ],
)
def test_blocks_of_a_whole_device_merge_parts(name: str, options: str) -> None:
    more = ["-t", "bf16", "--check", "all", "--report=races,bounds,init"]
    Program(name).run_right(*options.split(), *more, env={"SIMT_SMS": "132"})
