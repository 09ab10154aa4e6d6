"""Files of a job that died or hangs: dumps of the flight recorder in the form of each version, logs, tables."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

WORLD = ("0", "default_pg")


def call(
    seq: int,
    operation: str = "all_reduce",
    *,
    group: tuple[str, str] = WORLD,
    pg_id: int = 0,
    sizes: tuple[int, ...] = (4,),
    dtype: str = "Float",
    state: str = "completed",
    line: int = 30,
    created: int = 0,
) -> dict[str, Any]:
    """One entry of a dump, as version 2.4 and later have it."""
    return {
        "record_id": created,
        "pg_id": pg_id,
        "process_group": group,
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "profiling_name": f"nccl:{operation}",
        "time_created_ns": 1_700_000_000_000_000_000 + created * 1_000_000,
        "input_sizes": [list(sizes)],
        "input_dtypes": [dtype],
        "output_sizes": [list(sizes)],
        "output_dtypes": [dtype],
        "state": state,
        "retired": state == "completed",
        "timeout_ms": 600_000,
        "is_p2p": False,
        "frames": [
            {"name": operation, "filename": "/env/torch/distributed/distributed_c10d.py", "line": 3245},
            {"name": "main", "filename": "/job/train.py", "line": line},
        ],
    }


def dump(
    entries: list[dict[str, Any]], ranks: dict[tuple[str, str], list[int]], version: str = "2.4"
) -> dict[str, Any]:
    """A whole dump; `ranks` are the global ranks of each group."""
    config = {name: {"name": name, "desc": text, "ranks": str(members)} for (name, text), members in ranks.items()}
    status: dict[str, dict[str, int]] = {}
    for entry in entries:
        known = status.setdefault(
            str(entry["pg_id"]), {"last_enqueued_collective": -1, "last_completed_collective": -1}
        )
        known["last_enqueued_collective"] = entry["collective_seq_id"]
        if entry["state"] == "completed":
            known["last_completed_collective"] = entry["collective_seq_id"]
    return {"version": version, "pg_config": config, "pg_status": status, "entries": entries}


def write_dumps(folder: Path, dumps: dict[int, dict[str, Any]]) -> Path:
    """Write dumps as torch names them."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, data in dumps.items():
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(data, protocol=2))
    return folder


def write_rank_log(folder: Path, rank: int, text: str) -> None:
    """Write the standard error of a rank where torchrun's --log-dir has it."""
    place = folder / "none_x1" / "attempt_0" / str(rank)
    place.mkdir(parents=True, exist_ok=True)
    (place / "stderr.log").write_text(text)


def write_error_file(folder: Path, rank: int, message: str, stack: str, seconds: int) -> None:
    """Write torchrun's error file of a rank."""
    place = folder / "none_x1" / "attempt_0" / str(rank)
    place.mkdir(parents=True, exist_ok=True)
    extra = {"py_callstack": stack, "timestamp": str(seconds)}
    (place / "error.json").write_text(json.dumps({"message": {"message": message, "extraInfo": extra}}))


PEER_LOST = "RuntimeError: [/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:35205."
TIMED_OUT = "RuntimeError: [/x/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 12000ms for recv"


def traceback_text(error: str, *, line: int = 30, code: str = "dist.all_reduce(t)", in_collective: bool) -> str:
    """A traceback that ends in the script, or in a collective that the script called."""
    text = f'Traceback (most recent call last):\n  File "/job/train.py", line {line}, in main\n    {code}\n'
    if in_collective:
        text += '  File "/env/torch/distributed/distributed_c10d.py", line 3252, in all_reduce\n    work.wait()\n'
    return f"{text}{error}\n"
