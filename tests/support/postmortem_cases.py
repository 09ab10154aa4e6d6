"""Turn recordings of planted faults into cases: four kinds of evidence of each, under neutral names.

python -m tests.support.postmortem_cases RECORDINGS

It writes the archive of tests/data/postmortem_plants. RECORDINGS has a folder per fault, made by
`python -m tests.support.postmortem_plants --record FAULT FOLDER --neutral`.
"""

from __future__ import annotations

import io
import random
import re
import socket
import sys
import tarfile
from pathlib import Path

from tests.support.postmortem_faults import FAULTS, Fault
from tests.support.postmortem_recording import NODES, RANKS
from tests.support.processes import REPOSITORY

DATA = REPOSITORY / "tests" / "data" / "postmortem_plants"
ARCHIVE = DATA / "cases.tar.xz"
EVIDENCE = ("all", "dumps", "logs", "without_culprit")
_SEED = 2026
_DUMPS = ("nccl_trace_rank_", "comm_lib_trace_rank_", "trace_", "fr-", "dumps/rank")
_LOGS = ("logs", "torchrun", "output", "elastic")
_LAUNCHERS = ("slurm-{number}.{node}.out", "launch.{node}.log", "{node}.txt", "run-{number}-{node}.log")
_STACKS = ("pyspy.{name}.txt", "stacks/{name}.txt", "{name}.stack", "py-spy-dump-{name}.log")


def case_ids() -> dict[tuple[str, str], str]:
    """Return the folder name of each case, by fault and kind of evidence: digits without a meaning."""
    numbers = random.Random(_SEED).sample(range(1000, 10000), len(FAULTS) * len(EVIDENCE))
    return {(fault, evidence): str(numbers.pop()) for fault in sorted(FAULTS) for evidence in EVIDENCE}


def _is_of_culprit(name: str, fault: Fault) -> bool:
    """Return whether a file of a recording is the culprit's own."""
    per_node = RANKS // fault.nodes
    node, local = NODES[fault.rank // per_node], fault.rank % per_node
    own = rf"dumps/{fault.rank}(\.json)?|stacks/{fault.rank}\.txt|torchrun/{node}/[^/]+/attempt_\d/{local}/.*" + (
        rf"|(launcher|ps)\.{node}\..*" if fault.nodes > 1 else ""
    )
    return re.fullmatch(own, name) is not None


def _is_kept(name: str, evidence: str, fault: Fault) -> bool:
    if evidence == "dumps":
        return name.startswith("dumps/")
    if evidence == "logs":
        return name.startswith(("torchrun/", "launcher."))
    return evidence == "all" or not _is_of_culprit(name, fault)


def _without_lines(text: bytes, name: str, fault: Fault, pid: str) -> bytes:
    """Return a file of several ranks without the lines that the culprit wrote or that are of its process."""
    if name.startswith("launcher."):
        return re.sub(rb"(?m)^\[default%d\]:.*\n" % fault.rank, b"", text)
    if name.startswith("ps."):
        return re.sub(rb"(?m)^ *%s .*\n" % pid.encode(), b"", text)
    return text


def _neutral(content: bytes) -> bytes:
    """Replace the one path of this machine that py-spy reads from the kernel, and check that no other is there."""
    if not content.startswith(b"\x80"):
        content = content.replace(str(Path(sys.base_prefix)).encode(), b"/opt/python3.11")
    for place in (str(REPOSITORY), str(Path.home()), "/tmp/", socket.gethostname()):
        if re.search(rb"(?<![\w/])%s(?!\w)" % re.escape(place.rstrip("/").encode()), content):
            raise SystemExit(f"{place} is in {content[:80]!r}")
    return content


class CaseNames:
    """The names of a case's files: drawn for each case, so that they carry no hint."""

    def __init__(self, case: str, pids: dict[int, str]) -> None:
        """Args:
        case: the case's id.
        pids: of the ranks that wrote their pid into their logs; else their stacks are named by rank.
        """
        draw = random.Random(f"{_SEED} {case}")
        self.pids = pids
        self.dumps, self.logs = draw.choice(_DUMPS), draw.choice(_LOGS)
        self.launchers, self.stacks = draw.choice(_LAUNCHERS), draw.choice(_STACKS)
        self.number = draw.randrange(10**5, 10**6)
        self.run = "".join(draw.choices("abcdefghijkmnpqrstuvwxyz_", k=8))

    def name(self, recorded: str) -> str:
        """Return the name in the case of a file of the recording."""
        kind, _, rest = recorded.partition("/")
        if kind == "dumps":
            return self.dumps + rest
        if kind == "torchrun":
            node, _, *path = rest.split("/")
            return "/".join((self.logs, node, f"none_{self.run}", *path))
        if kind == "stacks":
            rank = int(rest.removesuffix(".txt"))
            return self.stacks.format(name=self.pids.get(rank, f"rank{rank}"))
        node = recorded.split(".")[1]
        if kind.startswith("launcher."):
            return self.launchers.format(number=self.number, node=node)
        return f"ps-{node}.txt"


def case_files(recording: Path, fault_name: str, evidence: str, case: str) -> dict[str, bytes]:
    """Return the files of a case by their names in it.

    Args:
        recording: folder of one fault.
        fault_name: of `FAULTS`.
        evidence: of `EVIDENCE`.
        case: the case's id, from which names are drawn.
    """
    fault = FAULTS[fault_name]
    stacks = {int(path.stem): path.read_text().split()[1].rstrip(":") for path in recording.glob("stacks/*.txt")}
    has_pids = fault.script == "run_trainer.py" and evidence != "without_culprit"
    names = CaseNames(case, stacks if has_pids else {})
    found = {}
    for path in sorted(recording.rglob("*")):
        name = path.relative_to(recording).as_posix()
        if path.is_file() and _is_kept(name, evidence, fault):
            content = _neutral(path.read_bytes())
            if evidence == "without_culprit":
                content = _without_lines(content, name, fault, stacks.get(fault.rank, "-"))
            found[names.name(name)] = content
    return found


def pack(recordings: Path) -> None:
    """Write the archive: all cases sorted by id, times and owners zero."""
    with tarfile.open(ARCHIVE, "w:xz", preset=9) as archive:
        for (fault, evidence), case in sorted(case_ids().items(), key=lambda one: one[1]):
            for name, content in sorted(case_files(recordings / fault, fault, evidence, case).items()):
                member = tarfile.TarInfo(f"{case}/{name}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    print(f"{ARCHIVE.name}: {ARCHIVE.stat().st_size} bytes")


if __name__ == "__main__":
    pack(Path(sys.argv[1]))
