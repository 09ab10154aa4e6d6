"""The filter takes CPU time in proportion to the text, whatever the text is.

Each text is a beginning and a part that is repeated. A text of 8 times the size takes about 8 times the CPU time;
a pattern that reads the rest of the text again at each place takes 64 times. The bound lies between.
"""

from __future__ import annotations

import random
import string
import time
from collections.abc import Callable

import pytest

from llmtop.redaction.secret_filter import variable_without_secrets, without_secrets, words_without_secrets

_SMALL, _TIMES, _BOUND = 8 << 10, 8, 24
_TRIES = 3
_DRAWN = random.Random(5)

REPEATED = [
    "x://", "a=", "://", "@", ":", "-p ", '"', "'", "=", " ", "a ", "a", "key=", "\n-", "%20", "?a=b&",
    "f:", "x:x=", "a:b@", "x://a:", "http://a:b", "x-", "a/b=", "a.", "\\", "(", "a<", "token>a ", "password->b, ",
    "password='a' ", 'api_key="a",', "--token a ", "password=x,", "curl -u ", "docker login -p ", "sshpass -p",
    "-----BEGIN ", "authorization:", "name: a\nvalue: ", "dckr_a", "eyJaaaaaaaaaa.", "A1-", "\t", "\r", "\x0b",
]  # fmt: skip
BEGUN = [
    ("-----BEGIN ", "PRIVATE KEY"),
    ("-----BEGIN PRIVATE KEY-----", "\n "),
    ("-----BEGIN PRIVATE KEY-----", "\t"),
    ("authorization:", "\n"),
    ("authorization", " "),
    ("cookie: ", " \n"),
    ("bearer", " "),
    ("curl -u", " "),
    ("docker", " "),
    ("password='", '"'),
    ("password=", ","),
    ("x://u:", "1"),
    ("dckr_", "a"),
    ("dckr_", "\u00e9"),
    ("aa_key_", "a"),
    ("x -p ", "1"),
]


def _cpu_seconds(work: Callable[[], object], *, under: float | None = None) -> float:
    """Return the least CPU time of a few tries; a try that is under the bound is enough."""
    least = float("inf")
    for _ in range(_TRIES):
        begin = time.process_time()
        work()
        least = min(least, time.process_time() - begin)
        if under is not None and least < under:
            break
    return least


def _assert_linear(work: Callable[[str], object], begun: str, repeated: str) -> None:
    def text(size: int) -> str:
        return begun + repeated * (size // len(repeated))

    small, large = text(_SMALL), text(_SMALL * _TIMES)
    bound = _BOUND * max(_cpu_seconds(lambda: work(small)), 1e-3)
    assert _cpu_seconds(lambda: work(large), under=bound) < bound


@pytest.mark.parametrize("repeated", REPEATED)
def test_time_grows_with_a_repeated_text(repeated: str) -> None:
    _assert_linear(without_secrets, "", repeated)


@pytest.mark.parametrize(("begun", "repeated"), BEGUN)
def test_time_grows_with_what_follows_a_beginning(begun: str, repeated: str) -> None:
    _assert_linear(without_secrets, begun, repeated)


@pytest.mark.parametrize("kind", ["base64", "bytes", "diff"])
def test_time_grows_with_text_of_one_kind(kind: str) -> None:
    letters = string.ascii_letters + string.digits + "+/"
    texts = {
        "base64": "".join(_DRAWN.choices(letters, k=4096)),
        "bytes": _DRAWN.randbytes(4096).decode("latin-1"),
        "diff": "@@ -1,4 +1,4 @@ def step(batch):\n-    loss = model(batch['x'], lr=1e-4)\n+    url = 'a://b/c?d=e'\n",
    }
    _assert_linear(without_secrets, "", texts[kind])


@pytest.mark.parametrize("repeated", ["(", "a[", "$a", "a", "a=", "password(\n", "1"])
def test_time_grows_with_the_value_of_a_name(repeated: str) -> None:
    _assert_linear(lambda text: words_without_secrets(["--api-key", f"${text}\n\nx", text]), "", repeated)
    _assert_linear(lambda text: variable_without_secrets("API_KEY", f"{text}\n\nx"), "", repeated)
    _assert_linear(lambda text: variable_without_secrets("KEY", f"${text}\n\nx"), "", repeated)
