"""Whole texts after the filter: what is replaced, and that nothing beside it changes."""

from __future__ import annotations

import pytest

from llmtop.redaction.secret_filter import (
    MASK,
    is_secret_name,
    variable_without_secrets,
    without_known_secrets,
    without_secrets,
    words_without_secrets,
)

HEX_40 = "9fceb02d0ae598e95dc970b74767f19372d61af8"
HEX_PAIR = "deadbeef1:cafebabe2"
LONG_PAIR = "a1" * 49 + "b:" + "c2" * 49 + "d"
"""199 characters."""

TEXTS = [
    ("", ""),
    ('password="hunter two" x', 'password="***" x'),
    ("password='a\"b' x", "password='***' x"),
    ("password=`a b` x", "password=`***` x"),
    ("password=abc, x", "password=***, x"),
    ("f(password=abc) x", "f(password=***) x"),
    ("a https://h/?token=abc&a=1", "a https://h/?token=***&a=1"),
    ('password="abc\\n" x', 'password="***\\n" x'),
    ('password="a token=b" api_key=xyz', 'password="***" api_key=***'),
    ("x = 1\npassword = abc\ny = 2", "x = 1\npassword = ***\ny = 2"),
    ('{"password": "a", "lr": 1, "api_key": "b"}', '{"password": "***", "lr": 1, "api_key": "***"}'),
    ('password=""', 'password=""'),
    ("password='', x", "password='', x"),
    ('password="", api_key="b"', 'password="", api_key="***"'),
    # Numbers of tokens are short.
    ("token: 12345", "token: 12345"),
    ("token: 123456", "token: ***"),
    ("password: 1234", "password: ***"),
    # Values that stand for another one, or name its source.
    ("password=$X --api-key ${Y}", "password=$X --api-key ${Y}"),
    ("password=<pw> x", "password=<pw> x"),
    ("password=xxx", "password=xxx"),
    ("password=xx", "password=***"),
    ("password = None", "password = None"),
    ("password = os.environ[key]", "password = os.environ[key]"),
    ('password = "none"', 'password = "***"'),
    # A blank follows options alone.
    ("the password abc is", "the password abc is"),
    ("x --password abc y", "x --password *** y"),
    ("x -password abcdefgh y", "x -password abcdefgh y"),
    ("x -password ab12cd34 y", "x -password *** y"),
    ("password: password2", "password: password2"),
    ("x --password password2", "x --password ***"),
    # Sentences.
    ("password: see the wiki", "password: see the wiki"),
    ("password: see", "password: ***"),
    ("password: see2 the wiki", "password: *** the wiki"),
    ("password = see the wiki", "password = *** the wiki"),
    (f"password: {'a' * 78} b", f"password: {'a' * 78} b"),  # the first 80 characters are judged
    (f"password: {'a' * 79} b", "password: *** b"),
    # Operators that stand between other things too.
    ('password -> "ab12cd34"', 'password -> "***"'),
    ('password -> "abcdefgh"', 'password -> "abcdefgh"'),
    ('password -> "ab12=cd34x9"', 'password -> "ab12=cd34x9"'),
    ('"password", "ab12=cd34x9"', '"password", "***"'),
    ("<password>hunter</password>", "<password>***</password>"),
    ("<password>hunter<password>", "<password>hunter<password>"),
    ('model -> "pft75v2seh60kv"', 'model -> "***"'),
    # Values of names that tell nothing.
    ("model=953qdcadafyttk x", "model=*** x"),
    ("model=wgodox1kye0mut x", "model=wgodox1kye0mut x"),
    (f"model={HEX_PAIR}", "model=***"),
    (f"model={LONG_PAIR}", "model=***"),
    (f"model={LONG_PAIR}d", f"model={LONG_PAIR}d"),
    # Values that are no word, number or path.
    ("login: ab12cd3", "login: ab12cd3"),
    ("login: ab12cd34", "login: ***"),
    ("login: abcdefgh", "login: abcdefgh"),
    ("login: abcdefg!", "login: ***"),
    ("login=abcdefg=", "login=***"),
    ("login: aBcDeFgh", "login: ***"),
    ("login: aBcDefgh", "login: aBcDefgh"),
    ("login: 12345678901234", "login: ***"),
    ("login: 1234567890123", "login: 1234567890123"),
    ("login: ab12.cd34", "login: ab12.cd34"),
    ("login: ab/12cd34", "login: ab/12cd34"),
    # Users of addresses.
    ("https://bob@host.org/x", "https://***@host.org/x"),
    ("ssh://git@host.org/x", "ssh://git@host.org/x"),
    ("https://root@host.org/x https://rooty@host.org/x", "https://root@host.org/x https://***@host.org/x"),
    ("https://git:pw@host.org/x", "https://***@host.org/x"),
    # The option -p of unknown programs.
    ("x -p hunter2 y", "x -p *** y"),
    ("-p hunter2", "-p ***"),
    ("y\n-p hunter2", "y\n-p ***"),
    ("x -p=hunter2 y", "x -p=*** y"),
    ("x -p 8080:80 y", "x -p 8080:80 y"),
    ("x -p a/b y", "x -p a/b y"),
    ("mkdir -p hunter2\nx -p hunter2", "mkdir -p hunter2\nx -p ***"),
    # Names and values apart.
    ("name: API_KEY\n  value: abc", "name: API_KEY\n  value: ***"),
    ("name: MODEL\n  value: abc", "name: MODEL\n  value: abc"),
    ("machine a.org\n  login u\n  password hunter\n", "machine a.org\n  login u\n  password ***\n"),
    ("Authorization: Basic x", "Authorization: ***"),
    ("bearer abcdefg1", "bearer ***"),
    # Hashes.
    (f"x {HEX_40} y", "x *** y"),
    (f"commit{' ' * 34}{HEX_40}", f"commit{' ' * 34}{HEX_40}"),
    (f"commit{' ' * 35}{HEX_40}", f"commit{' ' * 35}***"),
    (f"x commit {HEX_40} y", f"x commit {HEX_40} y"),
    (f"x runs/{HEX_40}", "x runs/***"),
    (f"x a/runs/{HEX_40}", f"x a/runs/{HEX_40}"),
    (f"x image@{HEX_40}", f"x image@{HEX_40}"),
    (f"x sha1-{HEX_40}", f"x sha1-{HEX_40}"),
    (f"x 15a23dc..{HEX_40}", f"x 15a23dc..{HEX_40}"),
    (f"x 15a23..{HEX_40}", "x ***"),
    (f"x hash/{HEX_40}", f"x hash/{HEX_40}"),
    (f"x commit={HEX_40}/model/abcdefghijkl", f"x commit={HEX_40}/model/abcdefghijkl"),
    # Random words, alone.
    ("x zx2vdJ7XQZza y", "x *** y"),
    ("x zx2vdJ7XQZz y", "x zx2vdJ7XQZz y"),
    ("x a/b/zx2vdJ7XQZza/c/d y", "x a/b/***/c/d y"),
    ("x LTHEsLKo9NsWP/eDeuBB8/SOGp7C4aun y", "x *** y"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "filtered"), TEXTS)
