"""Completion in a real bash, and examples below every --help."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from llmtop.__main__ import COMMANDS, cli
from llmtop.cli.examples import EXAMPLES
from tests.support.processes import environment

PROGRAM = Path(sys.executable).with_name("llmtop")


def completed(line: str, **extra: str) -> list[str]:
    """What a real bash proposes for the last word of a line."""
    words = line.split(" ")
    script = (
        f'eval "$(llmtop completion bash)"; COMP_WORDS=({" ".join(map(repr, words))}); '
        f"COMP_CWORD={len(words) - 1}; _llmtop_completion llmtop; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    env = environment(PATH=f"{PROGRAM.parent}:/usr/bin:/bin", **extra)
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, timeout=240, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize(
    ("line", "among"),
    [
        ("llmtop ", list(COMMANDS)),
        ("llmtop comp", ["compare", "completion"]),
        ("llmtop --inter", ["--interval"]),
        ("llmtop capture --st", ["--steps"]),
        ("llmtop completion ", ["bash", "zsh", "fish"]),
    ],
)
def test_bash_completes_commands_options_and_words(line: str, among: list[str]) -> None:
    assert completed(line) == among


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_a_wrong_configuration_says_nothing_at_a_tab(tmp_path: Path) -> None:
    wrong = tmp_path / "llmtop" / "config.toml"
    wrong.parent.mkdir()
    wrong.write_text("nonsense = 1")
    env = environment(
        XDG_CONFIG_HOME=str(tmp_path), _LLMTOP_COMPLETE="bash_complete", COMP_WORDS="llmtop comp", COMP_CWORD="1"
    )
    done = subprocess.run([PROGRAM], env=env, capture_output=True, text=True, timeout=240, check=False)
    assert (done.stdout.split(), done.stderr) == (["plain,compare", "plain,completion"], "")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_a_function_that_asks_llmtop(shell: str) -> None:
    done = subprocess.run([PROGRAM, "completion", shell], capture_output=True, text=True, timeout=240, check=True)
    assert f"_LLMTOP_COMPLETE={shell}_complete" in done.stdout
    assert "llmtop" in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_has_examples_of_that_command_with_options_that_it_has(name: str) -> None:
    assert EXAMPLES[name]
    context = click.Context(cli, info_name="llmtop")
    command = cli.get_command(context, name)
    assert command is not None
    shown = command.get_help(click.Context(command, info_name=name, parent=context))
    own = {option for param in command.params for option in (*param.opts, *param.secondary_opts)}
    for line, what in EXAMPLES[name]:
        assert line in shown
        assert what in shown
        mine = line.split(" -- ")[0].split("|")[0]
        used = {word for word in mine.split() if word.startswith("-") and word not in ("-s",)}
        assert used <= own, (line, used - own)
