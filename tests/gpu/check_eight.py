"""All that needs many GPUs, on as many as there are (2 to 8): python -m tests.gpu.check_eight --out FILE [PART…]

Each PART runs trainings with a rank on every GPU, and what llmtop has beside them:

    monitor   sampling rounds (p95); NVLink rates beside all-reduces of known size; SM activity and power of the
              GPUs that are loaded and of those that are not; the screen's processor time beside nvitop's
    ranks     DDP and FSDP2 with a plant on the last rank, and equal ranks: who is accused, after how many steps
    hang      the last rank never joins the 40th all-reduce: who is named, after how long, and what torch's flight
              recorder and NCCL's RAS count
    capture   llmtop capture of all ranks by torch.profiler, from one step on, and by nsys: windows, pauses, sizes,
              the merged report, the step before and after
    export    llmtop export: its cost, and the training's step with it and without

Appends a JSON object a case to FILE, with `ok` and the seconds that it took, and a small recording of the case to
FILE.recordings.tar. No case is begun for which `--limit` does not leave the time that it usually takes; it is then
written with `left_out`. Exits 1 when a case is not as it should be. `--backend gloo --gpus 2` tries it on the CPU,
with the stand-in for the driver: who is loaded is pretended there, and times mean nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.gpu.eight import CASES, exporting, monitor, whose_fault, windows
from tests.gpu.eight.recordings import Recordings
from tests.gpu.eight.setting import Case, Setting, forget_own_folder

PARTS: dict[str, Callable[[Setting], Iterator[Case]]] = {
    "monitor": monitor.cases,
    "ranks": whose_fault.straggling,
    "hang": whose_fault.hanging,
    "capture": windows.cases,
    "export": exporting.cases,
}
MACHINE_CODE = """
import json, torch
gpus = torch.cuda.device_count()
nccl = ".".join(map(str, torch.cuda.nccl.version())) if gpus else None
print(json.dumps({"gpus": gpus, "torch": torch.__version__, "nccl": nccl,
    "names": [torch.cuda.get_device_name(i) for i in range(gpus)]}))
"""


def options() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default: all, in this order"
    )
    parser.add_argument("--out", type=Path, required=True, help="file to append a JSON object a case to")
    parser.add_argument("--gpus", type=int, help="how many, 2 to 8; default: all that torch sees")
    parser.add_argument("--backend", choices=("nccl", "gloo"), default="nccl")
    parser.add_argument("--limit", type=float, default=540.0, metavar="SECONDS", help="of all together (540)")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name has that in it")
    parser.add_argument("--list", action="store_true", help="print the cases and what they usually take, and end")
    return parser


def machine() -> dict[str, Any]:
    """What torch sees; also the first import of torch, which on a fresh machine takes a minute."""
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", MACHINE_CODE], capture_output=True, text=True, check=False, timeout=3600
    )
    if done.returncode:
        return {"gpus": 0, "error": done.stderr.strip()[-500:]}
    return {**json.loads(done.stdout), "import_seconds": round(time.monotonic() - begun, 1)}


def run(cases: Iterable[Case], ends: float, tell: Callable[[dict[str, Any]], None]) -> Counter[str]:
    """Run those that fit before `ends` (monotonic); returns how many had each verdict of `verdict`.

    Args:
        cases: in order.
        ends: when all must be over.
        tell: takes a row a case.
    """
    found: Counter[str] = Counter()
    for case in cases:
        begun = time.monotonic()
        row: dict[str, Any] = {"part": case.part, "case": case.name}
        left = ends - begun
        if left < case.seconds:
            row |= {"ok": None, "left_out": f"{left:.0f} s are left, it takes {case.seconds:.0f}"}
            found[verdict(row)] += 1
            tell(row)
            continue
        try:
            row |= case.run(left) | {"part": case.part, "case": case.name}
        except Exception as error:  # noqa: BLE001 - one that cannot run must not cost the others their GPU time
            row |= {"ok": False, "error": f"{type(error).__name__}: {error}"[:2000]}
        found[verdict(row)] += 1
        tell(row | {"took_s": round(time.monotonic() - begun, 1)})
    return found


def verdict(row: dict[str, Any]) -> str:
    """Return the word for the result of a case."""
    unknown = "left out" if "left_out" in row else "unclear"
    return {True: "right", False: "WRONG", None: unknown}[row["ok"]]


def line(row: dict[str, Any]) -> str:
    """A row for a person."""
    name = f"{row['part']} {row['case']}"
    words = row.get("left_out") or row.get("error") or row.get("line") or ""
    return f"{name:<34} {verdict(row):<9} {row.get('took_s', 0.0):6.1f} s  {words}".rstrip()


def main() -> int:
    """Run what was asked for."""
    begun = time.monotonic()
    parser = options()
    given = parser.parse_args()
    unknown = set(given.parts) - set(PARTS)
    if unknown:
        parser.error(f"no part is called {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    forget_own_folder()
    seen = machine()
    gpus = given.gpus or (seen["gpus"] if given.backend == "nccl" else 2)
    if not 2 <= gpus <= 8 or (given.backend == "nccl" and gpus > seen["gpus"]):
        parser.error(
            f"2 to 8 GPUs are needed, {gpus} asked for, torch sees {seen['gpus']} {seen.get('error', '')}"
        )

    def tell(row: dict[str, Any]) -> None:
        with given.out.open("a") as file:
            file.write(json.dumps({"gpus": gpus, "backend": given.backend, **row}) + "\n")
        print(line(row), flush=True)

    with tempfile.TemporaryDirectory(prefix="lt-") as folder:
        setting = Setting(gpus, given.backend, Path(folder), Recordings(Path(f"{given.out}.recordings.tar")))
        chosen = [
            case for part in given.parts or PARTS for case in PARTS[part](setting) if given.only in case.name
        ]
        if given.list:
            print("\n".join(f"{case.part} {case.name}: {case.seconds:.0f} s" for case in chosen))
            return 0
        with given.out.open("a") as file:
            file.write(json.dumps({"part": "machine", **seen}) + "\n")
        found = run(chosen, begun + given.limit, tell)
        print(f"{CASES}{', '.join(f'{count} {word}' for word, count in found.items())}", flush=True)
        return 1 if found["WRONG"] else 0


if __name__ == "__main__":
    sys.exit(main())
