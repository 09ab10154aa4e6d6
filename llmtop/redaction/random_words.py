"""Randomness of a word, as keys have it: pairs of neighbouring letters and digits that no word or name has."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final

HEX_LEAST: Final = 32
"""Shorter runs of hexadecimal digits are hashes, addresses and numbers of runs."""
LEAST: Final = 12
"""Shorter words hold too few pairs."""
BARE: Final = 11
"""Least score of a random word that stands alone: 1 of 5,000 words of source files reaches it, and 95 % of random
words of 24 characters do."""
ASSIGNED: Final = 6
"""Least score of a random word that is the value of a name or an option: 90 % of random words of 16 characters."""
DENSITY: Final = 0.3
"""Least score per character. Random words of 32 characters have 0.5 or more in 99 % of cases, but names of kernels
that list tile sizes 0.1 to 0.4."""
LONGEST_PIECE: Final = 9
"""Words of shorter pieces alone are names of runs (llama3-70b-lr2e5-bs64)."""
MANY_PIECES: Final = 8
"""Words of more pieces between their marks are lists, such as names of kernels."""
_WEIGHTS: Final = """
gedegfeheifdddgehddcefgfehh cfefcffgdehcffdfieefdhghehg dgffdggdeiddfgcfieedeghhfih
dffecffgchgeefdfheeeegggfig efddeefgfigdedfefcddgffeghh dgffddghciidffcfgeeedhggfig
dfffcfeedihdeeeeiddeegghfhh cgffcfggdigfefdegeedegfhehh efdeeedihigddcdehfddheifiei
cgffcfggdfegffdehgdfdffigig eefebfffdggdffeehedefedhfig cffecffhcigdegdehgeeefgheih
ceffcgggdigeefcdhgefefhhfig dgdddddgdhffffdfhgdcfeghgih feddfffgfgfeeceeiceedfegihi
dgffcggedigdfgdehceddfgheig egeffeggeifeffgffeefbedhhhg cgeecfehdiffdedfheddffgieih
egefcfgediffefddgfdceffhfih dgefcfgecihfffdehdeeeffhehh eeeedefieihdedfeiddchhigihf
cffgcgghchieffefggffhhhghhf cgfecfgecigefddfhdefhggghhh efdfdeggdhgeeffdhffcgggffhe
eeefcefgehgedddcheddeffhggh dgggbgifdiifghefhggggeiheeh eeedeeghgghgefgfiffegehdiid
""".split()  # noqa: SIM905  a table
"""Row: a letter, or a digit as the 27th. Column: the letter or digit after it. Value: logarithm of how much
likelier the pair is in a random word than in a word of text, from "a" (-4) over "e" (0) to "i" (+4). Counted in
the distinct words of 6,000 Python source files, beside random words of 36 and 62 characters."""
_PAIR: Final = [[ord(weight) - ord("e") for weight in row] for row in _WEIGHTS]
CHANGING: Final = 0.33
"""Share of the characters of a long piece that are of another kind than the one before: 0.4 in random small
letters and digits, 0.6 with capitals. Names with numbers reach it as well (layers12To24OfLlama3), but their pairs
are those of words: their score is above 0 in 22 % of names made of words of PyTorch's source and of numbers, that
of random words of 20 characters in 99.9 %."""
CHANGING_LEAST: Final = 20
_HEX: Final = re.compile(r"[0-9a-f]+|[0-9A-F]+")
_LONG_HEX: Final = re.compile(rf"[A-Za-z]{{0,6}}[0-9a-fA-F]{{{HEX_LEAST},}}[A-Za-z]{{0,2}}")
_WORDS: Final = re.compile(r"[a-z]+(?:[-_./=+~][a-z]+)*|[A-Z]+(?:[-_./=+~][A-Z]+)*|[A-Z]?[a-z]+(?:[A-Z][a-z]+)*")
"""Words of letters alone, which are the most by far."""
_DEVICE: Final = re.compile(r"(?:GPU|MIG|TPU|NPU|CPU)-[0-9a-f-]+(?:/\d+)*")
_FORMAT: Final = re.compile(
    r"(?:b?float|fp|bf|u?int|nf|mx|mxfp|w|a|kv)\d+\w?|e\d+m\d+[a-z]*|\d+(?:x\d+)*[bkmgtxBKMGTX]?|v\d+(?:p\d+)?|sm\d+a?",
    re.IGNORECASE,
)
"""Names of number formats, sizes and versions."""
_PIECE: Final = re.compile(r"[A-Za-z0-9]+")
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_GROUPS: Final = re.compile(r"(?:[A-Z0-9]{1,4}-)?(?:[A-Z0-9]{5,11}-){3,}[A-Z0-9]{5,11}")
"""Capitals and digits in groups, as keys of licenses are written."""


def is_random(word: str, *, hashed: bool = False, assigned: bool = False) -> bool:  # noqa: PLR0911  one return a form
    """Return True if a word, or a piece of it between its marks, is random.

    Args:
        word: letters, digits and the marks of names.
        hashed: it is known to be a hash: hexadecimal digits do not count.
        assigned: it is the value of a name or an option; a lower score is enough.
    """
    if len(word) < LEAST or (_WORDS.fullmatch(word) and not (word.isalpha() and len(word) > 2 * LEAST)):
        return False
    pieces = [piece for piece in _PIECE.findall(word) if not _FORMAT.fullmatch(piece)]
    if sum(map(len, pieces)) < LEAST or len(set(word)) < 5:
        return False
    if _DEVICE.fullmatch(word):
        return False
    if _UUID.fullmatch(word):
        return assigned and not hashed
    if _HEX.fullmatch(word.replace("-", "").replace(".", "")):
        return not hashed and any(_is_long_hex(piece) for piece in pieces)
    if _GROUPS.fullmatch(word) and len(re.findall(r"\d", word)) >= 3 and len(re.findall("[A-Z]", word)) >= 3:
        return True
    least = ASSIGNED if assigned else BARE
    if (
        max(map(len, pieces)) >= LONGEST_PIECE
        and len(pieces) <= MANY_PIECES
        and _is_random_text(word, pieces, least)
    ):
        return True
    return any(_is_long_hex(piece) or (not _HEX.fullmatch(piece) and _is_random_text(piece, [piece], least))
               for piece in pieces if len(piece) >= LEAST and not (hashed and _HEX.fullmatch(piece)))  # fmt: skip


def _is_long_hex(piece: str) -> bool:
    return _LONG_HEX.fullmatch(piece) is not None and not piece.isdigit() and not piece.isalpha()


def _is_random_text(text: str, pieces: list[str], least: int) -> bool:
    kinds = sum(any(map(is_kind, text)) for is_kind in (str.isdigit, str.islower, str.isupper))
    found = sum(map(_score, pieces))
    if kinds == 1:
        least *= 2
    elif (
        len(pieces) == 1
        and found > 0
        and len(text) >= CHANGING_LEAST
        and _changing(text) >= CHANGING
        and len(re.findall(r"\d", text)) >= 3
    ):
        return True
    return found >= least and found >= DENSITY * sum(map(len, pieces))


def _changing(text: str) -> float:
    kinds = [0 if character.isdigit() else 1 if character.islower() else 2 for character in text]
    return sum(a != b for a, b in pairwise(kinds)) / len(kinds)


def _score(piece: str) -> int:
    codes = [26 if character.isdigit() else ord(character) - 97 for character in piece.lower()]
    capitals = sum(a.islower() and b.isupper() for a, b in pairwise(piece))
    return capitals + sum(_PAIR[a][b] for a, b in pairwise(codes))