def test_the_value_alone_is_replaced(text: str, filtered: str) -> None:
    assert without_secrets(text) == filtered


def test_what_is_filtered_stays_when_it_is_filtered_again() -> None:
    assert [without_secrets(filtered) for _, filtered in TEXTS] == [filtered for _, filtered in TEXTS]


@pytest.mark.parametrize(
    ("words", "filtered"),
    [
        ("x -p hunter2", "x -p ***"),
        ("x -p 8080", "x -p 8080"),
        ("mkdir -p hunter2", "mkdir -p hunter2"),
        ("a b c d e f g mkdir -p hunter2", "a b c d e f g mkdir -p hunter2"),
        ("a b c d e f g h mkdir -p hunter2", "a b c d e f g h mkdir -p ***"),
        ("x HF_TOKEN=abc y", "x HF_TOKEN=*** y"),
        ("x HF_TOKEN= y", "x HF_TOKEN= y"),
        ("x HF_TOKEN=$X y", "x HF_TOKEN=$X y"),
        (f"x revision={HEX_40}", f"x revision={HEX_40}"),
        (f"x --model {HEX_40}", "x --model ***"),
        (f"x --revision {HEX_40}", f"x --revision {HEX_40}"),
        (f"x --sha256 {HEX_40}{HEX_40[:24]}", f"x --sha256 {HEX_40}{HEX_40[:24]}"),
        (f"x --sha256 {HEX_40}{HEX_40[:25]}", "x --sha256 ***"),
        ("machine a login u password hunter", "machine a login u password ***"),
        ("x Token abc", "x Token ***"),
        ("x secret abc", "x secret ***"),
        ("x api_key abc", "x api_key abc"),
        ("x --api_key abc", "x --api_key ***"),
        ("x Api-Key: abc", "x Api-Key: ***"),
        ("x --api-key=abc def", "x --api-key=*** def"),
        ("x --api-key --lr 1", "x --api-key --lr 1"),
        ("x --api-key -abc 1", "x --api-key *** 1"),
        ("x -u me:pa55 y", "x -u *** y"),
        ("x --user me:pa55 y", "x --user *** y"),
        ("x -u me y", "x -u me y"),
        ("x --login ab12cd34 y", "x --login *** y"),
        ("x --login abcdefgh y", "x --login abcdefgh y"),
        ("x --api-key None y", "x --api-key None y"),
        ("x --api-key cfg.zx2vdJ7XQZza y", "x --api-key *** y"),
        ("x --model 953qdcadafyttk y", "x --model *** y"),
        ("x --model wgodox1kye0mut y", "x --model wgodox1kye0mut y"),
        (f"x --model {HEX_PAIR} y", "x --model *** y"),
        ("x --model a/953qdcadafyttk/b y", "x --model a/953qdcadafyttk/b y"),
        ("x --model ./953qdcadafyttk y", "x --model ./953qdcadafyttk y"),
    ],
)  # fmt: skip
def test_words_of_a_command_line_are_filtered_one_by_one(words: str, filtered: str) -> None:
    assert words_without_secrets(words.split(" ")) == filtered.split(" ")


