"""Packs the data of the timeline: pack.py DATA.json prints a script, which unpacks it again.

The names of the fields would be most of it. So each kind of event is listed once, with its fields, and an event is the
number of its kind and the values of the fields. An event that waits for nothing begins in its own column.
"""

import json
import sys
from pathlib import Path

UNPACK = """for (const problem of TIMELINE.steps.flatMap(({ problems }) => problems)) {
  problem.events = problem.events.map(([kind, ...values]) => {
    const [op, ...fields] = TIMELINE.kinds[kind];
    const event = Object.fromEntries(fields.map((field, i) => [field, values[i]]));
    return { op, from: event.at, ...event };
  });
}"""


def packed(event: dict, kinds: dict[tuple[str, ...], int]) -> list:
    values = {name: value for name, value in event.items() if name != "op"}
    if values.get("from") == values.get("at"):
        values.pop("from", None)
    return [kinds.setdefault((event["op"], *values), len(kinds)), *values.values()]


if __name__ == "__main__":
    data, kinds = json.loads(Path(sys.argv[1]).read_text()), {}
    for step in data["steps"]:
        for problem in step["problems"]:
            problem["events"] = [packed(event, kinds) for event in problem["events"]]
    data["kinds"] = list(kinds)
    print("const TIMELINE = ", json.dumps(data, ensure_ascii=False, separators=(",", ":")), ";", sep="")
    print(UNPACK)
