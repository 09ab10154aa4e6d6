"""Logs in the forms of launchers, collectors and checkers: which rank a line, an exit code or a GPU belongs to."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmtop.postmortem.answer.decide import find_culprits
from llmtop.postmortem.model import PostmortemReport
from tests.support.job_files import traceback_text

_OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 132.00 MiB."
_TABLE = """torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-06-03_{time}
  host      : node7
  rank      : {rank} (local_rank: 0)
  exitcode  : 1 (pid: {pid})
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""


def _report(folder: Path, **files: str) -> PostmortemReport:
    for name, text in files.items():
        (folder / f"{name}.txt").write_text(text)
    return find_culprits([folder])


def _named(report: PostmortemReport) -> list[tuple[int, str]]:
    return [(one.rank, one.failure) for one in report.culprits]


@pytest.mark.parametrize(
    "time", ["2026-06-03 10:00:01 ", "2026-06-03T10:00:01.123456Z ", "[2026-06-03 10:00:01,5] "]
)
def test_a_collectors_time_before_each_line(tmp_path: Path, time: str) -> None:
    text = traceback_text(_OOM, line=88, in_collective=False)
    lines = "".join(f"{time}[rank3]: {line}\n" for line in text.splitlines())
    report = _report(tmp_path, worker=lines)
    assert _named(report) == [(3, "out_of_memory")]
    assert report.culprits[0].line == "train.py:88 in main"


def test_a_host_before_each_line_and_the_launchers_map_of_ranks(tmp_path: Path) -> None:
    raised = traceback_text("ModuleNotFoundError: No module named 'x'", in_collective=False)
    lines = [f"node2: {line}" for line in raised.splitlines()]
    lines.insert(
        0, "node1: [launch] global_rank_mapping=defaultdict(<class 'list'>, {'node1': [0, 1], 'node2': [2, 3]})"
    )
    lines += [f"node2: ['python', 't.py', '--local_rank={local}'] exits with return code = 1" for local in (1, 0)]
    report = _report(tmp_path, job="\n".join(lines))
    assert _named(report) == [(3, "exception")]
    assert "ModuleNotFoundError" in report.summary


def test_hosts_of_nccls_lines_are_no_prefix_of_a_launcher(tmp_path: Path) -> None:
    lines = [
        f"node{rank // 2}:4{rank}:4{rank} [{rank % 2}] NCCL INFO comm 0xab rank {rank} nranks 4 cudaDev 0 "
        f"nvmlDev {rank % 2} busId {rank + 1}b000 - Init START"
        for rank in range(4)
    ]
    xid = "Jun  3 10:00:00 node1 kernel: NVRM: Xid (PCI:0000:4b:00): 79, GPU has fallen off the bus.\n"
    report = _report(tmp_path, ranks="\n".join(lines), kernel=xid)
    assert _named(report) == [(3, "gpu_fault")]
    assert report.culprits[0].host == "node1"


def test_of_two_launchers_on_a_host_the_earlier_failure_is_the_first(tmp_path: Path) -> None:
    tables = _TABLE.format(time="22:45:52", rank=0, pid=10) + _TABLE.format(time="22:45:01", rank=4, pid=14)
    assert _named(_report(tmp_path, job=f"{traceback_text(_OOM, in_collective=False)}{tables}")) == [
        (4, "out_of_memory")
    ]


def test_an_error_without_a_rank_is_not_given_to_the_first_failure_beside_another_error(tmp_path: Path) -> None:
    errors = traceback_text(_OOM, in_collective=False) + traceback_text("ValueError: bad", in_collective=False)
    report = _report(tmp_path, job=errors + _TABLE.format(time="22:45:52", rank=2, pid=10))
    assert _named(report) == [(2, "exception")]
    assert "no file has a whole traceback" in report.culprits[0].summary


