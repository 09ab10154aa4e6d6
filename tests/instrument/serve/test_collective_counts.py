"""What a process tells of its collectives: by one name a group, whether it waits in one or not."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest

from llmtop.instrument.serve import collectives

ENTRY = {
    "pg_id": 0,
    "process_group": ["0", "default_pg"],
    "collective_seq_id": 78,
    "profiling_name": "nccl:all_reduce",
    "is_p2p": False,
}


@pytest.mark.parametrize("completed", [78, 77])
def test_a_rank_that_waits_nowhere_names_the_group_as_the_others_do(
    completed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL's recorder has no entry under way in a rank that has called nothing, and entries hold the name."""

    def dump(includeCollectives: bool, onlyActive: bool = False) -> bytes:
        status = {"0": {"last_enqueued_collective": "78", "last_completed_collective": str(completed)}}
        active = completed < 78 or not onlyActive
        return json.dumps(
            {"pg_status": status, "entries": [ENTRY] if includeCollectives and active else []}
        ).encode()

    module = SimpleNamespace(_dump_nccl_trace_json=dump)
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", module)
    monkeypatch.setattr(collectives, "is_quiet", lambda recorder: True)
    monkeypatch.setattr(collectives, "COUNTS_LOOK_S", 0.0)
    watched = collectives.CollectiveWatch()
    assert watched.pending_message(None) is None  # type: ignore[arg-type]
    news = watched.pending_message(None)  # type: ignore[arg-type]
    assert news is not None
    assert [(one.group, one.enqueued, one.completed) for one in news.counts] == [("0 default_pg", 78, completed)]
