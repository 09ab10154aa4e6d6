"""The earlier run that a training which starts now can be held to: the same command, on the same hardware.

    python -m llmtop.runs.reference QUERY

prints the run for a `ReferenceQuery` in JSON, or null. A monitor starts that: what reads runs, SQLite among it,
would stay in its memory (1 MiB), and the monitor would wait for it for 0.3 s.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence

import msgspec

from llmtop.model.run_reference import FIRST_SECONDS, RunReference
from llmtop.redaction.secret_filter import words_without_secrets
from llmtop.runs import folder
from llmtop.runs.series import batch_of, series_of
from llmtop.runs.store import ENDED, Run, list_runs
from llmtop.system import procfs

_WARM_UP_STEPS = 24
_LEAST_STEPS = 100


class ReferenceQuery(msgspec.Struct, frozen=True):
    """Arguments of `reference_of`."""

    pid: int
    world_size: int | None
    gpu_model: str | None


def reference_of(pid: int, world_size: int | None, gpu_model: str | None) -> RunReference | None:
    """Return the newest run that ended in order and is like a training that runs now; None without one.

    Args:
        pid: of the training's first rank, as this host numbers it; its command and folder must be the same.
        world_size: of the training; None where it is no rank.
        gpu_model: as its driver calls it; None for a training without a GPU.

    Raises:
        OSError: the folder of runs cannot be read.
    """
    words, cwd = procfs.words(pid), procfs.link(str(pid), "cwd")
    if not words or not cwd:
        return None
    command = " ".join(words_without_secrets(words))
    runs = list_runs(folder.runs_folder(procfs.environ(pid)).path)
    return newest_like(runs, command, cwd, (world_size or 1, gpu_model))


def newest_like(
    runs: Sequence[Run], command: str, cwd: str, hardware: tuple[int, str | None]
) -> RunReference | None:
    """Return the newest run of one command that ended in order.

    Args:
        runs: the newest last.
        command: without secrets.
        cwd: in which it was started.
        hardware: world size and GPU model; None: no GPU.
    """
    for run in reversed(runs):
        start = run.attempts[-1].leader.start
        if start is None or start.bench or not start.command or run.how != ENDED or start.kind != "step":
            continue
        has_gpu = start.gpu_uuid is not None or start.gpu_model is not None
        model = start.gpu_model if has_gpu else None
        if has_gpu and model is None:
            continue
        is_same = command.startswith(start.command) and start.folder == cwd  # a long command is kept in part
        if not is_same or (start.world_size or 1, model) != hardware:
            continue
        found = _figures(run)
        if found is not None:
            return found
    return None


def _figures(run: Run) -> RunReference | None:
    points = [
        point
        for point in series_of(run).lasting_points()
        if point.elapsed <= FIRST_SECONDS and point.step_seconds is not None
    ]
    first = points[0].first if points else 0
    points = [point for point in points if point.last - first >= _WARM_UP_STEPS]
    if sum(point.steps for point in points) < _LEAST_STEPS:
        return None
    tokens, samples = batch_of(points)
    return RunReference(
        run=run.id,
        started=run.started,
        step_seconds_p50=statistics.median(point.step_seconds or 0.0 for point in points),
        tokens_per_step=tokens,
        samples_per_step=samples,
    )


def _answer(words: Sequence[str]) -> None:
    query = msgspec.json.decode(words[0], type=ReferenceQuery)
    found = reference_of(query.pid, query.world_size, query.gpu_model)
    sys.stdout.write(msgspec.json.encode(found).decode())


if __name__ == "__main__":
    _answer(sys.argv[1:])
