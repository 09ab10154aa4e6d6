"""Whether a word is random, as keys are: its characters change between small, large and digits all the time."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final

LEAST: Final = 16
"""Shorter words say too little."""
SHORT: Final = 12
"""So short they may be if they have all three kinds in turns."""
HEX_LEAST: Final = 32
"""Hexadecimal digits are hashes, addresses and numbers of runs while they are fewer."""
CHANGING: Final = 0.28
"""Share of the characters that are of another kind than the one before: 0.4 in random small letters and digits,
0.6 with large ones too; 0.05 to 0.2 in names such as layers12To24OfLlama3."""
CHANGING_SHORT: Final = 0.45
LETTERS_CHANGING: Final = 0.3
CAPITALS_TOGETHER: Final = 0.25
CHANGING_NO_WORDS: Final = 0.12
FEW_VOWELS: Final = 0.29
"""A fifth of random letters are vowels, and two fifths of those of words."""
_ENTIRE: Final = re.compile(r"[A-Za-z0-9+/]{40}|[A-Za-z0-9+/]{38,}={1,2}|[A-Za-z0-9_-]{42,44}=?")
_HEX: Final = re.compile(r"[0-9a-f]+|[0-9A-F]+")


def is_random_whole(word: str) -> bool:
    """Whether a word is one piece of base64 of a usual length, its marks included."""
    if not _ENTIRE.fullmatch(word) or _HEX.fullmatch(word):
        return False
    plain = re.sub(r"[^A-Za-z0-9]", "", word)
    return _kinds(plain) == 3 and _changing(plain) >= CHANGING and not _is_of_words(word)


def is_random(word: str, *, hashed: bool = False) -> bool:
    """Whether any part of a word is random, between its marks.

    Args:
        word: of letters, digits and the marks of names.
        hashed: it is known to be a hash: then hexadecimal digits are none.
    """
    return any(_is_random_piece(piece, hashed) for piece in re.split(r"[^A-Za-z0-9]+", word))


def _is_random_piece(piece: str, hashed: bool) -> bool:
    if len(piece) < SHORT or piece.isdigit():
        return False
    if _HEX.fullmatch(piece):
        return not hashed and len(piece) >= HEX_LEAST and _kinds(piece) == 2
    changing, kinds = _changing(piece), _kinds(piece)
    if len(piece) < LEAST:
        return kinds == 3 and changing >= CHANGING_SHORT
    if not any(character.isdigit() for character in piece):
        return kinds == 2 and changing >= LETTERS_CHANGING and _capitals_together(piece) >= CAPITALS_TOGETHER
    return changing >= CHANGING or (changing >= CHANGING_NO_WORDS and _vowels(piece) <= FEW_VOWELS)


def _capitals_together(piece: str) -> float:
    """Share of the capitals that another one follows; names begin their words with one."""
    capitals = sum(map(str.isupper, piece))
    return sum(a.isupper() and b.isupper() for a, b in pairwise(piece)) / max(capitals, 1)


def _vowels(piece: str) -> float:
    """Share of the letters."""
    letters = [character for character in piece.lower() if character.isalpha()]
    return sum(letter in "aeiouy" for letter in letters) / max(len(letters), 1)


def _is_of_words(word: str) -> bool:
    """Whether most of it is words of letters, as in a path or a name with dashes."""
    words = re.findall(r"[A-Z]?[a-z]{4,}|[A-Z]{4,}", word)
    return sum(map(len, words)) > 0.6 * len(word)


def _kind(character: str) -> int:
    return 0 if character.isdigit() else 1 if character.islower() else 2


def _kinds(text: str) -> int:
    return len({_kind(character) for character in text})


def _changing(text: str) -> float:
    kinds = [_kind(character) for character in text]
    return sum(a != b for a, b in pairwise(kinds)) / max(len(kinds) - 1, 1)
