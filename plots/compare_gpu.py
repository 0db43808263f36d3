"""What machine and versions a comparison runs on, and whether it can run at all."""

import os
import subprocess
import sys
from datetime import datetime, timezone
from importlib import import_module, metadata
from pathlib import Path

NOTHING_TO_MEASURE_WITH = 77
MODULES = {"torch": "PyTorch", "numpy": "NumPy"}


def torch_on_a_gpu(program: str):
    """PyTorch; exits with 77 and one line where it, NumPy or a GPU is missing."""
    missing = None
    for module, name in MODULES.items():
        try:
            import_module(module)
        except ImportError:
            missing = f"{sys.executable} needs {name}. Install it: pip install {module}"
            break
    torch = sys.modules.get("torch")
    if missing is None and not torch.cuda.is_available():
        missing = "no GPU that PyTorch can use"
    if missing is not None:
        print(f"{program}: {missing}", file=sys.stderr)
        sys.exit(NOTHING_TO_MEASURE_WITH)
    return torch


def git(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=False,
                          cwd=Path(__file__).resolve().parents[1])


def commit() -> str:
    """As the Makefile finds it: what was measured is not what is measured."""
    if given := os.environ.get("COMMIT"):
        return given
    try:
        head = git("rev-parse", "--short=12", "HEAD")
        if head.returncode != 0:
            return "unknown"
        clean = git("diff", "--quiet", "HEAD", "--", ".", ":(exclude)plots/results")
    except OSError:
        return "unknown"
    return head.stdout.strip() + ("" if clean.returncode == 0 else "-dirty")


def date() -> str:
    """Now, in UTC."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def package_version(*names: str) -> str | None:
    """Of the first of these packages that is installed."""
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def versions(torch) -> dict[str, str | None]:
    """Fields of every row: of PyTorch and of what it calls."""
    cudnn = torch.backends.cudnn.version()
    number = None if cudnn is None else f"{cudnn // 10000}.{cudnn // 100 % 100}.{cudnn % 100}"
    return {"torch": torch.__version__, "cudnn": number, "triton": package_version("triton"),
            "flash_attn_3": package_version("flash_attn_3", "flash-attn-3")}


class Gpu:
    """The device that PyTorch uses."""

    def __init__(self, torch) -> None:
        self.torch, self.properties = torch, torch.cuda.get_device_properties(0)

    def ask(self, *fields: str) -> list[str | None]:
        """nvidia-smi's answers about this GPU; None where it has none."""
        command = ["nvidia-smi", "-i", f"GPU-{self.properties.uuid}",
                   f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError:
            return [None] * len(fields)
        words = done.stdout.strip().split(", ")
        return words if len(words) == len(fields) else [None] * len(fields)

    def environment(self) -> dict:
        """Fields that are the same in every row."""
        gpu, torch = self.properties, self.torch
        return {"commit": commit(), "backend": "cuda", "device": gpu.name,
                "gpu_uuid": f"GPU-{gpu.uuid}",
                "multiprocessors": gpu.multi_processor_count,
                "compute_capability": 10 * gpu.major + gpu.minor,
                "cuda_runtime": torch.version.cuda, "driver": self.ask("driver_version")[0],
                **versions(torch)}

    def clocks_mhz(self) -> tuple[int | None, int | None]:
        """Of the multiprocessors and of the memory, now."""
        sm, memory = (int(word) if word and word.isdigit() else None
                      for word in self.ask("clocks.sm", "clocks.mem"))
        return sm, memory
