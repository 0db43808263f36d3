"""Programs that answer as the steps do on a GPU, but at once: for tests of what calls them.

StandIns writes them; `log` has a line for each case that one of them began.
"""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

# Read by the programs at every start, so that a test can change them between two runs.
PROGRAM = '''#!{python} -IS
import json, os, signal, sys, time
name, words = os.path.basename(sys.argv[0]), sys.argv[1:]
act = json.load(open({settings!r}))
origin = dict(commit=act["commits"].get(name, act["commit"]), device=act["device"],
              gpu_uuid=act["gpu_uuid"], driver="580.1", cuda_runtime="13.0",
              date="2026-11-21T14:21:23Z")

def append(path, text):
    with open(path, "a") as file:
        file.write(text)

def solve(number, line, path):
    """One case: a row, and the verdict."""
    append({log!r}, f"{{name}} {{line}}\\n")
    began = len(open({log!r}).readlines())
    options = dict(zip(line.split()[::2], line.split()[1::2]))
    row = origin | dict(step=name, batch=int(options["-b"]), heads=int(options["-H"]),
                        kv_heads=int(options["-H"]), seqlen=int(options["-n"]),
                        seqlen_kv=int(options["-n"]), head_dim=int(options["-d"]),
                        dtype=options["-t"], mask=options["-m"], right=True, samples=10,
                        median_ms=1.0 + began / 1000)
    if name >= "step05":
        row["shared_kv"] = "--shared-kv" in line
    verdict = next((verdict for part, verdict in act["verdicts"].items()
                    if part in f"{{name}} {{line}}"), "right")
    if verdict == "WRONG":
        row["right"] = False
        del row["samples"], row["median_ms"], row["driver"]
    text = json.dumps(row) + "\\n"
    if began == act["dies_at"]:
        append(path, text[:40])
        sweep, waited = os.getppid(), 0
        while os.getppid() == sweep:  # which ends this program too, unless it cannot any more
            # Again if it came just before a read, in which Python does not notice it: a step that
            # goes on would end that by its next line.
            if waited % 500 == 0:
                os.kill(sweep, getattr(signal, act["signal"]))
            waited += 1
            time.sleep(0.01)
        sys.exit()
    if verdict in ("right", "WRONG"):
        append(path, text)
    else:
        print(f"{{cases}}:{{number}}: no room for it", file=sys.stderr)
    print(f"{{cases}}:{{number}}: {{verdict}}: {{line}}", flush=True)
    return ["right", "WRONG", "refused", "failed"].index(verdict)

if act["code"]:
    sys.exit(print(f"{{name}}: {{act['says']}}", file=sys.stderr) or act["code"])
if "--version" in words:
    sys.exit(print(name, origin["commit"]))
path = words[words.index("--json") + 1]
if "--ceilings" in words:
    print(act["ceilings"])
    sys.exit(append(path, json.dumps(origin | dict(ceiling_mma_tflops=646.0)) + "\\n"))
cases = words[words.index("--cases") + 1]
sys.exit(max(solve(number, line.strip(), path) for number, line in enumerate(open(cases), 1)))
'''


@dataclass
class StandIns:
    """step01 to step05 in `directory`/build."""

    directory: Path
    commit: str = "0123456789ab"
    settings: dict = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.build, self.log = self.directory / "build", self.directory / "log"
        self.log.touch()
        self.build.mkdir()
        self.set()
        text = PROGRAM.format(python=sys.executable, log=str(self.log),
                              settings=str(self.directory / "settings"))
        for number in range(1, 6):
            program = self.build / f"step{number:02}"
            program.write_text(text)
            program.chmod(0o755)

    def set(self, **changes: object) -> None:
        """How they behave from now on. `verdicts` maps a part of a case to what becomes of it."""
        usual = {"commit": self.commit, "commits": {}, "device": "NVIDIA H200",
                 "gpu_uuid": "GPU-1", "verdicts": {}, "dies_at": 0, "signal": "SIGKILL",
                 "code": 0, "says": "", "ceilings": "ceilings\nkept in    /cache"}
        (self.directory / "settings").write_text(json.dumps(usual | changes))

    def cases(self) -> list[str]:
        """All that were begun, in order."""
        return self.log.read_text().splitlines()
