"""The git repository of a folder, with what has changed since its commit; without secrets."""

from __future__ import annotations

from pathlib import Path

from llmtop.environment.model import Repository
from llmtop.environment.programs import output_of
from llmtop.secret_filter import without_secrets

_MOST = 4 << 20
"""Characters of a diff that are kept."""


def repository(folder: Path, *, diff: bool) -> Repository | None:
    """What git says of it; None outside a repository or without git.

    Args:
        folder: in which to ask.
        diff: whether to keep the difference to the commit.
    """
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return None
    status = _git(folder, "status", "--porcelain")
    lines = None if status is None else status.splitlines()
    # --no-ext-diff and --no-textconv: nothing of the repository's choosing is run.
    text = _git(folder, "diff", "HEAD", "--no-ext-diff", "--no-textconv", "--no-color") if diff else None
    remote = _git(folder, "remote", "get-url", "origin")
    return Repository(
        commit=commit.strip(),
        branch=(_git(folder, "rev-parse", "--abbrev-ref", "HEAD") or "").strip() or None,
        remote=without_secrets(remote.strip()) if remote else None,
        dirty=None if lines is None else any(not line.startswith("??") for line in lines),
        untracked=None if lines is None else sum(line.startswith("??") for line in lines),
        diff=None if text is None else without_secrets(text[:_MOST]),
        diff_cut_after=_MOST if text is not None and len(text) > _MOST else None,
    )


def _git(folder: Path, *words: str) -> str | None:
    """What git prints; it takes no locks and starts no monitor of the repository's choosing."""
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-C", str(folder), *words]
    return output_of(command, most=_MOST + 1)
