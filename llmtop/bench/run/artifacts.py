"""environment.json of a run, and of all."""

from __future__ import annotations

from pathlib import Path

from llmtop.bench.model.results import BenchSettings
from llmtop.bench.run.run_once import RunRequest
from llmtop.capture.base.folder import write
from llmtop.environment import collect
from llmtop.environment.model import CommandEnvironment
from llmtop.environment.repository import DiffKept
from llmtop.errors import NotPossibleHere
from llmtop.naming import file_names

ENVIRONMENT_FILE = file_names.ENVIRONMENT


def write_environment(folder: Path, request: RunRequest, settings: BenchSettings) -> CommandEnvironment:
    """Write what the command of a run is started in.

    Raises:
        NotPossibleHere: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotPossibleHere(
            f"{folder} cannot be created: {error.strerror}; choose another folder with --out"
        ) from None
    variables = {**request.environment, **request.variables}
    diff: DiffKept = "text" if settings.keep_diff else "hash" if settings.diff else "none"
    found = collect.collect_environment(request.command, variables, Path.cwd(), diff=diff)
    write(folder / ENVIRONMENT_FILE, collect.to_json(found), private=settings.keep_diff)
    return found
