"""Names whose value is a secret: "--api-key", "WANDB_API_KEY", "clientSecret", "db.password", "MY_PW"."""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache
from typing import Final


class Strength(Enum):
    """Classes of values by their names."""

    SECRET = "secret"
    """The value is a secret, whatever its form."""
    LIKELY = "likely"
    """The value is a secret if it is no word, number or path."""
    UNKNOWN = "unknown"
    """The value is a secret if it is random."""
    HASH = "hash"
    """The value is a hash or an identifier; hexadecimal digits are no secret."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ANYWHERE: Final = _words(
    """
    password passwords passwd passphrase passcode passwort pswd psw pwd secret secrets credential
    credentials creds apikey apikeys accesskey secretkey privatekey authkey bearer jwt
    """
)
_LAST: Final = _words("token pass pw pin otp mfa totp sas pat dsn cookie cookies authorization webhook")
"""Secrets where nothing but such words as `_AFTER` follows: a pass, a token or a pin is also something else."""
_AFTER: Final = _words(
    """
    value text plain raw str string id url uri v prod production dev devel test staging live old new current
    default primary secondary main backup ro rw read write
    """
)
_GLUED: Final = re.compile(
    r"(?:password|passwd|passphrase|passcode|secret|apitoken|authtoken|accesstoken|usertoken|apikey|accesskey|secretkey|"
    r"privatekey|accountkey|authkey|credentials?|pwd|connectionstring|connstr|(?<!by)(?<!com)(?<!tres)(?<!sur)(?<!over)"
    r"(?<!under)(?<!en)(?<!im)(?<=[a-z]{2})pass|(?<=[a-z]{2})token|webhookurl)\d*$"
)
"""Ends of names that are written as one word."""
_KEY_OF: Final = _words(
    """
    api access secret private auth account license licence master encryption encrypt decryption signing ssh
    service session client shared storage admin app application write writekey read consumer subscription
    publishable deploy integration project rest live user
    """
)
"""A key with one of these words before it is a secret."""
_NO_VALUE: Final = _words(
    """
    file files path paths dir folder filename name names type types kind count counts len length size sizes
    limit limits index idx ids ttl expiry expires expiration env var variable field fields header headers
    prefix suffix required enabled policy manager provider class ratio rate rates budget dim dims embedding
    embeddings regex pattern patterns re list set map filter filters fn func error errors exception test
    tests fixture help prompt label s seconds minutes age format version mode scope scopes source store
    backend helper rotation parser
    """
)
"""A name that ends so names something about a secret."""
_OF_TEXT: Final = _words(
    """
    pad padding eos bos unk mask sep cls special image audio video vision stop start end begin next new
    first last prev per max min num bad add each by in out sub a to of the one every this that eot fim
    prefix suffix middle think space word char byte draft sampled generated predicted target input output
    and prompt
    """
)
"""Words before "token" where language models have theirs."""
_PASSES: Final = _words(
    """
    forward backward first second third one single two multi full by next last this each every low high band
    per extra through whole another a the warm optimizer training eval prefill decode
    """
)
_LIKELY: Final = _words(
    """
    key keys auth sig signature login cred user username code tokens access session sid salt nonce license
    licence account acct pass token pw secretid
    """
)
_ID_OF: Final = _words("client access app application account tenant key consumer api subscription")
_HASHES: Final = re.compile(
    r"(?:commit|revision|rev|sha\d*|hash|digest|checksum|md5|etag|ref|tree|blob|uuid|guid|id|index|parent|merge|pick|"
    r"version|snapshot|integrity|image|gpu|gpus|device|devices|fingerprint|branch|sum|cache|crc)s?$",
    re.IGNORECASE,
)
_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


@lru_cache(maxsize=8192)
def strength_of(name: str) -> Strength:
    """Return the class of a value by its name.

    Args:
        name: of an option, a variable, a field or a header; marks around it do not count.
    """
    words = [word.lower() for word in _WORDS.findall(name)]
    while words and words[-1].isdigit():
        words.pop()
    if not words:
        return Strength.UNKNOWN
    last = words[-1]
    if last not in _NO_VALUE and _is_secret(words):
        return Strength.SECRET
    if last in _LIKELY or (last == "id" and len(words) > 1 and words[-2] in _ID_OF):
        return Strength.UNKNOWN if last.startswith("token") and _is_of_text(words) else Strength.LIKELY
    return Strength.HASH if _HASHES.search(name.strip("-_. ")) else Strength.UNKNOWN


def _is_secret(words: list[str]) -> bool:
    if not _ANYWHERE.isdisjoint(words):
        return True
    end = len(words)
    while end > 1 and words[end - 1] in _AFTER:
        end -= 1
    before, last = words[: end - 1], words[end - 1]
    if last in ("token", "pass"):
        return not before or before[-1] not in (_OF_TEXT if last == "token" else _PASSES)
    if last in _LAST:
        return last != "pin" or not before or before[-1] not in ("to", "cpu")
    if last in ("key", "keys"):
        return not _KEY_OF.isdisjoint(before)
    if words[-2:] in (["connection", "string"], ["conn", "str"], ["conn", "string"]):
        return True
    return _GLUED.search("".join(words)) is not None and last not in ("bypass", "compass", "tokens")


def _is_of_text(words: list[str]) -> bool:
    return len(words) < 2 or words[-2] in _OF_TEXT
