"""Read pickles of PyTorch's flight recorder, in a process of its own, one line of JSON a file.

A pickle is a program. This process resolves no class and no function, and it ends by the kernel's limits on memory
and CPU time if a file asks for more than a dump does.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import resource
import signal
import stat
import sys
from typing import Any

from llmtop.memory.pickle_memo import check_memo

LARGEST_BYTES = 128 << 20
"""2,000 entries with stacks take 1 to 4 MB; TORCH_FR_BUFFER_SIZE is seldom above 20,000."""
_MEMORY_BYTES = 1 << 30
_CPU_SECONDS = 0.6
_CPU_SECONDS_PER_MIB = 0.1
_MOST_CPU_SECONDS = 1.2
"""A dump of 2,000 entries takes 0.05 s, one of 20,000 with stacks a second."""
_NEWEST_CALLS = 20_000
"""The newest entries of a dump."""
_MOST_FRAMES = 48
_TEXT_CHARACTERS = 300


class _PlainData(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str) -> Any:
        raise pickle.UnpicklingError(f"it asks for {module_name}.{global_name}")


def load(path: str) -> Any:
    """Return the plain data of a pickle.

    Raises:
        ValueError: it is empty, too large, or no file.
        pickle.UnpicklingError: it is damaged, or asks for a class or a function.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is no regular file")
        if status.st_size == 0:
            raise ValueError("it is empty")
        if status.st_size > LARGEST_BYTES:
            raise ValueError(f"it has {status.st_size >> 20} MiB, and the limit is {LARGEST_BYTES >> 20} MiB")
        data = file.read(LARGEST_BYTES + 1)
        check_memo(data)
        file.seek(0)
        return _PlainData(file).load()


def _text(value: Any) -> str:
    return value[:_TEXT_CHARACTERS] if isinstance(value, str) else ""


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 62 else None


def _sizes(value: Any) -> list[list[int]]:
    if not isinstance(value, list | tuple):
        return []
    return [
        [size for size in one[:16] if _whole(size) is not None]
        for one in value[:64]
        if isinstance(one, list | tuple)
    ]


def _texts(value: Any) -> list[str]:
    return [_text(one) for one in value[:64]] if isinstance(value, list | tuple) else []


def _frames(value: Any) -> list[list[Any]]:
    if not isinstance(value, list | tuple):
        return []
    return [
        [_text(one.get("name")), _text(one.get("filename")), _whole(one.get("line")) or 0]
        for one in value[:_MOST_FRAMES]
        if isinstance(one, dict)
    ]


def call_of(entry: dict[str, Any], completed: dict[str, int]) -> dict[str, Any] | None:
    """Return one entry as `CollectiveCall` has it; None where it has no number.

    Args:
        entry: of the pickle or of the JSON dump, of version 2.0 or later.
        completed: number of the last completed collective by process group, as `pg_status` has it.
    """
    group = entry.get("process_group")
    name, text = (group[0], group[1]) if isinstance(group, list | tuple) and len(group) == 2 else ("0", "")
    is_p2p = bool(entry.get("is_p2p"))
    seq = _whole(entry.get("p2p_seq_id") if is_p2p else entry.get("collective_seq_id", entry.get("seq_id")))
    if seq is None:
        return None
    profiled = _text(entry.get("profiling_name"))
    state = _text(entry.get("state"))
    created = _whole(entry.get("time_created_ns"))
    last = completed.get(str(entry.get("pg_id")))
    is_counted = not is_p2p and last is not None and last >= 0 and seq <= last
    return {
        "group": str(name)[:_TEXT_CHARACTERS],
        "group_text": _text(text),
        "seq": seq,
        "operation": profiled.partition(":")[2] or profiled,
        "input_sizes": _sizes(entry.get("input_sizes")),
        "output_sizes": _sizes(entry.get("output_sizes")),
        "input_dtypes": _texts(entry.get("input_dtypes")),
        "is_done": state == "completed" or entry.get("retired") is True or is_counted,
        "is_certain": state == "completed",
        "is_p2p": is_p2p,
        "frames": _frames(entry.get("frames")),
        "time": None if not created else created / 1e9,
        "thread": _thread(entry.get("thread_id")),
    }


def _thread(value: Any) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError):
        return 0
    return number if 0 < number < 1 << 62 else 0


def _ranks(value: Any) -> list[int]:
    """Return the ranks of `pg_config`: a list as text ("[0, 1]"), or a list."""
    if isinstance(value, str):
        value = [int(one) for one in value.strip("[] ")[: 1 << 20].split(",") if one.strip().isdigit()]
    return [one for one in value if _whole(one) is not None][: 1 << 20] if isinstance(value, list | tuple) else []