@pytest.mark.parametrize(("blanks", "is_seen"), [(194, True), (195, False)])
def test_a_program_is_known_by_the_first_200_characters_of_a_word(blanks: int, is_seen: bool) -> None:
    word = "a" * blanks + "/mkdir"
    assert words_without_secrets([word, "-p", "hunter2"])[2] == ("hunter2" if is_seen else MASK)


@pytest.mark.parametrize(
    ("name", "value", "filtered"),
    [
        ("API_KEY", "abc", MASK),
        ("API_KEY", "", ""),
        ("API_KEY", '""', '""'),
        ("API_KEY", "***", "***"),
        ("API_KEY", "None", "None"),
        ("API_KEY", "(x", "(x"),
        ("API_KEY", "(\nx", MASK),
        ("API_KEY", '"abc"', MASK),
        ("LOGIN", "ab12cd34", MASK),
        ("LOGIN", "ab12cd3", "ab12cd3"),
        ("LOGIN", "$ab12cd34", "$ab12cd34"),
        ("LR", "1e-4", "1e-4"),
        ("LR", "953qdcadafyttk);", MASK),
        ("LR", "a 953qdcadafyttk", "a 953qdcadafyttk"),
        ("LR", LONG_PAIR, MASK),
        ("LR", f"{LONG_PAIR}d", f"{LONG_PAIR}d"),
        ("REVISION", HEX_40, MASK),
    ],
)
def test_a_variable_is_judged_by_its_name_and_its_value(name: str, value: str, filtered: str) -> None:
    assert variable_without_secrets(name, value) == filtered


def test_random_words_stay_in_a_sentence_that_names_files() -> None:
    assert (
        without_known_secrets(f"{HEX_40} in zx2vdJ7XQZza, password=abc")
        == f"{HEX_40} in zx2vdJ7XQZza, password=***"
    )
    assert without_known_secrets("") == ""


@pytest.mark.parametrize(("name", "is_secret"), [("--api-key", True), ("login", False), ("lr", False)])
def test_only_names_of_certain_secrets_are_secret_names(name: str, is_secret: bool) -> None:
    assert is_secret_name(name) is is_secret
