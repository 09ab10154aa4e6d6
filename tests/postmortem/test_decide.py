"""Who failed first, by dumps, logs and what is missing. Real recordings of plants are in test_plants.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llmtop.postmortem.answer.decide import find_culprits
from llmtop.postmortem.model import PostmortemReport
from tests.support.job_files import (
    PEER_LOST,
    TIMED_OUT,
    WORLD,
    call,
    dump,
    traceback_text,
    write_dumps,
    write_error_file,
    write_rank_log,
)

_RANKS = range(4)


def _group(rank: int) -> tuple[str, str]:
    return ("1", "tp0") if rank < 2 else ("2", "tp1")


def _steps(rank: int, steps: int) -> list[dict[str, Any]]:
    """Calls of whole steps: an all-reduce of the world, then one of the rank's half."""
    calls = []
    for step in range(1, steps + 1):
        calls.append(call(step, created=4 * step))
        calls.append(call(step, group=_group(rank), pg_id=1, line=31, created=4 * step + 1))
    return calls


def _members(rank: int) -> dict[tuple[str, str], list[int]]:
    return {WORLD: list(_RANKS), _group(rank): [0, 1] if rank < 2 else [2, 3]}


def _job(last: dict[int, list[dict[str, Any]]]) -> dict[int, dict[str, Any]]:
    return {rank: dump([*_steps(rank, 5), *calls], _members(rank)) for rank, calls in last.items()}


def _named(report: PostmortemReport) -> list[tuple[int, str]]:
    return [(one.rank, one.failure) for one in report.culprits]


def test_the_rank_that_has_not_entered_the_collective(tmp_path: Path) -> None:
    waiting = [call(6, state="started", created=30)]
    report = find_culprits([write_dumps(tmp_path, _job({0: waiting, 1: waiting, 2: [], 3: waiting}))])
    assert _named(report) == [(2, "unknown")]
    assert report.culprits[0].number == 6
    assert report.culprits[0].role == "tp1"
    assert [one.ranks for one in report.waiting] == [(0, 1, 3)]
    assert report.waiting[0].waits_for == (2,)


def test_a_chain_across_groups_leads_to_its_end(tmp_path: Path) -> None:
    done, half = call(6, created=30), {"pg_id": 1, "line": 31, "created": 31}
    far = [done, call(6, group=("2", "tp1"), **half), call(7, state="started", created=40)]
    # Ranks 2 and 3 wait for ranks 0 and 1 in the world; rank 0 waits for rank 1 in its half; rank 1 is elsewhere.
    job = _job({0: [done, call(6, group=("1", "tp0"), state="started", **half)], 1: [done], 2: far, 3: far})
    report = find_culprits([write_dumps(tmp_path, job)])
    assert [one for one, _ in _named(report)] == [1]
    assert [one.ranks for one in report.waiting] == [(0,), (2, 3)]


def test_a_rank_without_a_dump_is_named_where_all_others_wait(tmp_path: Path) -> None:
    waiting = [call(6, state="started", created=30)]
    report = find_culprits([write_dumps(tmp_path, _job({0: waiting, 1: waiting, 2: waiting}))])
    assert _named(report) == [(3, "unknown")]
    assert any("rank 3" in one for one in report.missing)


@pytest.mark.parametrize(
    ("change", "failure"),
    [
        ({"sizes": (5,)}, "shape_or_dtype"),
        ({"dtype": "Double"}, "shape_or_dtype"),
        ({"operation": "broadcast"}, "different_collective"),
    ],
)  # fmt: skip
def test_a_call_with_other_arguments(tmp_path: Path, change: dict[str, Any], failure: str) -> None:
    last = {rank: [call(6, state="started", created=30, **(change if rank == 1 else {}))] for rank in _RANKS}
    report = find_culprits([write_dumps(tmp_path, _job(last))])
    assert _named(report) == [(1, failure)]


def test_of_two_ranks_that_differ_the_one_that_changed_is_named(tmp_path: Path) -> None:
    pair = ("1", "tp0")
    rows = {
        rank: [*_steps(rank, 5), call(6, group=pair, pg_id=1, line=31, state="started", sizes=(4 + rank,))]
        for rank in (0, 1)
    }
    report = find_culprits([write_dumps(tmp_path, {r: dump(rows[r], _members(r)) for r in rows})])
    assert _named(report) == [(1, "shape_or_dtype")]


