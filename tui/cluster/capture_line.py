"""The command behind key c of the cluster pane, which captures the accused ranks, and its call."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence

from collectors.prometheus.cluster_view import ClusterView, Run
from llmtop.capture import targets
from llmtop.capture.across.rank_choice import add_reference_ranks
from llmtop.capture.across.step_choice import AHEAD
from llmtop.errors import LlmtopError

_LINES = 2


def command(view: ClusterView) -> list[str]:
    """`llmtop capture` of the ranks that hang or are late, else of two that stand for all; of the largest run."""
    accused, run = _accused_ranks(view)
    world = (run.ranks if run is not None else None) or max([0, *accused]) + 1
    ranks = add_reference_ranks(accused, world) if world > 1 else (0,)
    return ["llmtop", "capture", "--at-step", AHEAD, "--ranks", ",".join(map(str, ranks))]


def _accused_ranks(view: ClusterView) -> tuple[list[int], Run | None]:
    late = [one for one in view.late if one.is_straggler]
    named = [one for one in view.hung if one.rank] or late or list(view.late[:1])
    name = named[0].run if named else None
    ranks = [int(one.rank) for one in named if one.run == name and one.rank and one.rank.isdecimal()]
    run = next((run for run in view.runs if name is None or run.name == name), None)
    return ranks, run


def line(words: Sequence[str]) -> str:
    """Return the command as typed."""
    return shlex.join(words)


def refusal() -> str:
    """Return why the command cannot be called on this machine; "" where a rank of a job is attached. Takes up to
    seconds."""
    try:
        attached = targets.list_attached()
    except LlmtopError:
        attached = ()
    if any(target.rank is not None for target in attached):
        return ""
    if attached:
        pids = " or ".join(f"llmtop capture --pid {target.pid}" for target in attached[:2])
        return f"the trainings on this node are no ranks of a job: {pids}"
    return "run this command on a node of the job (no rank is attached here)"


class Call:
    """The command under way, without a terminal."""

    def __init__(self, words: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def result(self) -> str:
        """Return the command's last line; blocks until the capture is taken."""
        out, err = self._process.communicate()
        if self._process.returncode:
            said = [text for text in err.splitlines() if text.strip()]
            return (
                " ".join(said[-_LINES:]) or f"the capture command ended with exit code {self._process.returncode}"
            )
        said = [text for text in out.splitlines() if text.strip()]
        return next((text for text in said if " in /" in text), said[-1] if said else "done")

    def cancel(self) -> None:
        """Cancel the capture, as ctrl+c does."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
