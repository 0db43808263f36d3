"""The score of a step's mutants, of whose survivors a person judges a random sample.

judged/stepNN.jsonl has a line for each survivor of the sample: its name, a verdict ("equivalent" or
"missed") and the reason in a sentence. A verdict is empty until someone has written it.
"""

import hashlib
import json
from collections import Counter
from itertools import zip_longest
from math import comb
from pathlib import Path
from typing import TextIO

from tests.mutants.judge import ANSWER, FAILED, FINDING, SURVIVED, Verdict

SAMPLE = 50  # survivors of a step that are judged
LEAST_PERCENT = 99.0
TAIL = 0.025  # at each end of a 95 % interval
COLUMNS = ("mutants", "not_compiling", "by_finding", "by_answer", "by_failure", "survivors", "judged", "missed")
JUDGED = Path(__file__).with_name("judged")


def in_random_order(names: list[str], seed: str = "1") -> list[str]:
    """Samples are its first names. If a mutant comes or goes, the others keep their order, so that
    most of a sample and its judgements remain."""
    return sorted(names, key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest())


def read_judged(step: str) -> dict[str, dict]:
    path = JUDGED / f"{step}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return {record["mutant"]: record for record in map(json.loads, lines)}


def write_judged(step: str, survivors: list[str]) -> None:
    """Names the sample; known verdicts remain, others are for a person to write."""
    known, sample = read_judged(step), in_random_order(survivors)[:SAMPLE]
    JUDGED.mkdir(exist_ok=True)
    (JUDGED / f"{step}.jsonl").write_text(
        "".join(json.dumps(known.get(name, {"mutant": name, "verdict": "", "reason": ""})) + "\n" for name in sample)
    )


def possible(found: int, sample: int, population: int) -> tuple[int, int]:
    """The fewest and the most of a population that may have a property which `found` of a random
    `sample` have: Clopper and Pearson's 95 % interval, with the hypergeometric distribution."""

    def at_most(count: int, having: int) -> float:
        return sum(comb(having, i) * comb(population - having, sample - i) for i in range(count + 1)) / comb(
            population, sample
        )

    fit = [
        having
        for having in range(found, population - sample + found + 1)
        if at_most(found, having) > TAIL and at_most(found - 1, having) < 1 - TAIL
    ]
    return fit[0], fit[-1]


def record_of(step: str, verdicts: dict[str, Verdict], judged: dict[str, dict], of: int) -> dict:
    """Counts and score of one step, which has `of` mutants. The score is the percentage caught of
    the mutants that compile and are not equivalent; None as long as the sample is not judged."""
    count = Counter(verdict.how for verdict in verdicts.values())
    survivors = in_random_order([name for name, v in verdicts.items() if v.how == SURVIVED])
    sample = [judged.get(name, {}).get("verdict") or SURVIVED for name in survivors[:SAMPLE]]
    missed, caught = sample.count("missed"), count[FINDING] + count[ANSWER] + count[FAILED]
    record = {
        "step": step,
        "mutants": len(verdicts),
        "not_compiling": count["not compiling"],
        "by_finding": count[FINDING],
        "by_answer": count[ANSWER],
        "by_failure": count[FAILED],
        "survivors": len(survivors),
        "judged": len(sample) - sample.count(SURVIVED),
        "missed": missed,
        "percent": None,
        "least_percent": None,
        "most_percent": None,
        "names": dict(zip_longest(survivors, sample, fillvalue=SURVIVED)),
    }

    def percent(of_tried: int, end: int) -> float:
        """If so many of those tried are missed; `end` is that of the interval for all mutants."""
        real = caught + of_tried
        whole = max(1, round(real * of / len(verdicts)))
        return round(100 - 100 * possible(of_tried, real, whole)[end] / whole, 2)

    if SURVIVED not in sample and caught > 0:
        fewest, most = possible(missed, len(sample), len(survivors))
        likely = missed * len(survivors) / max(1, len(sample))
        record |= {
            "percent": round(100 * caught / (caught + likely), 2),
            "least_percent": percent(most, 1),
            "most_percent": percent(fewest, 0),
        }
    return record


def write_records(path: Path, records: list[dict], commit: str) -> None:
    path.write_text(
        "".join(
            json.dumps({key: value for key, value in record.items() if key != "names"} | {"commit": commit}) + "\n"
            for record in records
        )
    )


def report(records: list[dict], out: TextIO) -> int:
    """Prints the table and the survivors that are not equivalent; the exit code, 1 if the score of
    a step is too low or unknown."""
    print(
        "\nstep    " + " ".join(f"{key.replace('_', ' '):>13}" for key in COLUMNS) + "    score (95 % interval)",
        file=out,
    )
    for record in records:
        score = (
            "not judged"
            if record["percent"] is None
            else "{percent:.2f} % ({least_percent:.2f} to {most_percent:.2f} %)".format_map(record)
        )
        print(f"{record['step']:<8}" + " ".join(f"{record[key]:>13}" for key in COLUMNS) + f"    {score}", file=out)
    for record in records:
        for name, verdict in record["names"].items():
            if verdict != "equivalent":
                print(f"{verdict}: {name}", file=out)
    return int(any((record["percent"] or 0) < LEAST_PERCENT for record in records))
