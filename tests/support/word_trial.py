"""Random sentences for readers who do not have the repository: python -m tests.support.word_trial COMMIT [COUNT]

Prints one JSON list. Each entry has the sentence as `make words` prints it, and the screen or command on which it
appears. The commit is the seed.
"""

from __future__ import annotations

import json
import random
import re
import sys
from typing import Final

from tests.support.words import Sentence, sentences

_COMMANDS: Final[tuple[tuple[str, str], ...]] = (
    ("collectors/dcgm|collectors/exporter", "llmtop export"),
    ("collectors/prometheus", "llmtop cluster"),
    ("collectors/|llmtop/cli/live", "llmtop"),
    ("llmtop/bench|llmtop/cli/bench", "llmtop bench"),
    ("llmtop/capture|llmtop/cli/capture|llmtop/nsys_cli", "llmtop capture"),
    ("llmtop/cli/cluster/export", "llmtop export"),
    ("llmtop/cli/cluster", "llmtop cluster"),
    ("llmtop/cli/doctor", "llmtop doctor"),
    ("llmtop/cli/mcp", "llmtop mcp"),
    ("llmtop/cli/report/kernel|llmtop/ncu", "llmtop kernel"),
    ("llmtop/cli/run/|llmtop/launch|llmtop/instrument", "llmtop run -- python train.py"),
    ("llmtop/cli/runs|llmtop/runs", "llmtop runs"),
    ("llmtop/cli/which", "llmtop which"),
    ("llmtop/cli/postmortem/tail", "llmtop tail"),
    ("llmtop/postmortem|llmtop/cli/postmortem", "llmtop postmortem"),
    (
        "llmtop/cli/report|llmtop/memory|llmtop/report_kinds|llmtop/stacks|llmtop/trace|llmtop/analysis",
        "llmtop report",
    ),
    ("llmtop/cli/schema", "llmtop schema"),
    ("llmtop/cli/completion", "llmtop completion"),
    ("llmtop/cli/config|llmtop/config", "llmtop config"),
    ("llmtop/protocol/tcp_store", "llmtop capture --at-step"),
)
_SCREENS: Final[tuple[tuple[str, str], ...]] = (
    ("tui/cluster", "the screen of llmtop cluster, which watches many nodes"),
    ("tui/capture|tui/panes/capture.py|tui/screens/capture.py", "the capture dialog (key c of llmtop)"),
    ("tui/panes/capture_list|tui/screens/captures", "the list of captures (key o of llmtop)"),
    ("tui/panes/report|tui/screens/report", "the report of a capture in llmtop"),
    ("tui/screens/alert", "the screen of alerts (key a of llmtop)"),
    ("tui/panes/alert_rows", "the rows for alerts at the top of the main screen of llmtop"),
    ("tui/screens/demo_end", "the last screen of llmtop demo"),
    ("tui/screens/gpu|tui/panes/gpu_charts", "the screen of one GPU in llmtop"),
    ("tui/screens/(hang|stacks|flame)|tui/panes/flame", "the screen of Python stacks (key s of llmtop)"),
    (
        "tui/screens/(signal|send_signal)",
        "the dialog that sends a signal to a process (key X of the process list)",
    ),
    ("tui/screens/process|tui/panes/process", "the list of processes (key p of llmtop)"),
    ("tui/screens/rank|tui/panes/rank", "the table of all ranks (key r of llmtop)"),
    ("tui/screens/kernel", "the screen of one kernel in llmtop"),
    ("tui/screens/timeline|tui/panes/time_line", "the time line in llmtop"),
    ("tui/panes/steps|tui/panes/health", "the pane of the steps on the main screen of llmtop"),
    ("tui/screens/help", "the help screen (key ? of llmtop)"),
    (
        "tui/(app|core|screens/base|screens/main)",
        "the main screen of llmtop: a message in the last row after a key",
    ),
    ("tui/", "the main screen of llmtop"),
)


def place_of(one: Sentence) -> str:
    """Return the screen or the command on which a user reads a sentence."""
    file = one.place.rpartition(":")[0]
    if one.kind == "alert":
        if one.text.startswith("row of the main screen"):
            return (
                "the main screen of llmtop: sign (▲ warning), alert, how long it holds, subject, reasons; → advice"
            )
        if one.place.startswith("verdict"):
            return "the first lines of llmtop report, for a capture of some training steps"
        if one.place.startswith("screen of alert"):
            alert = file.removeprefix("screen of alert ")
            return f"the screen of alerts (key a of llmtop), alert {alert}: one line, after its label"
        return "the screen of alerts (key a of llmtop): what happens, or after 'next:' what to do"
    if one.kind == "doctor":
        return "the output of llmtop doctor, which checks what llmtop can do on this machine"
    if one.kind == "error":
        return f"an error message on the terminal, of: {_first(_COMMANDS, file, 'llmtop')}"
    if one.kind == "help":
        if "__main__" in file:
            return "llmtop help: the list of commands, the description of one"
        return f"{_first(_COMMANDS, file, 'llmtop')} --help"
    if one.place.startswith("help"):
        return "the help screen (key ? of llmtop)"
    return _first(_SCREENS, file, "llmtop")


def _first(table: tuple[tuple[str, str], ...], file: str, default: str) -> str:
    return next((name for pattern, name in table if re.match(pattern, file)), default)


def trial(seed: str, count: int = 60) -> list[dict[str, str]]:
    """Choose sentences.

    Args:
        seed: of the choice.
        count: of sentences.
    """
    chosen = random.Random(seed).sample(sentences(), count)
    return [{"screen": place_of(one), "sentence": one.text} for one in chosen]


if __name__ == "__main__":
    print(
        json.dumps(trial(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 60), ensure_ascii=False, indent=1)
    )
