"""Rows as a whole sweep and a whole comparison leave them, for tests of what is drawn from them.

The speeds follow a simple rule: they are no measurement, but as many and as different as those.
"""

import json
from pathlib import Path

STEP_SPEEDS = {"step01": 8, "step02": 34, "step03": 270, "step04": 330, "step05": 324}
PEER_SPEEDS = {"FlashAttention-2": ("fa2", 355), "cuDNN": ("cudnn", 590),
               "unfused SDPA": ("math", 25), "FlashAttention-3": ("fa3", 650),
               "FlexAttention": ("flex", 455)}
HEAD_DIMS, LENGTHS = (64, 128, 256), (512, 1024, 2048, 4096, 8192, 16384)
DTYPES = {"fp16": 2.0**-11, "bf16": 2.0**-8}
BLOCK_MASKS = {**{f"blocks:0.{i}": i / 10 for i in range(1, 10)}, "random:0.5": 0.5,
               "window:1024": 0.22, "document:8": 0.07, "prefix:1024": 0.53}
MASK_FIELDS = {"shared_kv": False, "mask_block_q": 128, "mask_block_kv": 128}
SLOW_STEPS = ("step01", "step02")


def problem(head_dim: int, seqlen: int, dtype: str, mask: str, density: float) -> dict:
    batch, heads = 16384 // seqlen, 2048 // head_dim
    return {"commit": "0123456789ab", "date": "2030-01-02T03:04:05Z", "backend": "cuda",
            "device": "NVIDIA H200", "gpu_uuid": "GPU-1", "cuda_runtime": "13.0", "driver": "580.1",
            "sm_clock_mhz": 1980, "batch": batch, "heads": heads, "kv_heads": heads,
            "seqlen": seqlen, "seqlen_kv": seqlen, "head_dim": head_dim, "dtype": dtype,
            "mask": mask, "layout": "bhnd", "scale": head_dim**-0.5, "input": "normal",
            "flops": round(4 * head_dim * batch * heads * seqlen**2 * density)}


def timing(base: dict, speed: float) -> dict:
    """Slower on short rows, on masks, and where the head is not 128 wide."""
    speed *= base["seqlen"] / (base["seqlen"] + 300) * (1 if base["head_dim"] == 128 else 0.9)
    speed *= 1 if base["mask"] == "full" else 0.88
    if base["mask"].startswith("random"):
        speed /= 2
    median = base["flops"] / speed * 1e-9
    return {"samples": 30, "median_ms": median, "p10_ms": 0.99 * median, "p90_ms": 1.01 * median,
            "tflops": speed}


def step_row(step: str, base: dict) -> dict:
    unit = DTYPES[base["dtype"]]
    times = timing(base, STEP_SPEEDS[step])
    least_bytes = 8 * base["batch"] * base["heads"] * base["seqlen"] * base["head_dim"]
    moved = least_bytes * (1 + 60 * (step == "step01"))
    ceiling = {"step01": "device memory copy", "step02": "fp32 FFMA"}.get(step, "mma.sync")
    tensor_cores = step not in SLOW_STEPS
    return {"step": step, **base, "right": True, "max_error": (0.55 + 0.2 * tensor_cores) * unit,
            "allowed_error": 2 * unit, "least_bytes": least_bytes, "extra_bytes": 0, **times,
            "dense_tflops": times["tflops"], "gb_per_s": moved / times["median_ms"] * 1e-6,
            "ceiling": ceiling, "ceiling_percent": 40.0, "ceiling_ffma_tflops": 62.0,
            "ceiling_mma_tflops": 640.0, "ceiling_copy_gb_per_s": 4150.0,
            **(mask_fields(base) if step == "step05" else {})}


def mask_fields(base: dict) -> dict:
    """Of random entries all blocks have some; else blocks are attended as entries are."""
    blocks = (base["seqlen"] // 128) ** 2
    whole = 4 * base["head_dim"] * base["batch"] * base["heads"] * base["seqlen"] ** 2
    active = blocks if base["mask"].startswith("random") else round(blocks * base["flops"] / whole)
    return {**MASK_FIELDS, "mask_blocks": blocks, "mask_blocks_active": active}


def sweep_rows() -> list[dict]:
    """Slow steps stop at 4096, as a real sweep's do."""
    rows = []
    for step in STEP_SPEEDS:
        for dtype in DTYPES:
            for head_dim in HEAD_DIMS:
                for seqlen in LENGTHS:
                    if step in SLOW_STEPS and seqlen > 4096:
                        continue
                    for mask, density in (("full", 1.0), ("causal", (seqlen + 1) / seqlen / 2)):
                        base = problem(head_dim, seqlen, dtype, mask, density)
                        rows.append(step_row(step, base))
    for head_dim in HEAD_DIMS[:2]:
        for seqlen in (4096, 16384):
            for mask, density in BLOCK_MASKS.items():
                base = problem(head_dim, seqlen, "fp16", mask, density)
                rows.append(step_row("step05", base))
    return rows


def contestants_of(mask: str) -> tuple[dict[str, float], dict[str, tuple[str, float]]]:
    if mask in ("full", "causal"):
        return {step: speed for step, speed in STEP_SPEEDS.items()}, PEER_SPEEDS
    flex = "FlexAttention"
    return {"step05": STEP_SPEEDS["step05"]}, {flex: PEER_SPEEDS[flex]}


def compare_rows() -> list[dict]:
    """All a little faster, so that the two runs can be told apart."""
    rows = []
    for head_dim in HEAD_DIMS:
        for seqlen in LENGTHS[3:]:
            masks = {"full": 1.0, "causal": (seqlen + 1) / seqlen / 2,
                     "window:1024": 0.22, "document:8": 0.07}
            for mask, density in masks.items():
                base = problem(head_dim, seqlen, "fp16", mask, density)
                steps, peers = contestants_of(mask)
                ratios = {step: {f"speed_over_{short}{end}": speed / theirs
                                 for short, theirs in peers.values()
                                 for end in ("", "_p10", "_p90")}
                          for step, speed in steps.items()}
                rows += [{"step": step, **base, "right": None, **timing(base, 1.03 * speed),
                          **ratios[step]} for step, speed in steps.items()]
                rows += [{"peer": peer, **base, "right": None, **timing(base, 1.03 * speed)}
                         for peer, (_, speed) in peers.items()]
    return rows


def write_rows(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_results(directory: Path, gpu: str = "h200") -> Path:
    """plots/results as after one sweep and one comparison."""
    write_rows(directory / gpu / "sweep_0123456789ab.jsonl", sweep_rows())
    write_rows(directory / gpu / "compare_0123456789ab.jsonl", compare_rows())
    return directory
