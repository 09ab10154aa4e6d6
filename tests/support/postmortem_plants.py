"""Compare `llmtop postmortem` with planted faults whose culprit is known (tests/data/postmortem_plants).

python -m tests.support.postmortem_plants [COMMAND…]
python -m tests.support.postmortem_plants --unpack FOLDER
python -m tests.support.postmortem_plants --record FAULT FOLDER [--neutral]

The first form runs a command on each case and prints a table. An argument FOLDER is replaced by the case's
folder; without one the folder is added. The default is `python -m llmtop postmortem FOLDER --json`. Its
JSON has `culprits`, the most likely first, each with `rank` and `class`. Recordings and truths (truth.json)
were made without that command.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.postmortem_cases import ARCHIVE, DATA
from tests.support.postmortem_recording import record
from tests.support.processes import REPOSITORY, environment

UNKNOWN_EXIT = 3
"""The documented exit code for "undecidable"."""
_COMMAND = (sys.executable, "-m", "llmtop", "postmortem", "FOLDER", "--json")
_SECONDS = 120


@dataclass(frozen=True)
class Verdict:
    """What a command named in one case, beside the truth."""

    rank: str
    """`right`, `wrong`, `unknown` or `failed` (no JSON): the first culprit's rank."""
    is_class_right: bool
    innocents: tuple[int, ...]
    """Named as culprits at any place, and none."""
    named: str
    """The first culprit as the command named it."""


def truths() -> dict[str, dict[str, Any]]:
    """Return the truth of each case by id: right `ranks` and `classes`, and what the evidence can decide."""
    found: dict[str, dict[str, Any]] = json.loads((DATA / "truth.json").read_text())
    return found


def unpack(folder: Path) -> Iterator[tuple[str, Path]]:
    """Unpack all cases into a folder, and yield the id and the folder of each."""
    for archive in (ARCHIVE, *sorted(DATA.glob("by_hand.tar.xz"))):
        with tarfile.open(archive) as packed:
            packed.extractall(folder)
    for path in sorted(folder.iterdir()):
        yield path.name, path


def _plain(name: object) -> str:
    return str(name).lower().replace("_", " ").replace("-", " ").strip()


def judge(output: str, code: int, truth: dict[str, Any]) -> Verdict:
    """Return the verdict on a command's JSON and exit code."""
    try:
        culprits = json.loads(output).get("culprits") or []
    except (ValueError, AttributeError):
        return Verdict("unknown" if code == UNKNOWN_EXIT else "failed", False, (), f"exit code {code}")
    if code == UNKNOWN_EXIT or not culprits:
        return Verdict("unknown", False, (), "")
    first = culprits[0]
    ranks = [one.get("rank") for one in culprits]
    is_class_right = _plain(first.get("class")) in {_plain(one) for one in truth["classes"]}
    return Verdict(
        "right" if first.get("rank") in truth["ranks"] else "wrong",
        is_class_right,
        tuple(sorted({rank for rank in ranks if isinstance(rank, int)} - set(truth["ranks"]))),
        f"rank {first.get('rank')}: {first.get('class')}",
    )


def _run(command: Sequence[str], folder: Path) -> tuple[str, int]:
    words = [str(folder) if one == "FOLDER" else one for one in command]
    if "FOLDER" not in command:
        words.append(str(folder))
    try:
        done = subprocess.run(
            words, cwd=REPOSITORY, env=environment(), capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return "", -1
    return done.stdout, done.returncode


def compare(command: Sequence[str] = _COMMAND) -> dict[str, Verdict]:
    """Run a command on each case, print a line for each and the sums, and return the verdicts by case."""
    verdicts = {}
    print(f"{'case':<6}{'fault':<14}{'evidence':<17}{'verdict':<9}{'class':<7}{'truth':<38}named")
    with tempfile.TemporaryDirectory(prefix="pm-") as scratch:
        cases = dict(unpack(Path(scratch)))
        for case, truth in truths().items():
            one = verdicts[case] = judge(*_run(command, cases[case]), truth)
            right = f"rank {truth['ranks'][0]}: {truth['classes'][0]}"
            note = f" innocent: {list(one.innocents)}" if one.innocents else ""
            note += "" if truth["is_rank_decidable"] else " (the evidence cannot decide it)"
            print(
                f"{case:<6}{truth['fault']:<14}{truth['evidence']:<17}{one.rank:<9}"
                f"{'right' if one.is_class_right else '-':<7}{right:<38}{one.named}{note}",
                flush=True,
            )
    for name, is_by_hand in (("recorded", False), ("by hand", True)):
        chosen = {case: one for case, one in verdicts.items() if ("is_by_hand" in truths()[case]) is is_by_hand}
        if chosen:
            counts = Counter(one.rank for one in chosen.values())
            print(
                f"{name}: {len(chosen)} cases, right {counts['right']}, wrong {counts['wrong']}, "
                f"unknown {counts['unknown']}, failed {counts['failed']}, "
                f"innocent named {sum(bool(one.innocents) for one in chosen.values())}, "
                f"class right {sum(one.is_class_right and one.rank == 'right' for one in chosen.values())}; the "
                f"evidence decides the rank in {sum(truths()[case]['is_rank_decidable'] for case in chosen)}, "
                f"the class in {sum(truths()[case]['is_class_decidable'] for case in chosen)}"
            )
    return verdicts


def main(arguments: list[str]) -> None:
    """Run what the arguments ask for."""
    if arguments[:1] == ["--record"]:
        record(arguments[1], Path(arguments[2]), is_neutral="--neutral" in arguments)
    elif arguments[:1] == ["--unpack"]:
        for _, folder in unpack(Path(arguments[1])):
            print(folder)
    else:
        compare(arguments or _COMMAND)


if __name__ == "__main__":
    main(sys.argv[1:])
