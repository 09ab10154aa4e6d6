"""JSON files: torchrun's error files, replies of NCCL RAS, dumps of the flight recorder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmtop.postmortem.error_kinds import error_kind
from llmtop.postmortem.evidence import Evidence, FlightDump, Mark, Place, PythonError
from llmtop.postmortem.flight_dumps import dump_of_json
from llmtop.postmortem.log_lines import LogLine
from llmtop.postmortem.python_output import PythonOutput

_MOST_RANKS = 100_000


def read_json(data: Any, name: str, rank: int | None, evidence: Evidence) -> str:
    """Add the content of decoded JSON to the evidence.

    Args:
        data: the decoded file.
        name: of the file, as it is shown.
        rank: that its path names.
        evidence: what is added to.

    Returns:
        The kind of the file; "" where it is of no kind that is known.
    """
    if isinstance(data, list) and data and isinstance(data[0], dict) and "profiling_name" in data[0]:
        data = {"entries": data, "version": "1.0"}
    if not isinstance(data, dict):
        return ""
    for kind, read in _KINDS:
        if read(data, name, rank, evidence):
            return kind
    return ""


def _read_dump(data: dict[str, Any], name: str, rank: int | None, evidence: Evidence) -> bool:
    dump = dump_of_json(data)
    if dump is None:
        return False
    add_dump(dump, name, rank, evidence)
    return True


def add_dump(dump: FlightDump, name: str, rank: int | None, evidence: Evidence) -> None:
    """Add a dump of the flight recorder, with the rank that it has itself or that its path names."""
    dump.file = name
    if dump.rank is None:
        dump.rank = rank
    evidence.dumps.append(dump)


def _read_error_file(data: dict[str, Any], name: str, rank: int | None, evidence: Evidence) -> bool:
    message = data.get("message")
    if isinstance(message, str):
        message = {"message": message}
    if not isinstance(message, dict) or not isinstance(message.get("message"), str):
        return False
    extra = message.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    output = PythonOutput(name)
    stack = extra.get("py_callstack")
    for number, text in enumerate(stack.splitlines()[:2000] if isinstance(stack, str) else [], 1):
        output.add(LogLine(text[:4000], number, rank, None), None)
    kind, _, rest = message["message"].partition(": ")
    is_named = kind.replace(".", "").isidentifier()
    error_name, text = (kind, rest) if is_named else ("Error", message["message"])
    raised = output.errors[-1] if output.errors else PythonError(Place(name), error_name, text[:2000], rank)
    raised.place, raised.kind = Place(name), error_kind(error_name, text)
    raised.name, raised.message = error_name.rpartition(".")[2], text[:3000]
    raised.rank = rank
    try:
        raised.time = float(extra["timestamp"])
    except (KeyError, TypeError, ValueError):
        raised.time = None
    evidence.errors.append(raised)
    return True


def _read_ras(data: dict[str, Any], name: str, _rank: int | None, evidence: Evidence) -> bool:
    communicators = data.get("communicators")
    if not isinstance(communicators, list):
        return False
    rows = [one for one in communicators if isinstance(one, dict)]
    largest = max((len(_list_or_empty(one.get("ranks"))) for one in rows), default=0)
    for one in rows[:1000]:
        ranks = [row for row in _list_or_empty(one.get("ranks"))[:_MOST_RANKS] if isinstance(row, dict)]
        is_world = len(ranks) == largest
        for row in _list_or_empty(one.get("missing_ranks"))[:_MOST_RANKS]:
            if isinstance(row, dict):
                evidence.marks.append(_ras_mark("ras_dead", row, name, "does not reply to NCCL RAS", is_world))
        most: dict[str, int] = {}
        for row in ranks:
            for operation, count in _counts(row).items():
                most[operation] = max(count, most.get(operation, 0))
        for row in ranks:
            evidence.marks.append(_ras_mark("process", row, name, "", is_world))
            for operation, count in most.items():
                own = _counts(row).get(operation, 0)
                if own < count:
                    text = f"launched {own} {operation}, others {count}"
                    evidence.marks.append(_ras_mark("ras_behind", row, name, text, is_world))
    return True


def _list_or_empty(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _counts(row: dict[str, Any]) -> dict[str, int]:
    counts = row.get("collective_counts")
    found = counts.items() if isinstance(counts, dict) else ()
    return {str(name): count for name, count in found if isinstance(count, int)}


def _ras_mark(kind: Any, row: dict[str, Any], name: str, text: str, is_world: bool) -> Mark:
    """Return a mark of one rank of a communicator; a rank of a smaller communicator is known by its pid alone."""
    rank, pid = row.get("rank"), row.get("pid")
    return Mark(
        kind,
        Place(name),
        text,
        rank if is_world and isinstance(rank, int) else None,
        pid if isinstance(pid, int) else None,
        str(row.get("host", ""))[:100],
        str(row.get("cuda_dev", ""))[:20],
    )


_KINDS: tuple[tuple[str, Callable[[dict[str, Any], str, int | None, Evidence], bool]], ...] = (
    ("flight recorder", _read_dump),
    ("error file", _read_error_file),
    ("NCCL RAS", _read_ras),
)
