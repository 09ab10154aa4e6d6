"""The checkout as it stands: its commit, and copies of it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.support.processes import REPOSITORY

GIT_SECONDS = 60.0


def commit() -> str:
    """Return the hash of the commit that is checked out; changes that are not committed do not count."""
    return _git("rev-parse", "HEAD").strip()


def copy_checkout(folder: Path) -> None:
    """Copy the files that git tracks or would track; `.cache` and `.venv` become links to those of the checkout.

    Args:
        folder: is made.
    """
    for name in _git("ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0"):
        source = REPOSITORY / name
        if name and source.is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    for name in (".cache", ".venv"):
        (folder / name).symlink_to((REPOSITORY / name).resolve())


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=GIT_SECONDS
    ).stdout
