"""Secrets planted in command, variables, remote and diff: none is in any file of a bench, nor of a recording."""

from __future__ import annotations

import gzip
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.conftest import Bench


@pytest.mark.slow("test_variables_are_kept_by_a_list_of_names_alone finds the same fault")
def test_no_file_has_a_secret(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@y"]
    subprocess.run([*git, "init", "-q"], check=True, timeout=240)
    subprocess.run([*git, "remote", "add", "origin", "https://u:remotesecret@host/r.git"], check=True, timeout=240)
    (tmp_path / "config.py").write_text("x = 1\n")
    subprocess.run([*git, "add", "config.py"], check=True, timeout=240)
    subprocess.run([*git, "commit", "-qm", "x"], check=True, timeout=240)
    (tmp_path / "config.py").write_text('x = 2\napi_key = "diffsecret"\n')
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth0")
    monkeypatch.setenv("CUDA_LICENSE", "variablesecret")
    command = [sys.executable, "train.py", "1000000", "well", "--api-key", "argumentsecret"]
    command += ["--hub-token=anothersecret", "https://u:urlsecret@host/x", "hf_abcdefghijklmnopqrstuvwx"]
    done = bench(["--steps", "10", "--runs", "1", "--keep-diff"], command=command)
    _, err = done.communicate(timeout=240)
    assert done.returncode == 0, err
    texts = {path: _text(path) for path in (tmp_path / "a").rglob("*") if path.is_file()}
    assert len(texts) == 6
    for secret in ("remotesecret", "diffsecret", "variablesecret", "argumentsecret", "anothersecret", "urlsecret",
                   "hf_abcdef"):  # fmt: skip
        assert not [str(path) for path, text in texts.items() if secret in text], secret
    around = texts[tmp_path / "a" / "environment.json"]
    assert '"NCCL_SOCKET_IFNAME": "eth0"' in around
    assert "+x = 2" in around
    for path, text in texts.items():
        keeps_diff = path.name == "environment.json"
        assert ("+x = 2" in text) == keeps_diff, path
        assert not keeps_diff or stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "--api-key" in around


def _text(path: Path) -> str:
    data = path.read_bytes()
    return (gzip.decompress(data) if path.name.endswith(".gz") else data).decode(errors="replace")
