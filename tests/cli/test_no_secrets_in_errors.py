"""Sentences of errors repeat arguments and the configuration, but no secret: they end in logs of jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import preloaded
from tests.support.processes import environment

PASSWORD = "Zx9kQw7LmT2"
TOKEN = "hf_" + "aBcDeFgHiJkLmNoPqRsTuVwXyZ"


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["report", f"https://u:{PASSWORD}@host/trace.json"], "cannot be opened"),
        (["record", f"https://u:{PASSWORD}@host/x", "--seconds", "1"], "cannot be written"),
        (["login", TOKEN], "there is no command"),
        ([TOKEN], "there is no command"),
        (["--interval", f"password={PASSWORD}"], "--interval"),
        (["run", "--", f"https://u:{PASSWORD}@host/x"], "host/x"),
        (["report", "checkpoint-9f8a7b6c5d4e3f2a1b0c9d8e7f6a5b4c.json"], "9f8a7b6c5d4e3f2a1b0c9d8e7f6a5b4c.json"),
    ],
)
def test_a_sentence_about_an_argument(arguments: list[str], shown: str) -> None:
    done = preloaded.llmtop(*arguments, env=environment())
    assert done.returncode not in (0, 70)
    assert shown in done.stderr
    assert PASSWORD not in done.stderr
    assert TOKEN not in done.stderr


@pytest.mark.parametrize(
    "line",
    [
        f'dcgm = "ftp://u:{PASSWORD}@host/"',
        f'alerts.command = ["curl", "-H", "Authorization: Bearer {PASSWORD}"]',
        f'theme = "{TOKEN}"',
        f'interval = "password={PASSWORD}"',
    ],
)
def test_a_sentence_about_the_configuration(line: str, tmp_path: Path) -> None:
    (tmp_path / "llmtop").mkdir()
    (tmp_path / "llmtop" / "config.toml").write_text(f"{line}\n")
    done = preloaded.llmtop("--once", env=environment(XDG_CONFIG_HOME=str(tmp_path)))
    assert done.returncode == 2
    assert "config.toml, line 1" in done.stderr
    assert PASSWORD not in done.stderr
    assert TOKEN not in done.stderr


@pytest.mark.parametrize("host", ["[::bad", "host:port", "host:99999"])
def test_a_url_that_is_none_is_one_sentence(host: str) -> None:
    url = f"http://u:{PASSWORD}@{host}/"
    monitored = preloaded.llmtop("--once", env=environment(LLMTOP_DCGM=url))
    assert monitored.returncode == 0
    assert "is not the URL of a dcgm-exporter" in monitored.stdout
    cluster = preloaded.llmtop("cluster", "--once", "--prometheus", url, env=environment())
    assert cluster.returncode == 2
    assert "is not the URL of a Prometheus" in cluster.stderr
    assert PASSWORD not in monitored.stdout + monitored.stderr + cluster.stderr
