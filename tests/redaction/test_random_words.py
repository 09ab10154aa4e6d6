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


HEX_32 = "9f3a85eda771ea86bd12a42e888b634a"
LETTERS_HEX = "abcdefabcdefabcdefabcdefabcdefab"
NAMES = "layer-head-proj-block-attn-stage-north-south-west"
Case = tuple[str, bool, bool]
"""A word; whether it is random; whether it is as the value of a name."""


def _assert_random(case: Case) -> None:
    word, alone, assigned = case
    assert is_random(word) is alone
    assert is_random(word, hashed=False, assigned=False) is alone
    assert is_random(word, assigned=True) is assigned


@pytest.mark.parametrize(
    "case",
    [
        ("zx2vdJ7XQZza", True, True),
        ("zx2vdJ7XQZz", False, False),
        ("sq2nkm2invlz-bf16-fp8", True, True),  # 12 characters beside names of formats
        ("8ggl0qudjrh-bf16-fp8", False, False),  # 11
        (f"{NAMES}-zuovk99zlshi", True, True),  # a piece of 12 characters, beside more words than a name has
        (f"{NAMES}-fqqfq5lqat3", False, False),  # 11
        (NAMES, False, False),
        ("", False, False),
    ],
)
def test_a_word_of_less_than_12_characters_is_too_short(case: Case) -> None:
    _assert_random(case)


@pytest.mark.parametrize(
    "case",
    [
        ("pft75v2seh60kv", True, True),  # 11
        ("wlavyf4r6mp6af", False, True),  # 10
        ("953qdcadafyttk", False, True),  # 6
        ("wgodox1kye0mut", False, False),  # 5
        ("oAKyefggtIhF7", True, True),  # 8, and 3 for a capital after a small letter
        ("lNIRmOMNZyHe7", False, True),  # 7 and 3
        ("qidwcnokmdttewlymedg8ukenbuijrmyalouethx", True, True),  # 12 of 40 characters: 0.3
        ("litswdsaozgrlifrrzzr0xmashwxkshelipmdsyn", False, False),  # 11: less than 0.3 each
    ],
)
def test_the_score_of_a_random_word_is_11_alone_6_assigned_and_0_3_per_character(case: Case) -> None:
    """The scores are sums over the table of pairs."""
    _assert_random(case)


@pytest.mark.parametrize(
    "case",
    [
        ("kpybhvboqhbtfgcicykyckucn", True, True),  # 22
        ("JYWVGGAFVIYEKOCXWKUYXEPEN", True, True),  # 22
        ("ghgciicipfiajohlhzxndyhad", False, True),  # 21
        ("HJDSTYHDTPUGHUUVHPHRJKZIM", False, True),  # 21
        ("psynsbeknuncnhrqlqmeniljt", False, True),  # 12
        ("ctaqrplhyfcmalwmtdutqbbmo", False, False),  # 11
        ("tflxozgpepfgktqxhonjpman", False, False),  # 24 characters
        ("wfpoojmbd--otkfuqaxp", False, True),  # 12
        ("wmlsaupbd--pccsmkhiu", False, False),  # 11
        ("vqzwkwwxq-wqzjxqzkw-wwjxzxjkq", False, False),  # words of letters between marks are a name
    ],
)
def test_letters_of_one_kind_need_twice_the_score_and_25_of_them(case: Case) -> None:
    _assert_random(case)


@pytest.mark.parametrize(
    "case",
    [
        ("5xin0n2x7gdsimbeposn", True, True),  # 7 changes in 20 characters: 0.35
        ("cirqudgeppr7tr63v2ma", False, False),  # 6: 0.3
        ("8ds8fus5rv0cappatul", False, False),  # 19 characters
        ("9t24f2ormi7rtichwizi", False, False),  # a score of 0
        ("yI6ddmeRshhev55xmfau", True, True),  # 3 digits
        ("buex9eiMicqilSsqse6b", False, False),  # 2
        (
            "ie7926si98tti333978o7e6snss1on96404retrssira58ot567904ntiarsoto06as45a523596475o268eeat3ri51s24s1895",
            True,  # 33 changes in 100 characters
            True,
        ),
    ],
)
def test_20_characters_that_change_their_kind_at_every_third_are_random_whatever_their_score(case: Case) -> None:
    _assert_random(case)


@pytest.mark.parametrize(
    "case",
    [
        ("qkqfedqiv-v65jm9dj1", True, True),  # pieces of 9 characters
        ("e7b2mmqm-9sbbewn0", False, False),  # of 8
        ("a8q9wkuwt-dbxf-wln2-azwo-ydkd-1ely-2ppc-kzkp", True, True),  # 8 pieces
        ("ysbote4ge-segz-wozo-z0ht-c0vp-snea-gsgd-0uoh-yiqn", False, False),  # 9
    ],
)
def test_pieces_are_judged_together_if_they_are_few_and_one_of_them_is_long(case: Case) -> None:
    _assert_random(case)


@pytest.mark.parametrize(
    "case",
    [
        ("9G989989123-4G55755712G-73863-94912", True, True),  # 3 capitals
        ("9G989989123-4G557557128-73863-94912", False, False),  # 2
        ("G3-9G989989123-4G557557123-73863-94912", True, True),
        ("GABCD-EFGHI-JKL12-MNOP3", True, True),  # 3 digits
    ],
)
def test_a_key_of_a_license_has_three_digits_and_three_capitals(case: Case) -> None:
    _assert_random(case)


@pytest.mark.parametrize(
    ("word", "random", "hashed"),
    [
        (HEX_32, True, False),
        (HEX_32.upper(), True, False),
        (HEX_32[:31], False, False),
        (f"dead-{HEX_32}", True, False),
        (f"beef.{HEX_32[:31]}", False, False),
        (LETTERS_HEX, False, False),
        ("12345678901234567890123456789012", False, False),
        (f"runs/{HEX_32}/x1", True, False),
        (f"runs/key{HEX_32}/x1", True, True),
        (f"runs/{LETTERS_HEX}/x1", False, False),
        (f"GPU-{UUID}", False, False),
        (f"MIG-{HEX_32}", False, False),
        (f"MIG-{UUID}/3/12", False, False),
        (f"KEY-{HEX_32}", True, False),
        ("fp8.sm90a.e4m3", False, False),
    ],
)
def test_32_hexadecimal_digits_are_random_if_they_are_no_hash_and_no_device(
    word: str, random: bool, hashed: bool
) -> None:
    assert is_random(word) is random
    assert is_random(word, hashed=True) is hashed
    assert is_random(word, assigned=True) is random
