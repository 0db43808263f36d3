"""The score, for people and as JSON records."""

import json
from pathlib import Path
from typing import TextIO

from tests.mutants.judge import ANSWER, FAILED, FINDING, HANG, SURVIVED, Verdict

LEAST_PERCENT = 99.8
COLUMNS = ("mutants", "not_compiling", "by_finding", "by_answer", "by_failure", "equivalent",
           "survivors")


def record_of(step: str, verdicts: dict[str, Verdict], reasons: dict[str, str]) -> dict:
    """Counts of one step; `survivor_names` and `stale` name mutants to look at."""
    count = {how: sum(v.how == how for v in verdicts.values())
             for how in (FINDING, ANSWER, FAILED, HANG, "not compiling")}
    survivors = [name for name, v in verdicts.items() if v.how == SURVIVED]
    open_ones = [name for name in survivors if name not in reasons]
    return {"step": step, "mutants": len(verdicts), "not_compiling": count["not compiling"],
            "by_finding": count[FINDING], "by_answer": count[ANSWER],
            "by_failure": count[FAILED] + count[HANG],
            "equivalent": len(survivors) - len(open_ones), "survivors": len(open_ones),
            "survivor_names": open_ones,
            "stale": [name for name, v in verdicts.items()
                      if name in reasons and v.how != SURVIVED]}


def score(record: dict) -> float:
    """The percentage caught of the mutants that compile and are not equivalent."""
    caught = record["by_finding"] + record["by_answer"] + record["by_failure"]
    return 100.0 * caught / max(1, caught + record["survivors"])


def write_records(path: Path, records: list[dict], commit: str) -> None:
    keys = ("step", *COLUMNS)
    path.write_text("".join(json.dumps({**{key: record[key] for key in keys},
                                        "percent_caught": round(score(record), 2),
                                        "commit": commit}) + "\n" for record in records))


def report(records: list[dict], out: TextIO) -> int:
    """Prints the table and the survivors; the exit code, 1 if too many survive."""
    total = {key: sum(record[key] for record in records) for key in COLUMNS}
    print("\nstep    " + " ".join(f"{key.replace('_', ' '):>13}" for key in COLUMNS) +
          "    caught", file=out)
    for record in [*records, {"step": "all", **total}]:
        print(f"{record['step']:<8}" + " ".join(f"{record[key]:>13}" for key in COLUMNS) +
              f" {score(record):>7.2f} %", file=out)
    for record in records:
        for name in record["survivor_names"]:
            print(f"survived: {name}", file=out)
        for name in record["stale"]:
            print(f"listed as equivalent, but caught: {name}", file=out)
    stale = any(record["stale"] for record in records)
    return 1 if stale or score(total) < LEAST_PERCENT else 0