def test_a_rank_that_leaves_out_a_collective_of_its_group(tmp_path: Path) -> None:
    """The partner of that rank waits for it, and all others wait for the partner: the order of calls decides."""
    done, half = call(6, created=30), {"pg_id": 1, "line": 31}
    waiting = call(7, state="started", created=40)
    job = _job({
        0: [done, call(6, group=("1", "tp0"), state="started", created=31, **half)],
        1: [done, waiting],
        2: [done, call(6, group=("2", "tp1"), created=31, **half), waiting],
        3: [done, call(6, group=("2", "tp1"), created=31, **half), waiting],
    })  # fmt: skip
    report = find_culprits([write_dumps(tmp_path, job)])
    assert _named(report) == [(1, "different_collective")]


def test_a_collective_that_all_entered_has_no_culprit(tmp_path: Path) -> None:
    last = {rank: [call(6, state="started", created=30)] for rank in _RANKS}
    report = find_culprits([write_dumps(tmp_path, _job(last))])
    assert _named(report) == []
    assert report.verdict == "network"
    assert "all_reduce #6" in report.summary


def test_the_first_error_and_not_those_that_follow_from_it(tmp_path: Path) -> None:
    stack = traceback_text("KeyError: 'label'", line=12, code="batch['label']", in_collective=False)
    write_error_file(tmp_path, 3, "KeyError: 'label'", stack, 1_700_000_000)
    for rank in (0, 1, 2):
        lost = traceback_text(PEER_LOST, in_collective=True)
        write_error_file(tmp_path, rank, PEER_LOST, lost, 1_700_000_001)
    report = find_culprits([tmp_path])
    assert _named(report) == [(3, "exception")]
    assert report.culprits[0].line == "train.py:12 in main"


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "out_of_memory"),
        ("MemoryError", "out_of_memory"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "gpu_fault"),
        ("OSError: [Errno 28] No space left on device", "storage"),
        ("RuntimeError: Caught ValueError in DataLoader worker process 0.", "data"),
        ("ValueError: bad label", "exception"),
    ],
)
def test_the_class_of_an_error(tmp_path: Path, error: str, failure: str) -> None:
    prefixed = "".join(f"[rank1]: {line}\n" for line in traceback_text(error, in_collective=False).splitlines())
    (tmp_path / "job.log").write_text(prefixed)
    assert _named(find_culprits([tmp_path])) == [(1, failure)]
    if ": " in error:  # the end of a traceback, as where a log was searched for errors
        (tmp_path / "job.log").write_text("2024-11-20 14:37:16 " + prefixed.splitlines()[-1] + "\nmore\n")
        assert _named(find_culprits([tmp_path])) == [(1, failure)]


def test_only_lost_peers_name_nobody(tmp_path: Path) -> None:
    for rank in (0, 1):
        write_rank_log(tmp_path, rank, traceback_text(PEER_LOST, in_collective=True))
    report = find_culprits([tmp_path])
    assert _named(report) == []
    assert report.verdict == "unknown"
    assert report.missing


@pytest.mark.parametrize(
    ("called", "failure"),
    [
        ("", "stall"),  # a function of the script may do anything, whatever its name
        ('  File "/env/lib/python3.12/pathlib.py", line 1013 in open\n', "storage"),
        ('  File "/env/torch/utils/data/_utils/fetch.py", line 52 in fetch\n', "data"),
    ],
)
def test_stacks_of_all_ranks_show_the_one_that_is_elsewhere(tmp_path: Path, called: str, failure: str) -> None:
    end = '  File "/job/train.py", line 34 in <module>\n'
    head = "Timeout (0:00:10)!\nThread 0x00007f000000000{} (most recent call first):\n"
    own = '  File "/job/train.py", line 7 in read_shard\n'
    wrapped = '  File "/src/llmtop/instrument/arrival/entries.py", line 90 in all_reduce\n'
    inside = f'  File "/env/torch/distributed/distributed_c10d.py", line 3252 in all_reduce\n{wrapped}'
    inside += '  File "/job/train.py", line 30 in main\n'
    elsewhere = own + called if failure == "data" else called + own
    for rank in _RANKS:
        write_rank_log(tmp_path, rank, head.format(rank) + (elsewhere if rank == 2 else inside) + end)
    report = find_culprits([tmp_path])
    assert _named(report) == [(2, failure)]
    assert report.culprits[0].line == "train.py:7 in read_shard"
    assert [one.line for one in report.waiting] == ["train.py:30 in main"]


