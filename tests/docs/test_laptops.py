"""The commands of docs/laptops.md in a fresh Debian: those for Docker, for WSL and of the devcontainer.

A folder with a new Debian stands for the container and for the virtual machine. That needs root and a network.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.lib.programs import REPOSITORY

PAGE = (REPOSITORY / "docs/laptops.md").read_text()
CONSOLE = r"\n.*?^```console\n(.*?)^```"
TOOLS = ("debootstrap", "unshare")
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"  # of this machine: a proxy may have one of its own
SETTINGS = 'APT::Get::Assume-Yes "true";\nDPkg::Use-Pty "false";\n'  # who types the commands says yes

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(
        os.getuid() != 0 or not all(map(shutil.which, TOOLS)), reason=f"needs root and {' and '.join(TOOLS)}"
    ),
]


def below(heading: str) -> str:
    return re.search(f"^## {heading}{CONSOLE}", PAGE, re.MULTILINE | re.DOTALL)[1]


COMMANDS = {
    "docker": below("macOS, and Windows with Docker").partition("\n")[2],  # inside the container
    "wsl": f'sudo() {{ "$@"; }}\n{below("Windows with WSL").replace("REPOSITORY", "/repository")}',
    "devcontainer": json.loads((REPOSITORY / ".devcontainer/devcontainer.json").read_text())["postCreateCommand"],
}


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("debian")
    subprocess.run(["debootstrap", "--variant=minbase", "bookworm", root], check=True, stdout=subprocess.DEVNULL)
    shutil.copy("/etc/resolv.conf", root / "etc")
    shutil.copy(CERTIFICATES, root / "etc/certificates")
    (root / "etc/apt/apt.conf.d/answers").write_text(SETTINGS)
    subprocess.run(["git", "clone", "-q", "--bare", REPOSITORY, root / "repository"], check=True)
    return root


@pytest.mark.parametrize("where", COMMANDS)
def test_commands_run_in_a_fresh_debian(debian: Path, tmp_path: Path, where: str) -> None:
    root = tmp_path / "root"
    subprocess.run(["cp", "-a", debian, root], check=True)
    if where != "wsl":
        subprocess.run(["git", "clone", "-q", REPOSITORY, root / "attention"], check=True)
    done = subprocess.run(
        [
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            f"--root={root}",
            f"--wd={'/' if where == 'wsl' else '/attention'}",
            "--mount-proc",
            "bash",
            "-euo",
            "pipefail",
            "-c",
            COMMANDS[where],
        ],
        capture_output=True,
        text=True,
        check=False,
        env={
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/root",
            "DEBIAN_FRONTEND": "noninteractive",
            "PIP_CERT": "/etc/certificates",
        },
    )
    said = f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert done.returncode == 0, said
    assert where == "devcontainer" or "RIGHT: 512 of 512 rows" in done.stdout, said