def dump_of(data: Any) -> dict[str, Any]:
    """Return the plain data of a dump as `FlightDump` has it.

    Raises:
        ValueError: it is no dump of a flight recorder.
    """
    if isinstance(data, list) and any(isinstance(one, dict) for one in data):  # before version 2.0
        data = {"entries": data, "version": "1.0"}
    if not isinstance(data, dict):
        raise ValueError("it is no dump of a flight recorder")
    if isinstance(data.get("segments"), list):
        return {"memory": _memory_of(data)}
    if not isinstance(data.get("entries", data.get("pg_status")), list | dict):
        raise ValueError("it has no entries of a flight recorder")
    entries, status = _list_or_empty(data.get("entries")), _dict_or_empty(data.get("pg_status"))
    completed = {
        str(name): last
        for name, one in list(status.items())[:4096]
        if isinstance(one, dict) and (last := _whole(one.get("last_completed_collective"))) is not None
    }
    rows = [entry for entry in entries[-_NEWEST_CALLS:] if isinstance(entry, dict)]
    calls = [call for entry in rows if (call := call_of(entry, completed)) is not None]
    rank = _whole(data.get("rank"))
    return {
        "version": _text(data.get("version")),
        "host": _text(data.get("host_name")),
        "rank": rank,
        "groups": _groups(data, status, rows),
        "calls": calls,
        "left_out": max(0, len(entries) - _NEWEST_CALLS),
    }


def _list_or_empty(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _dict_or_empty(value: Any) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}


def _groups(data: dict[str, Any], status: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Groups by name: `pg_config` has members by name, `pg_status` counts by number, the entries have both."""
    names: dict[str, tuple[str, str]] = {}
    for entry in rows:
        group = entry.get("process_group")
        if isinstance(group, list | tuple) and len(group) == 2:
            names[str(entry.get("pg_id"))] = (str(group[0])[:_TEXT_CHARACTERS], _text(group[1]))
    found: dict[str, dict[str, Any]] = {}
    for name, one in list(_dict_or_empty(data.get("pg_config")).items())[:4096]:
        if isinstance(one, dict) and (ranks := _ranks(one.get("ranks"))):
            found[str(one.get("name") or name)[:_TEXT_CHARACTERS]] = {
                "text": _text(one.get("desc")),
                "ranks": ranks,
            }
    for number, one in list(status.items())[:4096]:
        if not isinstance(one, dict):
            continue
        name, text = names.get(str(number), (str(number), ""))
        group_of = found.setdefault(name, {"text": text, "ranks": []})
        group_of["enqueued"] = _count_or_none(one.get("last_enqueued_collective"))
        group_of["completed"] = _count_or_none(one.get("last_completed_collective"))
    return found


def _count_or_none(value: Any) -> int | None:
    number = _whole(value)
    return None if number is None or number < 0 else number


def _memory_of(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the failed allocations of an allocator snapshot, oldest first."""
    found = []
    traces = data.get("device_traces")
    for device, trace in enumerate(traces[:64] if isinstance(traces, list) else []):
        for event in trace if isinstance(trace, list) else []:
            if isinstance(event, dict) and event.get("action") == "oom":
                size, free = _whole(event.get("size")), _whole(event.get("device_free"))
                row = {"device": device, "bytes": size, "free": free, "frames": _frames(event.get("frames"))}
                found.append(row)
    return found[-16:]


def _answer(path: str) -> dict[str, Any]:
    try:
        return dump_of(load(path))
    except MemoryError:
        return {"error": "it asks for more memory than a dump needs"}
    except OSError as error:
        return {"error": f"it cannot be read: {error.strerror}"}
    except RecursionError:
        return {"error": "it is nested too deep"}
    except (
        pickle.UnpicklingError,
        EOFError,
        AttributeError,
        IndexError,
        KeyError,
        TypeError,
        ValueError,
    ) as error:
        return {
            "error": f"it is damaged, cut or no dump ({str(error)[:_TEXT_CHARACTERS] or type(error).__name__})"
        }
    except OverflowError:
        return {"error": "a number in it is too large"}


def main(paths: list[str]) -> None:
    """Print one line of JSON for each file."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for path in paths:
        seconds = _CPU_SECONDS
        with contextlib.suppress(OSError):
            seconds = _CPU_SECONDS + _CPU_SECONDS_PER_MIB * os.stat(path).st_size / (1 << 20)
        signal.setitimer(signal.ITIMER_PROF, min(seconds, _MOST_CPU_SECONDS))
        text = json.dumps(_answer(path))
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