def test_the_oom_killer_by_pid(tmp_path: Path) -> None:
    (tmp_path / "torchrun.log").write_text(
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-24_15:20:06\n  host      : node7\n"
        "  rank      : 5 (local_rank: 1)\n  exitcode  : -9 (pid: 12030)  (SIGKILL)\n  error_file: <N/A>\n"
        "  traceback : Signal 9 (SIGKILL) received by PID 12030\n====================\n"
    )
    (tmp_path / "dmesg.txt").write_text(
        "[12.3] Memory cgroup out of memory: Killed process 12030 (python) total-vm:1kB\n"
    )
    report = find_culprits([tmp_path])
    assert _named(report) == [(5, "out_of_memory")]
    assert report.culprits[0].host == "node7"


def test_an_xid_by_pid(tmp_path: Path) -> None:
    (tmp_path / "nccl.log").write_text(
        "node7:4242:4300 [3] NCCL INFO comm 0x7f1 rank 11 nRanks 16 cudaDev 3 busId 3b000 - Init COMPLETE\n"
    )
    (tmp_path / "dmesg").write_text(
        "Nov 24 15:20:07 node7 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=4242, name=python, GPU has fallen off\n"
    )
    report = find_culprits([tmp_path])
    assert _named(report) == [(11, "gpu_fault")]
    assert report.ranks == 16


def test_nccl_ras_as_text_and_as_json(tmp_path: Path) -> None:
    (tmp_path / "status.txt").write_text(
        "#0-0 (78db921d1c117b4a) MISMATCH\n  Communicator ranks have different AllReduce operation counts\n"
        "  7 ranks have launched up to operation 64\n"
        "  Rank 7 has launched up to operation 60 -- GPU 3 managed by process 1650386 on node node1\n"
    )
    assert [rank for rank, _ in _named(find_culprits([tmp_path / "status.txt"]))] == [7]
    ranks = [
        {"rank": rank, "host": "node1", "pid": 10 + rank, "collective_counts": {"AllReduce": 40 - (rank == 1)}}
        for rank in range(2)
    ]  # fmt: skip
    (tmp_path / "status.json").write_text(
        json.dumps({"communicators": [{"hash": "0x1", "size": 2, "ranks": ranks}]})
    )
    assert [rank for rank, _ in _named(find_culprits([tmp_path / "status.json"]))] == [1]


def test_a_stopped_rank_ignores_sigterm(tmp_path: Path) -> None:
    for rank in (0, 1, 3):
        write_rank_log(tmp_path, rank, traceback_text(TIMED_OUT, in_collective=True))
    write_rank_log(tmp_path, 2, "step 10\n")
    table = "Failures:\n"
    for rank, code in ((1, "-15 (pid: 21)"), (2, "-9 (pid: 22)"), (3, "-15 (pid: 23)")):
        table += f"[{rank}]:\n  time      : 2026-11-24_15:20:36\n  host      : a\n  rank      : {rank} (local_rank: {rank})\n  exitcode  : {code}\n"  # noqa: E501
    table += "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-24_15:20:06\n  host      : a\n  rank      : 0 (local_rank: 0)\n  exitcode  : 1 (pid: 20)\n=====\n"  # noqa: E501
    (tmp_path / "torchrun.log").write_text("Sending process 22 closing signal SIGTERM\n" + table)
    report = find_culprits([tmp_path])
    assert _named(report) == [(2, "stopped")]


def test_earlier_restarts_are_not_read(tmp_path: Path) -> None:
    old = tmp_path / "none_x1" / "attempt_0" / "1"
    new = tmp_path / "none_x1" / "attempt_1" / "0"
    for place, error in ((old, "ValueError: old"), (new, "ValueError: new")):
        place.mkdir(parents=True)
        (place / "stderr.log").write_text(traceback_text(error, in_collective=False))
    report = find_culprits([tmp_path])
    assert [rank for rank, _ in _named(report)] == [0]
    assert any("restarts" in note for note in report.notes)


def test_a_large_log_is_read_from_both_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmtop.postmortem.log_lines.LARGEST_SHARE", 4096)
    monkeypatch.setattr("llmtop.postmortem.log_lines.LEAST_SHARE", 4096)
    begin = (
        "node7:42:43 [0] NCCL INFO comm 0x7f1 rank 3 nRanks 8 cudaDev 0 nvmlDev 0 busId 3b000 - Init COMPLETE\n"
    )
    end = "[rank3]: " + "\n[rank3]: ".join(traceback_text("ValueError: nan", in_collective=False).splitlines())
    (tmp_path / "all.log").write_text(begin + "loss 2.3 and nothing else\n" * 20_000 + end + "\n")
    report = find_culprits([tmp_path / "all.log"])
    assert _named(report) == [(3, "exception")]
    assert report.ranks == 8
    assert report.culprits[0].host == "node7"