def test_a_segmentation_fault_in_a_collective_that_the_launcher_saw_first(tmp_path: Path) -> None:
    stack = (
        "Fatal Python error: Segmentation fault\n\nThread 0x000014844b65d740 (most recent call first):\n"
        '  File "/env/torch/distributed/distributed_c10d.py", line 3938 in barrier\n'
        '  File "/job/train.py", line 11 in main\n'
        "E0909 14:03:50.0 225 torch/elastic/api.py:833] failed (exitcode: -11) local_rank: 0 (pid: 77) of\n"
    )
    text = "".join(f"0: {line}\n" for line in stack.splitlines())
    assert _named(_report(tmp_path, job=text)) == [(0, "killed")]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("missing ranks: {3}\n", (3, "unknown")),
        ("error msg: Culprit rank 22; Error type: SIZE_OR_SYNTAX_MISMATCH\n", (22, "shape_or_dtype")),
        ("error msg: Culprit rank 2; Error type: COLLECTIVE_TYPE_MISMATCH\n", (2, "different_collective")),
        ("Unexpected result nan on rank 3 at iteration #3 invocation #2\n", (3, "exception")),
        (
            "[E ProcessGroupNCCL.cpp:916] [Rank 1] NCCL watchdog thread terminated with exception: CUDA error: "
            "uncorrectable ECC error encountered\n",
            (1, "gpu_fault"),
        ),
    ],
)  # fmt: skip
def test_a_rank_that_a_checker_names(tmp_path: Path, text: str, named: tuple[int, str]) -> None:
    assert _named(_report(tmp_path, job=f"world size: 32\n{text}")) == [named]


def test_a_gpu_that_the_driver_lost_without_an_xid_and_without_a_rank(tmp_path: Path) -> None:
    text = (
        "[ 1843.3] NVRM: The NVIDIA GPU 0000:b3:00.0\n               NVRM: (PCI ID: 10de:26b5) in this has\n"
        "               NVRM: fallen off the bus and is not responding to commands.\n"
    )
    report = _report(tmp_path, dmesg=text)
    assert (report.culprits, report.verdict) == ((), "gpu_fault")
    assert "0000:b3:00.0" in report.summary


def test_the_number_of_a_job_in_a_lone_name_is_no_rank(tmp_path: Path) -> None:
    text = "line 28:  8156 Killed   python3\nslurmstepd: error: Detected 1 oom-kill event(s) in StepId=191.batch\n"
    (tmp_path / "error_191.err").write_text(text)
    report = find_culprits([tmp_path])
    assert (report.ranks, report.verdict) == (None, "out_of_memory")


def test_the_process_that_mpirun_names(tmp_path: Path) -> None:
    killed = "mpirun noticed that process rank 7 with PID 0 on node n3 exited on signal 9 (Killed).\n"
    assert _named(_report(tmp_path, job=killed)) == [(7, "killed")]
    (tmp_path / "b").mkdir()
    exited = "The first process to do so was:\n\n  Process name: [[29973,1],2]\n  Exit code:    1\n"
    assert _named(_report(tmp_path / "b", job=exited)) == [(2, "exception")]


def test_an_abort_beside_a_watchdogs_timeout_names_nobody(tmp_path: Path) -> None:
    text = (
        "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=ALLGATHER)\n"
        "terminate called after throwing an instance of 'std::runtime_error'\n"
        "  what():  [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=ALLGATHER)\n"
        "failed (exitcode: -6) local_rank: 0 (pid: 95313) of binary: python\n"
    )
    assert _named(_report(tmp_path, job=text)) == []


def test_the_first_failure_is_the_rank_that_met_the_error_of_a_peer(tmp_path: Path) -> None:
    """The launcher's first failure is the first that gave up, and no line of its traceback names its rank."""
    error = "RuntimeError: Rank 1 successfully reached monitoredBarrier, but received errors while waiting"
    text = traceback_text(f"{error} for send/recv from rank 0.", in_collective=True) + _TABLE.format(
        time="1", rank=1, pid=9
    )
    report = _report(tmp_path, job=text)
    assert 1 not in [rank for rank, _ in _named(report)]
