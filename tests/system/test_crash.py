"""The log of llmtop's own error has the command and the traceback; no secret, nothing that a terminal obeys."""

from __future__ import annotations

import re
import stat
import sys
from pathlib import Path

import pytest

from llmtop.system.crash import log_own_error


def test_the_log_of_an_own_error_has_no_secrets_and_no_escapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["llmtop", "run", "--", "train.py", "--api-key", "two words", "--lr", "1"])
    try:
        raise ValueError("no answer from https://u:hunter2@host/x\x1b]0;title\x07\x9b2J\u202e")
    except ValueError as error:
        sentence = str(log_own_error(error))
    found = re.search(r"report it with (\S+)", sentence)
    assert found is not None, sentence
    log = Path(found[1])
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    text = log.read_text()
    assert "llmtop run -- train.py --api-key *** --lr 1" in text
    assert "ValueError: no answer from https://***@host/x" in text
    assert "hunter2" not in text + sentence
    assert text.replace("\n", "").isprintable(), "it is read in a terminal"
