"""Commands by name: help, what may be meant, and bad input that is refused before anything else."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmtop.__main__ import COMMANDS, main
from llmtop.errors import EXIT_DONE, EXIT_USAGE


def outcome(argv: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int | None, str, str]:
    """Exit code, standard output and standard error of llmtop with these arguments."""
    with pytest.raises(SystemExit) as ended:
        main(argv)
    written = capsys.readouterr()
    assert ended.value.code is None or isinstance(ended.value.code, int)
    return ended.value.code, written.out, written.err


def test_help_is_a_command_too(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = outcome(["help"], capsys)
    assert not code
    assert all(name in out for name in COMMANDS)
    assert outcome(["help", "replay"], capsys)[:2] == outcome(["replay", "--help"], capsys)[:2]


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("repaly", "there is no command 'repaly'. Did you mean replay?"),
        ("captrue", "there is no command 'captrue'. Did you mean capture?"),
        ("xyzzy", "there is no command 'xyzzy'. llmtop help lists all commands."),
    ],
)
def test_an_unknown_command_is_answered_with_the_one_that_may_be_meant(
    typed: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = outcome([typed], capsys)
    assert code == EXIT_USAGE
    assert said in err
    assert out == ""


def test_a_theme_that_there_is_not_is_refused_without_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    for mode in ("--once", "--json"):
        code, out, err = outcome(["--theme", "nope", mode], capsys)
        assert code == EXIT_USAGE
        assert err.startswith('llmtop: there is no theme "nope"; llmtop has dark, light, contrast, terminal')
        assert out == ""


def test_a_recording_that_is_not_there_is_named_rather_than_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = outcome(["replay", str(tmp_path / "nofile")], capsys)
    assert code not in (None, EXIT_DONE)
    assert "nofile cannot be opened: No such file or directory" in err
    assert "terminal" not in err
