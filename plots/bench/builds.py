"""Compares two builds of the steps for slowdowns, in interleaved runs.

Usage: python3 -m plots.bench.builds OLD NEW

OLD and NEW are folders with libstepNN.so of two commits (`make libraries BACKEND=cuda`); NEW also
has the programs, because one of them writes the block masks. Prints new time / old time, the median
of the rounds, of every step that is in both. Exits with 1 if a ratio is over 1.01.
"""

import random
import statistics
import sys
from dataclasses import replace
from pathlib import Path

from plots.bench.cases import Case
from plots.bench.contestants import Inputs, Mask, Outputs, StepCall, saved_masks
from plots.bench.device import Device, StepLibrary
from plots.bench.turns import Stopwatch, Times

ROUNDS, WARM_UPS = 21, 2
ALLOWED = 1.01
QUERIES, WIDTH = 16384, 1024
CASES = [
    Case(n, d, mask, "fp16", QUERIES // n, WIDTH // d)
    for n in (1024, 4096, 16384)
    for d in (64, 128, 256)
    for mask in ("full", "causal")
]


def new_over_old(stopwatch: Stopwatch, old: StepCall, new: StepCall, rounds: int) -> float:
    """New time / old time, the median of the rounds. Each round runs both in random order."""
    times, draw = {old: Times(), new: Times()}, random.Random(1)
    for turn in range(-WARM_UPS, rounds):
        for call in draw.sample([old, new], 2):
            times[call][turn] = stopwatch.time_ms(call)
    return statistics.median(times[new][turn] / times[old][turn] for turn in range(rounds))


def compare(
    old: Path, new: Path, cases: list[Case], rounds: int = ROUNDS, **stopwatch: object
) -> dict[tuple[str, str], float]:
    """Returns new time / old time by step and case; prints a line for each case."""
    names = sorted(path.name for path in old.glob("libstep*.so") if (new / path.name).exists())
    pairs = [tuple(StepLibrary((folder / name).resolve()) for folder in (old, new)) for name in names]
    pairs = [pair for pair in pairs if not pair[1].is_backward]
    device, found = Device(StepLibrary((new / names[0]).resolve())), {}
    clock = Stopwatch(device, **stopwatch)
    wanted = {(case.mask, case.seqlen) for case in cases}
    masked = [pair[1].name for pair in pairs if pair[1].takes_block_masks]
    with saved_masks(new / masked[0] if masked else new, wanted if masked else set()) as folders:
        for case in cases:
            outputs, told = Outputs(device, case), []
            for pair in pairs:
                mask = Mask(device, folders[case.mask, case.seqlen], case) if pair[1].takes_block_masks else None
                dtype = "e4m3" if pair[1].takes_e4m3 else case.dtype
                inputs = Inputs(device, replace(case, dtype=dtype))
                calls = [StepCall(step, inputs, outputs, mask) for step in pair]
                ratio = new_over_old(clock, *calls, rounds)
                found[pair[1].name, str(case)] = ratio
                told.append(f"{pair[1].name} {ratio:.4f}")
            print(f"{case}: {', '.join(told)}", flush=True)
    return found


def main() -> int:
    found = compare(Path(sys.argv[1]), Path(sys.argv[2]), CASES)
    for step in dict.fromkeys(step for step, _ in found):
        ratios = {case: ratio for (name, case), ratio in found.items() if name == step}
        worst = max(ratios, key=ratios.get)
        print(
            f"{step}: new over old, median of all cases "
            f"{statistics.median(ratios.values()):.4f}, worst {ratios[worst]:.4f} ({worst})"
        )
    return 1 if max(found.values()) > ALLOWED else 0


if __name__ == "__main__":
    sys.exit(main())
