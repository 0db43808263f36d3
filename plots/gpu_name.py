"""The short name of a GPU: its folder in plots/results."""

import re

# What makers put before and around the name that people use.
BRANDS = ("nvidia", "geforce", "tesla")


def short_name(device: str) -> str:
    """`h200` for "NVIDIA H200", `rtx_4090` for "NVIDIA GeForce RTX 4090"."""
    words = re.findall(r"[a-z0-9]+", device.lower())
    kept = [word for word in words if word not in BRANDS]
    return "_".join(kept or words) or "unknown"
