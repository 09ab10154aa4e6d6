"""Taking secrets out of what goes into a file: command lines, addresses, package lists, a diff.

A secret is known by what stands beside it (a name, a scheme, a header), by its own form (the prefixes that
services give their keys), or by being random: characters of several kinds in turns, as no word, path or number has
them. What is found is replaced by `MASK`. Where it cannot be told, a file rather lacks a word than holds a secret;
paths, numbers, hashes that are called so, and what is written in words stay.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from llmtop.random_words import is_random, is_random_whole

MASK: Final = "***"

_GLUED: Final = (
    r"password|passwd|passphrase|passcode|secrets?|credentials?|token|apikeys?|accesskeys?|secretkeys?|privatekeys?|"
    r"(?:api|access|secret|private|auth|account|license|master|encryption|signing|ssh|service|session|client|shared|"
    r"storage|admin|app|write|read|wandb|comet|neptune|openai|anthropic|hf)[-_. ]keys?(?:[-_]?id)?|accountkey|"
    r"connection[-_]?string|authorization"
)
"""Names whose value is a secret, whatever it looks like; what stands before them may be written as one word with
them (clientSecret, authToken)."""
_ALONE: Final = r"pass|pwd|sas|otp|mfa|pin|cookie|dsn|jwt|pat|bearer|webhook(?:[-_]?url)?"
"""Likewise, but other words end in them too."""
_NAME: Final = (
    r"(?<![A-Za-z0-9])(?:[A-Za-z0-9]{1,40}[-_.]){0,6}_?"
    rf"(?:[A-Za-z0-9]{{0,40}}?(?:{_GLUED})|(?<![A-Za-z0-9])(?:{_ALONE}))"
)
_SECRET_NAME: Final = re.compile(rf"[-_/:]*{_NAME}", re.IGNORECASE)
_OF_TEXT: Final = re.compile(
    r"(?:pad|eos|bos|unk|mask|sep|cls|special|image|audio|video|stop|start|end|begin|next|new|first|last|prev|per|max|"
    r"min|num|bad|add|each|by|in|out|sub|a|to)[-_]?token$",
    re.IGNORECASE,
)
"""The words of language models: no secrets."""
_WEAK_NAME: Final = re.compile(
    r"(?:^|[-_.a-z])(?:key|auth|sig|signature|login|cred|user|code|token)s?$", re.IGNORECASE
)
"""Names whose value is a secret where it has a digit or a mark among letters, and eight characters."""
_HASH_NAME: Final = re.compile(
    r"(?:commit|revision|rev|sha\d*|hash|digest|checksum|md5|etag|ref|tree|blob|uuid|guid|run[-_]?id|rdzv[-_]?id|"
    r"index|parent|merge|pick|version|snapshot|integrity)s?$",
    re.IGNORECASE,
)

_PRIVATE_KEY: Final = re.compile(
    r"-----BEGIN [A-Z0-9 ]*(?:PRIVATE KEY|CERTIFICATE|PGP MESSAGE)[A-Z ]*-----.*?"
    r"(?:-----END [A-Z0-9 ]*-----|\Z|(?=\n[+ -]?\s*(?:\n|diff --git)))",
    re.DOTALL,
)
_USERINFO: Final = re.compile(
    r"((?<![A-Za-z0-9+.-])[A-Za-z0-9+.-]{1,40}://)([^\s/@'\"<>]{1,2000}|[^\s/@:'\"<>]{0,200}:(?!\d+/)[^\s@'\"<>]{1,2000})@(?=[\w\[.-])"
)
_HEADER: Final = re.compile(
    r"(\b(?:(?:proxy-)?authorization|x-[a-z-]{0,40}(?:key|token|auth|secret)|(?:set-)?cookie|api-key|private-token)\s*:\s*)"
    r"(?!\s*(?:str|Any|Optional|None|bool|int|dict|list)\b)[^\n'\"]+",
    re.IGNORECASE,
)
_SCHEME: Final = re.compile(
    r"\b((?:bearer|basic|digest|token|apikey)\s+)(?=\S*[\d+/=_.-])[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE
)
_SHAPES: Final = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"hf_[A-Za-z0-9]{8,}|api_org_[A-Za-z0-9]{8,}|gh[pousr]_[A-Za-z0-9]{8,}|github_pat_\w{8,}|gl[a-z]{2,6}-[\w-]{10,}|"
    r"(?:sk|rk|pk)[-_][A-Za-z0-9][\w-]{7,}|(?:AKIA|ASIA|AIDA|AROA|ABIA|ACCA)[A-Z0-9]{8,}|AIza[\w-]{10,}|ya29\.[\w-]{8,}|"
    r"xox[a-z]-[\w-]{8,}|xapp-[\w-]{8,}|npm_[A-Za-z0-9]{10,}|pypi-[\w-]{10,}|dckr_\w+_[\w-]{8,}|SG\.[\w.-]{10,}|"
    r"eyJ[\w-]{10,}(?:\.[\w-]*)*|dapi[0-9a-f]{16,}|dop_v1_\w{8,}|do[or]_v1_\w{8,}|lin_api_\w{8,}|ntn_\w{8,}|secret_\w{16,}|"
    r"r8_\w{8,}|gsk_\w{8,}|xai-[\w-]{8,}|pplx-[\w-]{8,}|nvapi-[\w-]{8,}|wandb_v\d_\w{8,}|local-[0-9a-f]{40}|"
    r"fw_\w{16,}|tgp_v\d_[\w-]{8,}|key-[0-9a-f]{16,}|shp(?:at|ca|pa|ss)_[0-9a-f]{8,}|sq0\w{3}-[\w-]{8,}|"
    r"age-secret-key-\w+|AGE-SECRET-KEY-\w+|hv[sbr]\.[\w-]{8,}|op_\w{20,}|tfp_\w{8,}|PMAK-[\w-]{8,}|EAA[A-Za-z0-9]{20,}|"
    r"\d{8,10}:[A-Za-z0-9_-]{30,}"
    r")"
)
_HOOKS: Final = re.compile(
    r"((?:hooks\.slack\.com/\w+|discord(?:app)?\.com/api/webhooks|\.webhook\.office\.com/\w+)/)[^\s'\"]+"
)
_SHORT_OPTIONS: Final = re.compile(
    r"(\bsshpass\s+-p\s*|\bcurl\b[^\n|;]{0,200}?\s(?:-u|--user)[ =]\s*|"
    r"\b(?:docker|podman)\s+login\b[^\n|;]{0,200}?\s-p[ =]?\s*|"
    r"\blogin\s+\S+\s+password\s+|\bmysql\w*\b[^\n|;]{0,200}?\s-p|"
    r"\bwandb\s+login\s+(?:--relogin\s+)?|\bpass(?:in|out)?\s+pass:|"
    r"\b(?:huggingface-cli|hf)\b[^\n|;]{0,200}?\slogin\b[^\n|;]{0,200}?--token[ =])(?!-)[^\s;|&'\"]+"
)
_ASSIGNED: Final = re.compile(
    rf"({_NAME}[\"']?\]?\s*(?::\s*(?:str|bytes|SecretStr)\s*)?(?:=>|:=|=|:)(?!=)\s*[bfru]{{0,2}}|"
    rf"(?<!\w)--?{_NAME}[= ]\s*)"
    r"(?:(\"\"\"|'''|\"|')([^\"'\n]*)|([^\s\"'<>]+))",
    re.IGNORECASE | re.MULTILINE,
)
_WEAKLY_ASSIGNED: Final = re.compile(
    r"((?<![\w.-])[\w.-]{0,60}?(?:key|auth|sig|signature|login|cred|user|code)[\"']?\s{0,4}(?:=|:|\s)\s{0,4}[\"']?)"
    r"([A-Za-z0-9_\-+/=.~!@$%^*]{8,})",
    re.IGNORECASE,
)
_CODE: Final = re.compile(
    r"^(?:none|null|nil|true|false|str|bytes|int|bool|float|optional.*|self\b.*|args?\..*|os\..*|config\b.*|cfg\..*|"
    r"env\..*|settings\..*|getpass.*|input.*|\$\{?\w+\}?.*|<\w+>|\*+|\.\.\.|[a-z_][\w.]*\[.*|\{.*|\[.*|\(.*|.*\(.*|lambda.*|@.*)$",
    re.IGNORECASE,
)
"""Values that are no secrets but say where one comes from."""
_WORD: Final = re.compile(r"[A-Za-z0-9_\-+/=.~]{16,}")


def is_secret_name(name: str) -> bool:
    """Whether what is called so is a secret: "--api-key", "WANDB_API_KEY", "db.password"."""
    plain = name.strip("\"'[]: ")
    return _SECRET_NAME.fullmatch(plain) is not None and _OF_TEXT.search(plain) is None


def without_secrets(text: str) -> str:
    """A command line, an address or any other text with `MASK` in place of each secret."""
    if not text:
        return text
    text = _PRIVATE_KEY.sub(MASK, text)
    text = _USERINFO.sub(_without_userinfo, text)
    text = _HEADER.sub(rf"\1{MASK}", text)
    text = _SCHEME.sub(rf"\1{MASK}", text)
    text = _SHAPES.sub(MASK, text)
    text = _HOOKS.sub(rf"\1{MASK}", text)
    text = _SHORT_OPTIONS.sub(rf"\1{MASK}", text)
    text = _ASSIGNED.sub(_without_value, text)
    text = _WEAKLY_ASSIGNED.sub(_without_odd_value, text)
    return _WORD.sub(lambda found: _without_random(found, text), text)


def words_without_secrets(words: Sequence[str]) -> list[str]:
    """The words of a command line, likewise; a word may be a secret by the option before it."""
    found: list[str] = []
    before = ""
    for word in words:
        found.append(_word_without_secrets(word, before))
        before = word
    return found


def _word_without_secrets(word: str, before: str) -> str:
    if _is_hash_of(before, word):
        return word
    if _is_secret_after(before, word):
        return MASK
    name, is_set, value = word.partition("=")
    if is_set and value and re.fullmatch(r"[\w.-]+", name):
        if is_secret_name(name):
            return f"{name}={MASK}"
        if _is_hash_of(name, value):
            return word
    return without_secrets(word)


def _is_hash_of(name: str, value: str) -> bool:
    return _HASH_NAME.search(name) is not None and re.fullmatch(r"[0-9a-fA-F]{6,64}", value) is not None


def _is_secret_after(before: str, word: str) -> bool:
    """Whether a word is a secret because of the one before it: an option, a header, a word of netrc."""
    if before.lower() in ("password", "passwd", "token", "secret"):
        return True
    if not (before[:1] == "-" or before[-1:] == ":") or "=" in before:
        return False
    if before in ("-u", "--user"):
        return ":" in word
    return (is_secret_name(before) and not _CODE.match(word)) or (
        _WEAK_NAME.search(before) is not None and _is_odd(word)
    )


def variable_without_secrets(name: str, value: str) -> str:
    """The value of an environment variable: `MASK` where its name says that it is a secret."""
    return MASK if is_secret_name(name) else _word_without_secrets(value, "")


def _without_userinfo(found: re.Match[str]) -> str:
    user = found[2]
    return found[0] if user in ("git", "hg", "svn", "ssh", "root", "anonymous") else f"{found[1]}{MASK}@"


def _without_value(found: re.Match[str]) -> str:
    name, quote = found[1], found[2] or ""
    value = found[3] if quote else found[4]
    if _OF_TEXT.search(re.split(r"[\"'\]\s:=]", name.strip())[0]):
        return found[0]
    plain = value.strip(",;)}]:")
    if not plain or (not quote and _CODE.match(plain)) or (quote and plain.startswith(("$", "{", "<"))):
        return found[0]
    return f"{name}{quote}{MASK}"


def _without_odd_value(found: re.Match[str]) -> str:
    return f"{found[1]}{MASK}" if _is_odd(found[2]) and not _CODE.match(found[2]) else found[0]


def _is_odd(value: str) -> bool:
    """Whether it is no word, number or path: letters and digits in turns, or with marks."""
    if len(value) < 8 or "/" in value or "." in value:
        return is_random(value)
    turns = len(re.findall(r"(?<=[A-Za-z])(?=\d)|(?<=\d)(?=[A-Za-z])|(?<=[a-z])(?=[A-Z])", value))
    marks = len(re.findall(r"[!@$%^*+=~]", value))
    return turns >= 3 or marks >= 1 or is_random(value)


def _without_random(found: re.Match[str], text: str) -> str:
    word = found[0]
    hashed = _names_a_hash(text[max(0, found.start() - 40) : found.start()], word)
    if is_random_whole(word) and not hashed:
        return MASK
    parts = re.split(r"([/=.~+])", word)
    # In a path, the hash that a folder is called by stays.
    hashed = hashed or parts.count("/") > 1
    told = ""
    for part in parts:
        is_hash = hashed or _HASH_NAME.search(told[-40:].rstrip("=.:")) is not None
        told += MASK if part and is_random(part, hashed=is_hash) else part
    return told


def _names_a_hash(before: str, word: str) -> bool:
    """Whether what stands before a word, or its beginning, says that it is a hash, and so no secret."""
    if before.endswith("@") or re.match(r"(?:sha\d+|md5)[-_]", word):
        return True
    name = re.search(r"([A-Za-z_][\w-]*)[\"']?[\s:=@#(]*[\"']?$", before)
    return name is not None and _HASH_NAME.search(name[1]) is not None
