"""Facts of single lines: NCCL's watchdog, the kernel, SLURM, torchrun, steps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from llmtop.hardware.gpu_errors import xid_text
from llmtop.postmortem.error_kinds import is_network, is_storage
from llmtop.postmortem.evidence import Mark, MarkKind, Place

_MARK_CHARACTERS = 300

_WORTH: Final = re.compile(
    r"Watchdog|last enqueued|joined|monitoredBarrier|NVRM|Out of memory|out of memory|oom|segfault|"
    r"traps:|blocked for more|not responding|I/O error|EXT4-fs|XFS|LustreError|slurmstepd|srun: |DUE TO|"
    r"NCCL (?:INFO|WARN)|shutdown process|closing signal|mlx|NET/|unreachable|"
    r"No route|Errno|launched up to|considered dead|missing rank|[Mm]anag(?:ed|ing)|Killed|No space|Stale|"
    r"DataLoader worker|exitcode|global_rank_mapping|Culprit rank|missing ranks|Unexpected result|"
    r"\bpid\b|watchdog thread|entire process|[Ll]ink [Dd]own|Link DOWN|link is down|Input/output",
)
"""A line without any of these words holds no mark but a step or the number of ranks."""
_COUNTS: Final = re.compile(r"[Ss]tep|[Ii]ter|STEP|ITER|[Ww]orld|WORLD|[Rr]ank")
_LONGEST = 1500
"""Characters of a line that are searched."""

_KERNEL_HOST = re.compile(
    r"^(?:<\d+>)?(?:[A-Z][a-z]{2} +\d+ [\d:]{8}|\d{4}-\d\d-\d\dT\S+) ([\w.-]{1,100}) kernel:"
)
_STEP = re.compile(
    r"(?:^|[\s\[(,;|{\"'])(?:global[_ ]?)?(?:step|iter(?:ation)?)\b[\"']?\s*[:=#]?\s*(\d{1,9})\b(?!\s*(?:ms|s\b))",
    re.I,
)
_STATUS = re.compile(
    r"\[PG (?:ID )?(?P<id>\d+)(?: PG GUID (?P<guid>[^ (]*)(?:\((?P<text>[^)]*)\))?)?(?: \((?P<old>[^)]*)\))? "
    r"Rank (?P<rank>\d+)\].{0,300}?last enqueued(?: NCCL)? work: (?P<number>\d+), "
    r"last completed(?: NCCL)? work: (?P<second>-?\d+)"
)
_WATCHDOG = re.compile(
    r"(?:\[PG (?:ID )?(?P<id>\d+)(?: PG GUID (?P<guid>[^ (]*)(?:\((?P<text>[^)]*)\))?)? Rank \d+\].{0,200}?)?"
    r"\[Rank (?P<rank>\d+)\] Watchdog caught collective operation timeout: "
    r"Work\w+\(SeqNum=(?P<number>\d+), OpType=(?P<op>\w+)"
)
_RANK_LIST = r"\[?(?P<ranks>\d+(?:, ?\d+){0,200})\]?"
_JOINED = re.compile(rf"- {_RANK_LIST} joined but didn't finish collective #(?P<number>\d+)")
_NOT_JOINED = re.compile(rf"- {_RANK_LIST} finished collective #\d+, but didn't join collective #(?P<number>\d+)")
_BARRIER_PEER = re.compile(
    r"successfully reached monitoredBarrier, but received errors .{0,60}from rank (?P<ranks>\d+)"
)
_BARRIER = re.compile(r"Ranks? (?P<ranks>\d+(?:, ?\d+){0,200}) failed to pass monitoredBarrier")
_NCCL = re.compile(
    r"^(?P<host>[\w.-]{1,100}):(?P<pid>\d{1,10}):\d+ \[(?P<gpu>\d+)\] (?:\S{1,80}:\d+ )?"
    r"NCCL (?:INFO|WARN) (?P<rest>.*)"
)
_PID = re.compile(r"(?<![\w-])[Rr]ank[=:]? ?(?P<rank>\d{1,6})\b.{0,80}?\bpid[=:]? ?(?P<pid>\d{1,10})\b")
_HOST_RANKS = re.compile(r"'([\w.-]{1,100})': \[(\d{1,6})((?:, \d{1,6}){0,1023})\]")
_GPU_ERROR = re.compile(
    r"\[Rank (?P<rank>\d+)\].{0,60}watchdog thread terminated with exception: (?P<text>CUDA error: .{1,120})"
)
_ANALYZER_CULPRIT = re.compile(r"Culprit rank (?P<rank>\d+); Error type: (?P<text>\w+)")
_ANALYZER_MISSING = re.compile(r"missing ranks: \{(?P<ranks>\d+(?:, ?\d+){0,500})\}")
"""Output of torch's own analyzer of dumps, fr_trace."""
_RERUN = re.compile(r"Unexpected result (?P<text>\S{1,40} on rank (?P<rank>\d+) at iteration .{1,200})")
"""Megatron's check of losses and gradients."""
_NAMED_GPU = re.compile(
    r"NVRM: (?:The NVIDIA )?GPU (?:at )?(?:PCI:)?(?P<gpu>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F.]{2,4})"
)
_ABORTED = re.compile(r"watchdog thread terminated with exception|taking the entire process down")
_LINK = re.compile(
    r"(?:mlx5_core|bnxt_en|irdma|ib_core|bond\d).{0,120}(?:[Ll]ink (?:DOWN|down|Down)|link is down)"
)
_NCCL_RANK = re.compile(
    r"comm 0x[0-9a-f]+ rank (?P<rank>\d+) n[rR]anks (?P<world>\d+) cudaDev (?P<gpu>\d+)"
    r"(?:(?: nvmlDev \d+)? busId (?P<pci>[0-9a-f]{1,16}))?"
)
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?(?P<gpu>[0-9a-fA-F:.]+)\): (?P<number>\d+)(?:, pid=['\"<]?(?P<pid>\d+))?")
_OOM_KILL = re.compile(r"[Oo]ut of memory(?: \([^)]*\))?: Kill(?:ed)? process (?P<pid>\d+)")
_OOM_LINE = re.compile(r"oom-kill:constraint=.{0,400}?,pid=(?P<pid>\d+)")
_SEGFAULT = re.compile(r"(?:^|[\s:])\S{1,40}\[(?P<pid>\d+)\]:? (?:segfault at|general protection|trap )")
_BLOCKED = re.compile(r"task (?P<text>\S{1,40}):(?P<pid>\d+) blocked for more than (?P<number>\d+) seconds")
_KERNEL_KINDS: tuple[tuple[re.Pattern[str], MarkKind], ...] = (
    (_OOM_KILL, "oom_kill"),
    (_OOM_LINE, "oom_kill"),
    (_SEGFAULT, "segfault"),
    (_LINK, "link_down"),
    (_BLOCKED, "blocked_task"),
)
_SRUN = re.compile(r"srun: error: (?P<host>[\w.-]+): tasks? (?P<ranks>[\d,\- ]{1,400}): (?P<text>.{1,80})")
_NODE_FAILED = re.compile(
    r"(?:Node failure on|DUE TO NODE FAILURE.{0,20}|node) (?P<host>[\w.-]+)(?: .{0,20}not responding)?"
)
_CANCELLED = re.compile(r"\*\*\* (?:JOB|STEP) \S+ ON (?P<host>\S+) CANCELLED AT \S+(?: DUE TO (?P<text>[A-Z ]+))?")
_SLURM_OOM = re.compile(r"slurmstepd: error: Detected \d+ oom[_-]kill event")
_UNABLE = re.compile(r"Unable to shutdown process (?P<pid>\d+) via")
_WORLD = re.compile(
    r"(?<![\w-])(?:world[_ ]?size\b[\"']?\s*[:=]?\s*|rank[=: ]?\s?\d{1,6}\s?(?:/|of)\s?)(?P<number>\d{1,6})\b",
    re.I,
)
_RAS_BEHIND = re.compile(r"^\s*Rank (?P<rank>\d+) has launched up to operation (?P<number>\d+)(?P<rest>.*)")
_RAS_COUNT = re.compile(r"^\s*(?P<count>\d+) ranks have launched up to operation (?P<number>\d+)")
_RAS_PLACE = re.compile(r"GPU (?P<gpu>\d+) managed by process (?P<pid>\d+) on node (?P<host>\S+)")
_RAS_RANK = re.compile(
    r"^\s*Rank (?P<rank>\d+) -- GPU (?P<gpu>\d+) managed by process (?P<pid>\d+) on node (?P<host>\S+)"
)
_RAS_MISSING = re.compile(r"missing ranks?: (?P<ranks>\d+(?:, ?\d+){0,500})")
_RAS_DEAD = re.compile(r"^\s*Process (?P<pid>\d+) on node (?P<host>\S+) managing GPUs? (?P<gpu>[\d, ]+)")
_FINGERPRINT = re.compile(
    r"Rank (?P<rank>\d+) is running collective: CollectiveFingerPrint\(SequenceNumber=(?P<number>\d+), "
    r"OpType=(?P<operation>\w+)(?:, TensorShape=\[(?P<shape>[\d, ]*)\])?(?:, TensorDtypes=(?P<dtype>\w+))?"
)
_STORAGE_LINE = re.compile(
    r"nfs: server \S+ not responding|I/O error, dev|blk_update_request: I/O error|EXT4-fs error|"
    r"XFS \S+: .{0,60}error|LustreError"
)
_LINK_DOWN = re.compile(r"NET/IB : .{0,80}(?:error|Got completion)|NCCL WARN Call to connect")


def marks_of(text: str, place: Place, rank: int | None) -> Iterator[Mark]:
    """Yield the facts of one line.

    Args:
        text: the line without its prefix.
        place: where it stands.
        rank: that its prefix or its file names.
    """
    text = text[:_LONGEST]
    if _WORTH.search(text):
        for find in _FINDERS:
            found = find(text, place, rank)
            if found:
                yield from found
                return
    if not _COUNTS.search(text):
        return
    if (step := _STEP.search(text)) is not None:
        yield Mark("step", place, rank=rank, number=int(step[1]))
    if (world := _WORLD.search(text)) is not None:
        yield Mark("world", place, number=int(world["number"]))


def _ranks(text: str) -> list[int]:
    found: list[int] = []
    for part in text.replace(" ", "").split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            end = int(last) if last.isdigit() else int(first)
            found += range(int(first), min(end, int(first) + 4096) + 1)
    return found


def _of_torch(text: str, place: Place, rank: int | None) -> list[Mark]:
    if (found := _WATCHDOG.search(text)) is not None:
        group = found["text"] or found["guid"] or found["id"] or ""
        who = rank if rank is not None else int(found["rank"])
        return [Mark("watchdog", place, found["op"].lower(), who, group=group, number=int(found["number"]))]
    if (found := _STATUS.search(text)) is not None:
        group = found["text"] or found["old"] or found["guid"] or found["id"]
        who = rank if rank is not None else int(found["rank"])
        counts = int(found["number"]), int(found["second"])
        return [Mark("work_status", place, rank=who, group=group, number=counts[0], second=counts[1])]
    kinds: tuple[tuple[re.Pattern[str], MarkKind], ...] = (
        (_JOINED, "joined"), (_NOT_JOINED, "not_joined"), (_BARRIER, "not_joined"),
        (_ANALYZER_MISSING, "not_joined"), (_BARRIER_PEER, "not_joined"),
    )  # fmt: skip
    for pattern, kind in kinds:
        if (found := pattern.search(text)) is not None:
            number = int(found["number"]) if "number" in pattern.groupindex else 0
            return [
                Mark(kind, place, text[:_MARK_CHARACTERS], one, number=number) for one in _ranks(found["ranks"])
            ]
    if rank is not None and _ABORTED.search(text):
        return [Mark("aborted", place, text[:_MARK_CHARACTERS], rank)]
    if (found := _UNABLE.search(text)) is not None:
        return [Mark("launcher_kill", place, text[:_MARK_CHARACTERS], pid=int(found["pid"]))]
    return []


def _of_named(text: str, place: Place, rank: int | None) -> list[Mark]:
    """Return a rank that a checker in the training or torch's analyzer of dumps names."""
    if (found := _GPU_ERROR.search(text)) is not None:
        return [Mark("gpu_error", place, found["text"], rank if rank is not None else int(found["rank"]))]
    if (found := _RERUN.search(text)) is not None:
        return [Mark("named_rank", place, found["text"], int(found["rank"]))]
    return [
        Mark("named_rank", place, f"fr_trace: {one['text']}", int(one["rank"]))
        for one in _ANALYZER_CULPRIT.finditer(text)
    ]


def _of_process(text: str, place: Place, rank: int | None) -> list[Mark]:
    if "global_rank_mapping" in text:
        hosts = [(one[1], int(one[2]), one[3].count(",") + 1) for one in _HOST_RANKS.finditer(text)]
        marks = [Mark("host_ranks", place, host=host, number=count, second=first) for host, first, count in hosts]
        return [*marks, Mark("world", place, number=sum(count for _, _, count in hosts))]
    if (found := _PID.search(text)) is not None:
        return [Mark("process", place, rank=int(found["rank"]), pid=int(found["pid"]))]
    return []


def _of_nccl(text: str, place: Place, rank: int | None) -> list[Mark]:
    found = _NCCL.match(text)
    marks: list[Mark] = []
    if found is not None:
        named = _NCCL_RANK.search(found["rest"])
        if named is not None:
            marks.append(
                Mark(
                    "process",
                    place,
                    rank=int(named["rank"]),
                    pid=int(found["pid"]),
                    host=found["host"],
                    gpu=named["gpu"],
                    pci=named["pci"] or "",
                    number=int(named["world"]),
                )
            )
    if _LINK_DOWN.search(text) or is_network(text):
        host = found["host"] if found is not None else ""
        marks.append(
            Mark("network", place, text[:_MARK_CHARACTERS], rank, int(found["pid"]) if found else None, host)
        )
    return marks


def _of_kernel(text: str, place: Place, rank: int | None) -> list[Mark]:
    named = _KERNEL_HOST.match(text)
    host = named[1] if named is not None else ""
    if (found := _XID.search(text)) is not None:
        number = int(found["number"])
        pid = int(found["pid"]) if found["pid"] else None
        return [Mark("xid", place, xid_text(number), rank, pid, host, found["gpu"], number=number)]
    for pattern, kind in _KERNEL_KINDS:
        if (found := pattern.search(text)) is not None:
            pid = int(found["pid"]) if "pid" in pattern.groupindex else None
            return [Mark(kind, place, text[-_MARK_CHARACTERS:], rank, pid, host)]
    if _STORAGE_LINE.search(text) or ("Errno" not in text and is_storage(text) and "Error" not in text):
        return [Mark("storage", place, text[-_MARK_CHARACTERS:], rank, host=host)]
    return []


def _of_slurm(text: str, place: Place, rank: int | None) -> list[Mark]:
    if _SLURM_OOM.search(text):
        return [Mark("oom_kill", place, text[:_MARK_CHARACTERS], rank)]
    if (found := _CANCELLED.search(text)) is not None:
        reason = (found["text"] or "by a user").strip().lower()
        kind: MarkKind = "node_failed" if "node" in reason else "slurm_cancelled"
        return [Mark(kind, place, reason, host=found["host"])]
    if "Node failure" in text and (found := _NODE_FAILED.search(text)) is not None:
        return [Mark("node_failed", place, text[:_MARK_CHARACTERS], host=found["host"])]
    return []


def _of_ras(text: str, place: Place, rank: int | None) -> list[Mark]:
    if (found := _RAS_BEHIND.match(text)) is not None:
        at = _RAS_PLACE.search(found["rest"])
        pid, host, gpu = (int(at["pid"]), at["host"], at["gpu"]) if at else (None, "", "")
        number = int(found["number"])
        return [Mark("ras_behind", place, text.strip(), int(found["rank"]), pid, host, gpu, number=number)]
    if (found := _RAS_RANK.match(text)) is not None:
        who = int(found["rank"]), int(found["pid"]), found["host"], found["gpu"]
        return [Mark("ras_behind", place, text.strip(), *who)]
    if (found := _RAS_MISSING.search(text)) is not None:
        return [Mark("ras_dead", place, text.strip(), one) for one in _ranks(found["ranks"])]
    if (found := _RAS_DEAD.match(text)) is not None:
        return [Mark("ras_dead", place, text.strip(), None, int(found["pid"]), found["host"], found["gpu"])]
    return []


_FINDERS: tuple[Callable[[str, Place, int | None], list[Mark]], ...] = (
    _of_named, _of_torch, _of_process, _of_kernel, _of_nccl, _of_slurm, _of_ras
)  # fmt: skip


class LostGpu:
    """A GPU that the driver has lost, where the kernel log has no Xid: the driver writes it over some lines."""

    def __init__(self) -> None:
        self._named: tuple[str, int] = ("", 0)

    def add(self, text: str, place: Place) -> Mark | None:
        """Take a line; a mark like that of Xid 79 where it completes such a message."""
        if "NVRM" not in text:
            return None
        if (found := _NAMED_GPU.search(text)) is not None:
            self._named = found["gpu"], place.line
        gpu, line = self._named
        if not gpu or "fallen off the bus" not in text or "Xid" in text or place.line - line > 3:
            return None
        named = _KERNEL_HOST.match(text)
        host = named[1] if named is not None else ""
        return Mark("xid", place, xid_text(79), host=host, gpu=gpu, number=79)


class Fingerprint(NamedTuple):
    """A collective as torch's debug mode names it when ranks differ."""

    rank: int
    number: int
    operation: str
    shape: str
    dtype: str


def fingerprints(text: str) -> list[Fingerprint]:
    """Return the collectives that an error of TORCH_DISTRIBUTED_DEBUG=DETAIL names, with their ranks."""
    return [
        Fingerprint(
            int(one["rank"]),
            int(one["number"]),
            one["operation"].lower(),
            (one["shape"] or "").replace(" ", ""),
            one["dtype"] or "",
        )
        for one in _FINGERPRINT.finditer(text)
    ]


def srun_ends(text: str) -> tuple[list[int], str, str] | None:
    """Return the tasks, the host and the reason of a line of srun ("node03: task 5: Killed")."""
    found = _SRUN.search(text)
    return None if found is None else (_ranks(found["ranks"]), found["host"], found["text"].strip())
