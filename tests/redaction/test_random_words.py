"""Words that are random, by the circumstances in which they stand."""

from __future__ import annotations

import pytest

from llmtop.redaction.random_words import is_random

UUID = "f81d4fae-7dec-11d0-a765-00a0c91e6bf6"
"""The example of RFC 9562, section 4."""


@pytest.mark.parametrize(
    ("hashed", "assigned", "random"), [(False, True, True), (True, True, False), (False, False, False)]
)
def test_a_uuid_may_be_a_secret_only_as_a_value_that_is_no_hash(
    hashed: bool, assigned: bool, random: bool
) -> None:
    assert is_random(UUID, hashed=hashed, assigned=assigned) is random


def test_random_letters_and_digits_are_random_where_their_pairs_happen_to_be_common() -> None:
    """Drawn with `random.Random(1)` from 0-9a-z: they change between letters and digits as no words do."""
    for drawn in ("zaden6fils6t6tp5ursm", "7vstns1dikw4pyb06lec", "558pts6dbutex8w7qwet"):
        assert is_random(drawn, hashed=False, assigned=True)


@pytest.mark.parametrize("name", ["layers12To24OfLlama3", "block2Layer10Head128Proj", "expert3Of8Layer12Stage2"])
def test_a_name_of_words_and_numbers_is_not_random(name: str) -> None:
    assert is_random(name) is False
    assert is_random(name, assigned=True) is False


@pytest.mark.parametrize(
    ("word", "random"),
    [
        ("YNwqNqNVwqwYNYqNqwVqwqNq", True),  # five different characters, by `random.Random(5)`
        ("7zxz7zxzxQQxQz777zx77xzx", False),  # four
        ("eickjtsatvwkcjljpwkfppwfbiax", True),  # 28 small letters, by `random.Random(5)`
        ("abcabcabcabcabcabcabcabc", False),
        ("zrpEFivB50756EHugmANb7", True),  # by `random.Random(11)`: capitals and small letters change most
        ("AB1CD-EFG2H-IJKL3-MNOPQ", True),  # three digits, as a key of a license may have
        ("AB1CD-EFG2H-IJKLX-MNOPQ", False),  # two
    ],
)
def test_few_different_characters_are_a_pattern_and_letters_alone_may_be_a_key(word: str, random: bool) -> None:
    assert is_random(word) is random
