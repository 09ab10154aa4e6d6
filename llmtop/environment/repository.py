"""The git repository of a folder, with a fingerprint of what has changed since its commit; without secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from llmtop.environment.model import Repository
from llmtop.environment.programs import run_for_bytes, run_for_text
from llmtop.redaction.secret_filter import without_secrets

DiffKept = Literal["none", "hash", "text"]
"""Stored part of the difference to the commit: nothing, its hash and statistics, or its text too."""

_MOST: Final = 4 << 20
"""Characters of a diff that are kept."""
_MOST_STAT: Final = 64 << 10
"""Characters of the statistics of a diff that are kept: some 800 files."""
_DIFF: Final = ("diff", "HEAD", "--no-ext-diff", "--no-textconv", "--no-color")
"""--no-ext-diff and --no-textconv: git runs no program that the repository names."""


def repository(folder: Path, *, diff: DiffKept) -> Repository | None:
    """Return what git reports; None outside a repository or without git.

    Args:
        folder: in which to ask.
        diff: what to store of the difference to the commit.
    """
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return None
    status = _git(folder, "status", "--porcelain")
    lines = None if status is None else status.splitlines()
    raw = run_for_bytes(git_command(folder, *_DIFF)) if diff != "none" else None
    stat = _git(folder, *_DIFF, "--stat") if diff != "none" else None
    text = raw[: 4 * _MOST].decode(errors="replace") if raw is not None and diff == "text" else None
    remote = _git(folder, "remote", "get-url", "origin")
    import hashlib  # loads OpenSSL, 0.7 MiB; a monitor imports this module with its captures

    return Repository(
        commit=commit.strip(),
        branch=without_secrets((_git(folder, "rev-parse", "--abbrev-ref", "HEAD") or "").strip()) or None,
        remote=without_secrets(remote.strip()) if remote else None,
        dirty=None if lines is None else any(not line.startswith("??") for line in lines),
        untracked=None if lines is None else sum(line.startswith("??") for line in lines),
        diff_sha256=None if raw is None else hashlib.sha256(raw).hexdigest(),
        diff_stat=None if stat is None else without_secrets(stat[:_MOST_STAT]),
        diff=None if text is None else without_secrets(text[:_MOST]),
        diff_cut_after=_MOST if text is not None and len(text) > _MOST else None,
    )


def _git(folder: Path, *words: str) -> str | None:
    return run_for_text(git_command(folder, *words), most=_MOST + 1)


def git_command(folder: Path, *words: str) -> list[str]:
    """Command line of git that takes no locks and starts no monitor that the repository names."""
    return ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-C", str(folder), *words]
