"""The version is written once, and every place that tells it tells that one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import llmtop
from llmtop.version import __version__

HERE = Path(__file__).parents[1]


@pytest.mark.shape
def test_no_other_file_writes_it_and_the_wheel_reads_this_one() -> None:
    files = [file for folder in ("llmtop", "tui", "collectors") for file in (HERE / folder).rglob("*.py")]
    written = [file.name for file in files if re.search(r"^__version__\s*=", file.read_text(), re.MULTILINE)]
    assert written == ["version.py"]
    assert 'path = "llmtop/version.py"' in (HERE / "pyproject.toml").read_text()


def test_the_package_and_the_command_tell_it() -> None:
    assert llmtop.__version__ == __version__
    command = [sys.executable, "-m", "llmtop", "--version"]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=240).stdout
    assert __version__ in said
