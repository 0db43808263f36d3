"""Which part of the sources may include or import which other part: there are no cycles, neither
between folders nor between the files of a folder."""

import re
import subprocess
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.lib.programs import REPOSITORY, STEP_DIR

COMMON = REPOSITORY / "common"
HOST = ["report", "cli", "check", "masks", "device", "io", "base"]  # each may use those after it


def includes(path) -> list[str]:
    """Names of project headers, without those that only the CPU backend includes."""
    text = re.sub(r"#ifdef SIMT_BACKEND\n.*?#(else|endif)", "", path.read_text(), flags=re.DOTALL)
    return re.findall(r'#include "(.*?)"', text)


def sources(folder: str) -> list:
    return sorted(path for path in (REPOSITORY / folder).rglob("*") if path.suffix in (".c", ".h", ".cu", ".cuh"))


@pytest.mark.parametrize("path", sources("common/host"), ids=lambda path: path.name)
def test_host_folders_include_only_those_below(path) -> None:
    folder = path.relative_to(COMMON / "host").parts[0]
    below = HOST[HOST.index(folder) :] if folder in HOST else [*HOST, "run.h", "compare.h"]
    allowed = [f"host/{name}" for name in below] + [
        "attention.h",
        "backward.h",
        "block_mask.h",
        "decode.h",
        "float16.h",
        "float8.h",
        "vector_width.h",
    ]
    allowed += ["simt/"] * ("report/lab" in str(path))  # not compiled for a GPU
    allowed += ["device/ptx_hopper.cuh"] * (path.name == "ceiling.cu")
    allowed += ["commit.h"]  # generated
    assert [name for name in includes(path) if not name.startswith(tuple(allowed))] == []


def test_the_cpu_backend_includes_nothing_of_attention() -> None:
    assert [
        (path, name)
        for path in sources("common/simt")
        for name in includes(path)
        if name.startswith(("attention.h", "backward.h", "block_mask.h", "decode.h", "host/", "device/"))
    ] == []


def test_steps_and_device_code_include_no_host_code() -> None:
    """The judge of the exercises and what the foundations share are host programs."""
    assert [
        (path, name)
        for folder in ("steps", "common/device")
        for path in sources(folder)
        for name in includes(path)
        if path.suffix != ".c"
        and not name.startswith(
            (
                "attention.h",
                "backward.h",
                "foundation.h",
                "gemm.cuh",
                "layer_reference.h",
                "product.cuh",
                "block_mask.h",
                "decode.h",
                "device/",
                "tensor_map_limits.h",
            )
        )
    ] == []


def imports(folder: str) -> list[tuple[Path, str]]:
    """What the Python files of a folder import of this project."""
    return [
        (path, name)
        for path in (REPOSITORY / folder).rglob("*.py")
        for name in re.findall(r"^ *(?:from|import) ((?:tests|plots|common|steps|docs)\b\S*)", path.read_text(), re.M)
    ]


def test_plots_import_only_plots_the_package_and_the_library_of_the_tests() -> None:
    allowed = ("plots", "tests.lib", "common.python")
    assert [found for found in imports("plots") if not found[1].startswith(allowed)] == []
    assert imports("plots") != [] == imports("common/python")


def circle(uses: dict[str, set[str]]) -> list[str]:
    """Files that use each other in a circle; empty if there is none."""
    try:
        TopologicalSorter(uses).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def symbols(path: Path) -> tuple[set[str], set[str]]:
    """The names that an object defines for others, and those that it uses of others."""
    listing = subprocess.run(["nm", "-g", path], capture_output=True, text=True, check=True).stdout
    lines = [line.split() for line in listing.splitlines()]
    return {line[-1] for line in lines if line[-2] != "U"}, {line[-1] for line in lines if line[-2] == "U"}


FOLDERS = sorted({path.parent for path in sources("common")})


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(COMMON)))
def test_no_files_of_a_folder_use_each_other_in_a_circle(folder) -> None:
    """Headers by what they include, objects by functions and variables that another one defines."""
    headers = {
        path.name: {
            Path(name).name
            for name in includes(path)
            if (folder / Path(name).name).exists() and Path(name).name != path.name
        }
        for path in folder.iterdir()
        if path.suffix in (".h", ".cuh")
    }
    assert circle(headers) == []
    objects = [STEP_DIR / path.relative_to(COMMON).with_suffix(".o") for path in folder.glob("*.c")]
    names = {path.stem: symbols(path) for path in objects if path.exists()}
    assert (
        circle(
            {
                user: {name for name, (defined, _) in names.items() if defined & used}
                for user, (_, used) in names.items()
            }
        )
        == []
    )
