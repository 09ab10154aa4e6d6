"""Exit codes that torchrun knows, kept beside the files of its ranks: they are what this test sees itself."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from llmtop.instrument.run_log.torchrun_exits import keep_exits
from llmtop.postmortem.answer.decide import find_culprits
from llmtop.runs import store
from llmtop.runs.report import report_of
from tests.support.preloaded import llmtop
from tests.support.processes import environment, wait_for

_SCRIPT = """
import sys, time, llmtop
for _ in range(1000):
    with llmtop.step():
        time.sleep(0.05)
    open(sys.argv[1], "a").write(".")
"""


class _Failed(Exception):
    """Stand-in for ChildFailedError: importing torch takes seconds."""

    def __init__(self, failures: dict[int, SimpleNamespace], first: int) -> None:
        self.failures = failures
        self._first = first

    def get_first_failure(self) -> tuple[int, SimpleNamespace]:
        """Return it as torch does."""
        return self._first, self.failures[self._first]


@pytest.mark.slow("one rank stands for both; each starts two trainings", kept=("1",))
@pytest.mark.parametrize("victim", [0, 1])
def test_the_exit_codes_name_the_first_of_two_that_wrote_no_end(
    tmp_path: Path, victim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, done = tmp_path / "runs", [tmp_path / f"done{rank}" for rank in range(2)]
    env = {"LLMTOP_RUN_LOG": "1", "LLMTOP_RUNS": str(runs), "LLMTOP_RUN_NAME": "plant", "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen([sys.executable, "-c", _SCRIPT, str(done[rank])], env=environment(**env, RANK=str(rank)))
        for rank in range(2)
    ]
    wait_for(lambda: all(one.exists() and one.stat().st_size > 25 for one in done))
    ranks[victim].send_signal(signal.SIGKILL)
    ranks[1 - victim].send_signal(signal.SIGTERM)
    codes = [process.wait(240) for process in ranks]
    assert find_culprits([runs]).culprits == ()
    monkeypatch.setenv("LLMTOP_RUNS", str(runs))
    failures = {rank: SimpleNamespace(pid=ranks[rank].pid, exitcode=codes[rank]) for rank in range(2)}
    keep_exits(_Failed(failures, victim))
    report = find_culprits([runs])
    assert [(one.rank, one.failure, one.confidence) for one in report.culprits] == [(victim, "killed", "high")]
    assert report.victims == (1 - victim,)
    assert "SIGKILL" in report.summary
    (run,) = store.list_runs(runs)
    assert report_of(run).attempts[-1].signal == f"SIGKILL of rank {victim}"
    for command in (("runs",), ("runs", "show")):
        shown = llmtop(*command, env=environment(LLMTOP_RUNS=str(runs)))
        assert f"killed by SIGKILL of rank {victim}" in " ".join(shown.stdout.split())
    assert llmtop("runs", "delete", run.id, env=environment(LLMTOP_RUNS=str(runs))).returncode == 0
    assert not run.folder.exists()


def test_ranks_of_another_torchrun_get_no_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = tmp_path / "runs"
    (runs / "train.py-7-00000000").mkdir(parents=True)
    name = "1.1795790341930.20409.4c76a947"
    (runs / "train.py-7-00000000" / f"{name}.run").write_bytes(b"")
    monkeypatch.setenv("LLMTOP_RUNS", str(runs))
    for pid, rank in ((20408, 1), (20409, 0)):
        keep_exits(_Failed({rank: SimpleNamespace(pid=pid, exitcode=-9)}, rank))
        assert [one.name for one in runs.glob("*/*")] == [f"{name}.run"]
    keep_exits(_Failed({1: SimpleNamespace(pid=20409, exitcode=-9)}, 1))
    assert (runs / "train.py-7-00000000" / f"{name}.exit").exists()
