"""What differs in the environments of two recordings is told, variable by variable and package by package."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from llmtop.analysis.analyze_recording import analyze_recording
from llmtop.compare.compare import compare_reports
from llmtop.environment.collect import as_dict
from llmtop.environment.model import CommandEnvironment, Machine, PythonFacts, Repository
from llmtop.model.snapshot import Host, Snapshot
from llmtop.recording.reader_writer import Writer
from llmtop.report.environment import parse_environment
from llmtop.report.model import Report


def _report(path: Path, *, debug: str, numpy: str, diff: str, command: str = "python x.py") -> Report:
    around = CommandEnvironment(
        collected_at=1.0,
        command=command.split(),
        machine=Machine(host="node", cpu="a CPU", gpus=[{"name": "NVIDIA H100"}], driver="570.1"),
        python=PythonFacts(
            executable="python", version="3.11.7", packages=[f"numpy=={numpy}", "x @ git+https://h/x@1"]
        ),
        git=Repository(commit="9fceb02d0ae5", dirty=True, diff_sha256=diff),
        variables={"NCCL_DEBUG": debug},
    )
    writer = Writer(path, host="node", environment=as_dict(around))
    writer.write(Snapshot(time=1.0, host=Host(name="node")))
    writer.close()
    return analyze_recording(path)


def test_variables_packages_and_changes_are_told_one_by_one(tmp_path: Path) -> None:
    before = _report(tmp_path / "a", debug="INFO", numpy="1.26", diff="a1" * 32)
    after = _report(tmp_path / "b", debug="WARN", numpy="2.0", diff="b2" * 32)
    told = {row.name: (row.before, row.after) for row in compare_reports(before, after).environment}
    assert told.pop("changes to the commit") == ("a1" * 6, "b2" * 6)
    assert told == {"$NCCL_DEBUG": ("INFO", "WARN"), "package numpy": ("1.26", "2.0")}


def test_the_same_environment_differs_in_nothing(tmp_path: Path) -> None:
    same = [_report(tmp_path / name, debug="INFO", numpy="2.0", diff="a1" * 32) for name in "ab"]
    assert compare_reports(*same).environment == ()


def test_changes_of_files_that_store_the_text_alone_are_compared_by_its_hash() -> None:
    text = "diff --git a/x b/x\n+x = 2\n"
    stored: list[dict[str, Any]] = [{"diff": text}, {"diff_sha256": hashlib.sha256(text.encode()).hexdigest()}]
    found = [parse_environment({"machine": {}, "git": git}) for git in stored]
    assert found[0] is not None
    assert found[0].diff
    assert found[0] == found[1]


def test_no_changes_are_none() -> None:
    found = parse_environment({"machine": {}, "git": {"diff_sha256": hashlib.sha256(b"").hexdigest()}})
    assert found is not None
    assert found.diff is None


def test_what_is_no_environment_is_none() -> None:
    for found in (None, {}, {"machine": 3}):
        assert parse_environment(found) is None
    odd = parse_environment(
        {"machine": {"gpus": [3], "container": 1, "cpu_governor": []}, "python": {"packages": [1]}}
    )
    assert odd is not None
    assert odd.gpus == ()
