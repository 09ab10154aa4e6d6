"""The screen as files: a picture for a report of a fault or a talk, and text to search and to paste."""

from __future__ import annotations

import time
from pathlib import Path


def save_picture(drawn: str, text: str) -> str:
    """Write both into the folder that the program runs in; returns a sentence with the path or the reason of
    failure.

    Args:
        drawn: SVG.
        text: the lines of the screen.
    """
    try:
        stem = Path.cwd() / time.strftime("llmtop-%Y%m%d-%H%M%S")
        stem.with_suffix(".svg").write_text(drawn, encoding="utf-8")
        stem.with_suffix(".txt").write_text(text, encoding="utf-8")
    except OSError as error:
        return (
            f"The picture cannot be written here: {error.strerror}; start llmtop in a folder that it can write to."
        )
    return f"Saved {stem}.svg and .txt"
