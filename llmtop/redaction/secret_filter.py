"""Taking secrets out of what goes into a file: command lines, addresses, package lists, a diff.

A secret is known by what stands beside it (a name, a scheme, a header), by its own form (the prefixes that
services give their keys), or by being random: pairs of letters and digits that no word, path or number has. What
is found is replaced by `MASK`. In doubt a word is removed rather than a secret kept; paths, numbers, hashes that
are called so, and what is written in words stay. Each pattern takes time in proportion to the text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from llmtop.redaction.random_words import HEX_LEAST, is_random
from llmtop.redaction.secret_names import Strength, strength_of

MASK: Final = "***"
_EXAMINED: Final = 200
"""Characters of a value by which it is judged."""
_WEAK_OPERATORS: Final = (",", ">", "->", "||", "!=", "==")
"""Operators that stand between other things too than a name and its value."""

_PRIVATE_KEY: Final = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,60}(?:PRIVATE KEY|CERTIFICATE|PGP MESSAGE)[A-Z ]{0,40}-----.*?"
    r"(?:-----END [A-Z0-9 ]*-----|\Z|(?=\n[+ -]?\s*(?:\n|diff --git)))",
    re.DOTALL,
)
_USERINFO: Final = re.compile(
    r"((?<![A-Za-z0-9+.-])(?:[A-Za-z0-9+.-]{1,40}://|(?:https?|ftp):/))([^\s/@'\"<>]{1,400}|[^\s/@:'\"<>]{0,200}:(?!\d+/)[^\s@'\"<>]{1,400})@(?=[\w\[.-])"
)
_HEADER: Final = re.compile(
    r"(\b(?:(?:proxy-)?authorization|x-[a-z-]{0,40}(?:key|token|auth|secret)|(?:set-)?cookie|api-key|private-token)\s{0,40}:\s{0,40})"
    r"(?!\s{0,40}(?:str|Any|Optional|None|bool|int|dict|list)\b)[^\n'\"]+",
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
    r"\d{8,10}:[A-Za-z0-9_-]{30,}|"
    r"[A-Za-z]{2,12}[_-](?:live|test|prod|sandbox|oauth|pat|aat|tkn|pw|sk|pk|rk|key|secret|token|api|LIVE|TEST|PROD|API)"
    r"[_-](?=[A-Za-z]*\d[A-Za-z]*\d)[A-Za-z0-9]{12,}"
    r")"
)
_HOOKS: Final = re.compile(
    r"((?:hooks\.slack\.com/\w+|discord(?:app)?\.com/api/webhooks|\.webhook\.office\.com/\w+)/)[^\s'\"]+"
)
_SHORT_OPTIONS: Final = re.compile(
    r"(\bsshpass\s+-p\s*|\bcurl\b[^\n|;]{0,200}?\s(?:-u|--user)[ =]\s*|"
    r"\b(?:docker|podman)\s+login\b[^\n|;]{0,200}?\s-p[ =]?\s*|"
    r"\blogin\s+\S+\s+password\s+|\bmysql\w*\b[^\n|;]{0,200}?\s-p|"
    r"\bwandb\s+login\s+(?:--relogin\s+)?|\bpass(?:in|out)?\s+pass:)"
    r"(?!-)[^\s;|&'\"]+"
)
_OPERATOR: Final = r":[ \t]{0,2}[A-Za-z_][\w.|\[\] ]{0,40}=(?![=~])|[:+?|]{1,3}=|={1,3}>?|!=|:{1,3}|\|\||->|>|,"
"""Between a name and its value: "name: str = value", "name := value", "name => value", "name", "value"."""
_ASSIGNMENT: Final = re.compile(
    r"(?<![\w.-])(?P<name>-{0,3}[A-Za-z0-9_][\w.-]{0,99}(?<![.]))"
    rf"(?:(?P<close>[\\\"'`)\] \t.]{{0,8}})(?P<operator>{_OPERATOR})[ \t=]{{0,6}}|"
    r"(?P<gap>[ \t]{1,4})(?=[^\s=:>,|-]))"
    r"(?P<prefix>(?:[bBfFrRuU]{1,2}(?=[\"']))?)(?P<open>[\\\"'`=(\[ \t]{0,6})"
)
_QUOTED: Final = {quote: re.compile(rf"[^\n{quote}]*") for quote in "\"'`"}
_UNQUOTED: Final = re.compile(r"(?:[^\s\"'`<>&;,]|[&;,](?![\w.-]{1,60}=)(?=[^\s\"'`<>]))+")
_PLAIN_VALUE: Final = re.compile(r"(?!/)(?:[\w.~+/@%:-]|=(?!\w{1,3}=)){12,200}")
"""A value that may be random."""
_HAS_TEXT: Final = re.compile(r"\w")
_EMPTY: Final = ('""', "''")
_AFTER_EMPTY: Final = tuple(",;:)]} ")
_ESCAPED_END: Final = re.compile(r"(?:\\[nrt]?){1,4}$")
_PROSE: Final = re.compile(r"[a-z]+(?:'s)?[.,;]?[ \t]+(?:[a-z]+\b|`)")
"""A word that other words follow."""
_PLACEHOLDER: Final = re.compile(
    r"\$|\*+$|\.{3}|<|%[sr]|…|(?:x{3,}|X{1,8}|VALUE|TOKEN|PASSWORD|SECRET|KEY|STRING|FILE|TEXT|NAME)$|\{\w*[}]?|"
    r"(?:Bearer|Basic|Token)[ ](?:\{|\$|%|<|\*)"
)
_NAMED_VALUE: Final = re.compile(
    r"((?:name|key)[\"']?[ \t]{0,3}[:=][ \t]{0,3}[\"']?([\w.-]{1,80})[\"']?,?\s{1,3}[+-]?[ \t]{0,40}[\"']?"
    r"value[\"']?"
    r"[ \t]{0,3}[:=][ \t]{0,3}[\"']?)([^\s\"'<>]+)",
    re.IGNORECASE,
)
"""Elements of XML and of Kubernetes: a name, and its value beside or below."""
_SPREAD_VALUES: Final = (
    re.compile(
        r"(\b(?:setdefault|setenv|putenv)\(\s{0,40}[\"']([\w.-]{1,80})[\"'],\s{0,40}[\"'])([^\"'\n]+)",
    ),
    re.compile(
        r"(\b(?:add_argument|option)\(\s{0,40}(?:[\"']-\w[\"'],\s{1,4})?[\"']([\w.-]{1,80})[\"'],\s{0,40}"
        r"(?:[+-]?\s{0,40}\w{1,20}\s?=\s?[\w.]{1,40},\s{0,40}){0,4}default\s?=\s?[\"'])([^\"'\n]+)"
    ),
    re.compile(r"((?<![\w.-])([\w.-]{1,80})[ \t]?=[ \t]?\([ \t]*\n[+ -]?[ \t]{0,60}[bfr]?[\"'])([^\"'\n]+)"),
    re.compile(r"((?:^|\n)[+ -]?[ \t]{0,60}(password|passwd)[ \t]{1,20})([^\s=:,]+)(?=[ \t]*(?:\n|\Z))"),
)
"""A variable and its default, an option and its default, a value on the next line, a line of netrc: before, name,
value."""
_CODE: Final = re.compile(
    r"^(?:none|null|nil|true|false|str|bytes|int|bool|float|optional.*|self\b.*|args?\..*|os\..*|config\b.*|cfg\..*|"
    r"env\..*|settings\..*|getpass.*|input.*|\$\{?\w+\}?.*|<\w+>|\*+|\.\.\.|[a-z_][\w.]*\[.*|\{.*|\[.*|\(.*|.*\(.*|lambda.*|@.*)$",
    re.IGNORECASE,
)
"""Values that are no secrets but say where one comes from."""
_WORD: Final = re.compile(r"[A-Za-z0-9_\-+/=.~]{12,}")
_LONG_HEX: Final = re.compile(rf"[0-9a-f]{{{HEX_LEAST},}}", re.IGNORECASE)
_HEX_PAIR: Final = re.compile(r"(?=[0-9]*[a-f])(?=[0-9a-f]*:[0-9]*[a-f])[0-9a-f]{8,}:[0-9a-f]{8,}")
"""A user and a password of hexadecimal digits."""
_PASSWORD_OPTION: Final = re.compile(r"(?<!\S)(-p[ \t=])(?![-=])([^\s;|&]+)")
_NO_PASSWORD_OPTION: Final = re.compile(
    r"\b(?:mkdir|ssh|scp|srun|sbatch|salloc|squeue|sinfo|scontrol|sacct|pytest|cp|docker|podman|patch|llmtop|grep|ps|perf|"
    r"rsync|git|tar|unzip|read|make|gdb|strace|py-spy|tmux|"
    r"sudo|su|lsof|kill|test|time|install|pip|python\d?[ ]-p)\b"
)
"""Programs whose -p is no password."""
_NO_PASSWORD: Final = re.compile(r"[\d:.,x-]*$|[/.~$]|.*[:/\\]")
"""Ports, paths, plug-ins and what a variable holds."""


def is_secret_name(name: str) -> bool:
    """Return True if what is called so is a secret: "--api-key", "WANDB_API_KEY", "db.password"."""
    return strength_of(name) is Strength.SECRET


def without_secrets(text: str) -> str:
    """Return a command line, an address or any other text with `MASK` in place of each secret."""
    known = without_known_secrets(text)
    return _WORD.sub(lambda found: _without_random(found, known), known)


def without_known_secrets(text: str) -> str:
    """Return a sentence with `MASK` in place of what a name or a form says to be a secret; names of files stay."""
    if not text:
        return text
    text = _PRIVATE_KEY.sub(MASK, text)
    text = _USERINFO.sub(_without_userinfo, text)
    text = _HEADER.sub(rf"\1{MASK}", text)
    text = _SCHEME.sub(rf"\1{MASK}", text)
    text = _SHAPES.sub(MASK, text)
    text = _HOOKS.sub(rf"\1{MASK}", text)
    text = _SHORT_OPTIONS.sub(rf"\1{MASK}", text)
    for pattern in (_NAMED_VALUE, *_SPREAD_VALUES):
        text = pattern.sub(_without_named_value, text)
    text = _without_assigned(text)
    if "-p" in text:
        text = "\n".join(map(_without_password_option, text.split("\n")))
    return text


def words_without_secrets(words: Sequence[str]) -> list[str]:
    """Return the words of a command line, likewise; a word may be a secret by the option before it."""
    found: list[str] = []
    before = ""
    others = _NO_PASSWORD_OPTION.search(" ".join(word[:200] for word in words[:8])) is not None
    for word in words:
        if before == "-p" and not others and not _NO_PASSWORD.match(word):
            found.append(MASK)
        else:
            found.append(_word_without_secrets(word, before))
        before = word
    return found


def variable_without_secrets(name: str, value: str) -> str:
    """Return the value of an environment variable; `MASK` where its name marks a secret."""
    return MASK if _is_secret(name, value) else without_secrets(value)


def _word_without_secrets(word: str, before: str) -> str:
    if _is_secret_after(before, word):
        return MASK
    name, is_set, value = word.partition("=")
    if is_set and value and re.fullmatch(r"[\w.-]+", name):
        if _is_secret(name, value):
            return f"{name}={MASK}"
        if strength_of(name) is Strength.HASH and _is_hash(value):
            return word
    elif strength_of(before) is Strength.HASH and _is_hash(word):
        return word
    return without_secrets(word)


def _is_hash(value: str) -> bool:
    return re.fullmatch(r"[0-9a-fA-F-]{6,64}", value) is not None


def _is_secret_after(before: str, word: str) -> bool:
    """Return True if a word is a secret because of the one before it: an option, a header, a word of netrc."""
    if before.lower() in ("password", "passwd", "token", "secret"):
        return True
    if not (before[:1] == "-" or before[-1:] == ":") or "=" in before:
        return False
    if before in ("-u", "--user"):
        return ":" in word
    return not word.startswith("--") and _is_secret(before, word)


def _is_secret(name: str, value: str) -> bool:
    """Return True if the whole value of a name, an option or a field is a secret."""
    strength = strength_of(name)
    plain = value.strip("\"'")
    if not plain or plain == MASK:
        return False
    if strength is Strength.SECRET:
        return not _is_code(plain) or is_random(plain, assigned=True)
    if strength is Strength.LIKELY:
        return _is_odd(plain) and not _is_code(plain)
    return _is_value_random(strength, plain)


def _is_code(value: str) -> bool:
    """Return True if a value names the source of a secret; the pattern is linear in text of one line alone."""
    return "\n" not in value and _CODE.match(value) is not None


def _is_value_random(strength: Strength, value: str) -> bool:
    value = value.rstrip(" ;,.)")
    if len(value) >= _EXAMINED or re.search(r"\s|^[/.~]|/.*/", value):
        return False
    return _HEX_PAIR.fullmatch(value) is not None or is_random(
        value, hashed=strength is Strength.HASH, assigned=True
    )


def _without_assigned(text: str) -> str:
    """Replace the values of names: `name = "value"`, `--name value`, `"name": "value"`, `name=value&`."""
    done, kept = 0, []
    for found in _ASSIGNMENT.finditer(text):
        if found.start() < done:
            continue
        start = found.end()
        if strength_of(found["name"]) in (Strength.SECRET, Strength.LIKELY):
            value = _value_at(text, start, _quote(found), start + _EXAMINED)
        else:
            plain = _PLAIN_VALUE.match(text, start)
            value = "" if plain is None or len(plain[0].rstrip(".")) >= _EXAMINED else plain[0]
        if _HAS_TEXT.search(value) and _is_assigned_secret(found, value, text):
            value = max(value, _value_at(text, start, _quote(found), len(text)), key=len)
            kept += [text[done:start], MASK]
            done = start + len(value)
    return "".join([*kept, text[done:]]) if kept else text


def _quote(found: re.Match[str]) -> str:
    return found["open"].strip(" \t([=\\")[-1:]


def _value_at(text: str, start: int, quote: str, end: int) -> str:
    """Return the value that begins at a place: up to the closing quote, or up to a blank where there is none."""
    if quote:
        quoted = _QUOTED[quote].match(text, start, end)
        return "" if quoted is None else _ESCAPED_END.sub("", quoted[0])
    found = _UNQUOTED.match(text, start, min(len(text), end))
    return found[0].rstrip(",;)}]") if found is not None else ""


def _is_assigned_secret(found: re.Match[str], value: str, text: str) -> bool:  # noqa: PLR0911  one return a rule
    name, operator, quote = found["name"], found["operator"] or "", _quote(found)
    strength = strength_of(name)
    if _PLACEHOLDER.match(value) or (not quote and _CODE.match(value)):
        return False
    if not operator and not name.startswith("-"):
        return False  # a blank alone follows options; words of prose have it too
    if found["open"].strip() in _EMPTY and value[:1] in _AFTER_EMPTY:
        return False
    is_weak = operator in _WEAK_OPERATORS
    if is_weak and (operator != "," or not quote) and re.search(r"[=(){}]|::", value):
        return False
    if strength is not Strength.SECRET:
        return _is_value_random(strength, value) if is_weak else _is_secret(name, value)
    if is_weak or (not operator and not name.startswith("--")):
        is_closed = operator == ">" and text.startswith("</", found.end() + len(value))
        return is_closed or _is_odd(value)
    is_option = name.startswith("-")  # what follows an option is a value, whatever its words
    if not quote and not is_option and (is_secret_name(value) or _is_prose(found, value, text)):
        return False
    return not (value.isdigit() and len(value) < 6 and "token" in name.lower())


def _is_prose(found: re.Match[str], value: str, text: str) -> bool:
    """Return True if a name and a colon stand in a sentence."""
    if found["operator"] != ":" or not value.strip(".,;'`").isalpha():
        return False
    return _PROSE.match(text, found.end(), found.end() + 80) is not None


def _without_named_value(found: re.Match[str]) -> str:
    return f"{found[1]}{MASK}" if _is_secret(found[2], found[3]) else found[0]


def _without_password_option(line: str) -> str:
    if "-p" not in line or _NO_PASSWORD_OPTION.search(line):
        return line
    return _PASSWORD_OPTION.sub(
        lambda found: found[0] if _NO_PASSWORD.match(found[2]) else f"{found[1]}{MASK}", line
    )


def _without_userinfo(found: re.Match[str]) -> str:
    user = found[2]
    return found[0] if user in ("git", "hg", "svn", "ssh", "root", "anonymous") else f"{found[1]}{MASK}@"


def _is_odd(value: str) -> bool:
    """Return True if it is no word, number or path: letters and digits in turns, or with marks."""
    if len(value) < 8:
        return False
    if is_random(value, assigned=True) or re.fullmatch(r"\d{14,}", value) or _HEX_PAIR.fullmatch(value):
        return True
    if "/" in value or "." in value or " " in value:
        return False
    turns = len(re.findall(r"(?<=[A-Za-z])(?=\d)|(?<=\d)(?=[A-Za-z])|(?<=[a-z])(?=[A-Z])", value))
    return turns >= 3 or re.search(r"[!@$%^~?]|.=$", value) is not None


def _without_random(found: re.Match[str], text: str) -> str:
    word = found[0]
    hashed = _names_a_hash(text[max(0, found.start() - 40) : found.start()], word)
    parts = re.split(r"([/=])", word)
    if not hashed and parts.count("/") + parts.count("=") <= 3 and is_random(word.strip("=")) and _is_base64(word):
        return MASK
    # In a path, the hash that a folder is called by stays.
    hashed = hashed or parts.count("/") > 1
    kept = ""
    for part in parts:
        is_hash = hashed or (kept != "" and strength_of(kept[-40:].rstrip("=/")) is Strength.HASH)
        kept += MASK if part and is_random(part, hashed=is_hash) else part
    return kept


def _is_base64(word: str) -> bool:
    """Return True if it is one piece of base64: no name with its value, no path of words or with a hash in it."""
    if "=" in word.rstrip("=") or any(map(_LONG_HEX.fullmatch, word.split("/"))):
        return False
    words = re.findall(r"[A-Z]?[a-z]{4,}|[A-Z]{4,}", word)
    return re.search(r"[-._~]", word) is None and sum(map(len, words)) <= 0.5 * len(word)


def _names_a_hash(before: str, word: str) -> bool:
    """Return True if the text before a word, or its beginning, marks it as a hash, and so as no secret."""
    if before.endswith("@") or re.match(r"(?:sha\d+|md5)[-_]", word) or re.match(r"[0-9a-f]{6,40}\.\.", word):
        return True
    name = re.search(r"([A-Za-z_][\w-]*)[\"']?[\s:=@#(]*[\"']?$", before)
    return name is not None and strength_of(name[1]) is Strength.HASH
