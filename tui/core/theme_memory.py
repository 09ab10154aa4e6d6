"""The theme that was chosen last, kept from one run of the program to the next."""

from __future__ import annotations

import contextlib
from pathlib import Path

_LONGEST = 80


class ThemeMemory:
    """One name in a file of its own: the configuration is the person's to write."""

    def __init__(self, path: Path | None = None) -> None:
        """Use this file.

        Args:
            path: the file; None: below ~/.local/state, or $XDG_STATE_HOME.
        """
        if path is None:
            from platformdirs import user_state_path

            path = user_state_path("llmtop", appauthor=False) / "theme"
        self._path = path

    def read(self) -> str:
        """Return the name; empty where none is remembered."""
        try:
            with self._path.open(encoding="utf-8", errors="replace") as file:
                return file.read(_LONGEST).strip()
        except OSError:
            return ""

    def write(self, name: str) -> None:
        """Store a name; if that fails, the next run begins with the default theme, which is no loss."""
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # crash logs lie there too
            self._path.write_text(f"{name}\n", encoding="utf-8")
