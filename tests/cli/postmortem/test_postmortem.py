"""`llmtop postmortem` as a command: exit codes, JSON alone on standard output, one sentence for unusable input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from llmtop.__main__ import main
from tests.support.job_files import PEER_LOST, traceback_text, write_rank_log


class _Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., _Done]


@pytest.fixture
def llmtop(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> _Done:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        return _Done(int(ended.value.code or 0), *capsys.readouterr())

    return run


def test_a_culprit_is_exit_0_and_json_alone(tmp_path: Path, llmtop: Run) -> None:
    write_rank_log(tmp_path, 1, traceback_text("ValueError: bad", in_collective=False))
    done = llmtop("postmortem", str(tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    (culprit,) = json.loads(done.stdout)["culprits"]
    assert culprit["rank"] == 1
    assert culprit["class"] == "exception"
    assert culprit["evidence"][0]["source"] == "none_x1/attempt_0/1/stderr.log:1"


def test_undecided_is_exit_3(tmp_path: Path, llmtop: Run) -> None:
    write_rank_log(tmp_path, 0, traceback_text(PEER_LOST, in_collective=True))
    done = llmtop("postmortem", str(tmp_path))
    assert done.returncode == 3
    assert "No culprit" in done.stdout
    assert "Missing evidence" in done.stdout


def test_unusable_input_is_exit_2_with_one_sentence(tmp_path: Path, llmtop: Run) -> None:
    (tmp_path / "rank0").write_bytes(b"\x80\x02]r\xff\xff\xff\xff.")
    for path in (tmp_path / "rank0", tmp_path / "absent", tmp_path):
        done = llmtop("postmortem", str(path))
        assert done.returncode == 2
        assert not done.stdout
        assert len(done.stderr.strip().splitlines()) == 1
        assert "Traceback" not in done.stderr


def test_the_forms_agree(tmp_path: Path, llmtop: Run) -> None:
    write_rank_log(tmp_path, 1, traceback_text("ValueError: bad\x1b[31m", in_collective=False))
    page = tmp_path / "page.html"
    text = llmtop("postmortem", str(tmp_path), "--full").stdout
    markdown = llmtop("postmortem", str(tmp_path), "--markdown").stdout
    assert llmtop("postmortem", str(tmp_path), "--html", str(page)).returncode == 0
    for form in (text, markdown, page.read_text()):
        assert "Rank 1" in form
        assert "bad" in form
        assert "\x1b" not in form
