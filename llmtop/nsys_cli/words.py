"""Which of an nsys's words are the reason why it failed: it prints pages of blocks around the one sentence.

Its importer prints a message of protobuf's text format, `Props { Items { Type: ErrorText  Value: "why" } }` in
several levels. What it or the exporter did not expect is an exception of Boost's: where in the source, its type,
what it is called, and a line `[tag] = value` for each thing attached to it. The last lines are brackets.
"""

from __future__ import annotations

import re

_LONGEST = 300
"""Characters of one reason: an error text may have whole events in it."""
_LINES = 3
"""Lines of the message; of single lines the last one: nsys prints the most severe last."""
_ERROR_TEXT = re.compile(r'Type: ErrorText\s+Value: "((?:[^"\\]|\\.)*)"')
_MESSAGE = re.compile(r"^\[\S*tag_message\*?\] = (.*)$", re.MULTILINE)
_WHAT = re.compile(r"^std::exception::what: (.*)$", re.MULTILINE)
_TYPE = re.compile(r"^\s*Type: (\w*Error|Invalid\w*|\w+Exception)$", re.MULTILINE)
_BLOCK = re.compile(
    r"""\w+\s*\{ | [{}]+ | (?:Type|Value|Status):\ .* | \[\S+\]\ =.*
    | Dynamic\ exception\ type:.* | std::exception::what:.* | \*{4}\ .*
    | \[\d+/\d+\].* | Generat.* | Processing.* | Importing\.\.\.
    """,
    re.VERBOSE,
)


def is_launcher_timeout(output: str) -> bool:
    """Return whether `nsys launch` ended because its launcher was not ready in time, as on a busy machine.

    nsys 2023.4.4 tries five times in 0.5 s to open a semaphore that the launcher makes. The program that it was to
    start has not begun then.
    """
    return "ProcessWaiter" in output


def failure_reason(said: str) -> str | None:
    """Return why it failed, in one line; None without a usable message.

    Args:
        said: its whole output.
    """
    text = said.replace("\r", "\n")
    errors = [_unescape(error) for error in _ERROR_TEXT.findall(text)]
    inner = (_exception_text(errors[-1]) or errors[-1].partition("\n")[0]) if errors else _exception_text(text)
    plain = [_readable_line(line.strip()) for line in _ERROR_TEXT.sub("", text).splitlines()]
    words = [*[line for line in plain if line][-_LINES:], inner.rstrip(" :")]
    found = "; ".join(dict.fromkeys(" ".join(word.split()) for word in words if word))
    found = found or "; ".join(_TYPE.findall(text))
    if len(found) > _LONGEST:
        return f"{found[: _LONGEST - 1]}…"
    return found or None


def _readable_line(line: str) -> str:
    """Return the line without what stands in NVIDIA's source; empty where it is part of a block, or no words."""
    before, thrown, _ = line.partition(": Throw in ")
    if thrown:
        return before.rpartition(" ")[0].rstrip(": ")
    return "" if _BLOCK.fullmatch(line) or not re.search(r"\w", line) else line


def _exception_text(text: str) -> str:
    """Return the text of the last exception in nsys's output, or its name."""
    found = _MESSAGE.findall(text) or _WHAT.findall(text)
    return str(found[-1]) if found else ""


def _unescape(value: str) -> str:
    r"""Return a quoted value as it was before `\n` and `\"` were put into it."""
    return re.sub(r"\\(.)", lambda match: "\n" if match[1] == "n" else match[1], value)
