"""How numbers and names are written, on every output. An absent value is `DASH`, never 0.

Each function returns plain text that a terminal can show: no control character passes.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Mapping
from functools import lru_cache

TYPE_CHECKING = False  # loading typing would take a training's Python some milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

DASH = "–"
PIDS_APART = 10_000_000
"""Above any pid: added to the pid of a process where an earlier file has another process of that pid (ranks in
containers), once for each file before it."""
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_RATES = ("B", "kB", "MB", "GB", "TB", "PB")
_DECIMAL = ("", "k", "M", "G", "T", "P")
_FLOPS = tuple(f"{prefix}FLOP" for prefix in _DECIMAL)
_FEW_FLOPS = 1e11
"""FLOP/s from which a rate has the unit of datasheets, TFLOP/s."""
_OBEYED = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
_TEXTS_KEPT = 256
"""Numbers whose text is kept, for each way to write them."""
_STYLES = re.compile("(\x1b\\[[0-9;]*m)")


def _absent(value: float | None) -> bool:
    try:
        return value is None or not math.isfinite(value)
    except OverflowError:  # a whole number beyond any float, as only a damaged file has
        return True


def number(value: float | None, digits: int = 0, unit: str = "") -> str:
    """`value` with so many decimals and the unit after it ("98%", "1980 MHz" for unit " MHz")."""
    return _number_text(value, digits, unit)


# A frame of the screen has a hundred numbers, most of them as in the frame before.
@lru_cache(maxsize=_TEXTS_KEPT, typed=True)
def _number_text(value: float | None, digits: int, unit: str) -> str:
    try:  # as `_absent`, without its call: a frame of the screen has a hundred numbers
        if value is None or not math.isfinite(value):
            return DASH
    except OverflowError:
        return DASH
    return f"{round(value, digits) + 0.0:.{digits}f}{unit}"  # + 0.0: a driver's -0.0 is no "-0"


def figure(value: float | None) -> str:
    """Return a number without a unit, with four significant digits."""
    return DASH if value is None or _absent(value) else plain(value, 4)


def plain(value: float, digits: int) -> str:
    """Return a number with so many significant digits, never in scientific notation: "100" where %.2g gives
    "1e+02"."""
    text = f"{value + 0.0:.{digits}g}"
    if "e" not in text:  # nor are inf and nan such numbers
        return text
    rounded = float(text)
    if math.isinf(rounded):  # the last numbers before infinity are rounded to it
        rounded = value
    return f"{rounded:.{max(0, digits - 1 - math.floor(math.log10(abs(rounded))))}f}"


def percent(value: float | None, digits: int = 0) -> str:
    """Return a value that is in percent already, in a table cell, on an axis or beside a label: "94%"."""
    return number(value, digits, "%")


def percent_text(value: float | None, digits: int = 0) -> str:
    """Return a value that is in percent already, in a sentence: "94 %"."""
    return number(value, digits, " %")


def watts(value: float | None) -> str:
    """Return a power in whole watts: "686 W"."""
    return number(value, 0, " W")


def size(value: float | None) -> str:
    """Bytes in binary units with three significant digits: "79.6 GiB"."""
    return _scale_text(value, 1024.0, _BINARY, " ")


def short_rate(value: float | None) -> str:
    """Bytes per second in decimal units in at most four cells: "1.2G", "12G", "999M"; for tables."""
    if value is None or _absent(value):
        return DASH
    units = ("", "k", "M", "G", "T", "P")
    amount, step = abs(value), 0
    while step < len(units) - 1 and amount >= 999.5:
        amount, step = amount / 1000.0, step + 1
    digits = 1 if step and amount < 9.95 else 0
    return f"{amount:.{digits}f}{units[step]}"


def rate(value: float | None) -> str:
    """Bytes per second in decimal units, as links and disks are rated: "55.9 GB/s"."""
    text = _scale_text(value, 1000.0, _RATES, " ")
    return text if text == DASH else text + "/s"


def flop_rate(flops_per_s: float) -> str:
    """Return a rate of arithmetic: "4.975 TFLOP/s", "88.5 MFLOP/s"."""
    if flops_per_s >= _FEW_FLOPS:
        return f"{figure(flops_per_s / 1e12)} TFLOP/s"
    return _scale_text(flops_per_s, 1000.0, _FLOPS, " ") + "/s"


def count(value: float | None) -> str:
    """Return a count in decimal units with three significant digits: "63.5k"."""
    return _scale_text(value, 1000.0, _DECIMAL, "")


def pid_text(pid: int) -> str:
    """Return a process of a report: its pid, and in which file it is where a process of another file has the
    same one."""
    file, own = divmod(pid, PIDS_APART)
    return f"{own} (file {file + 1})" if file else str(own)


def counted(value: float, noun: str) -> str:
    """Return a number with its noun: "1 step", "2 steps", "63.5k calls"; `noun` is the singular."""
    number = count(value)
    return f"{number} {noun}" if number == "1" else f"{number} {noun}s"


@lru_cache(maxsize=_TEXTS_KEPT, typed=True)
def _scale_text(value: float | None, base: float, units: tuple[str, ...], gap: str) -> str:
    if value is None or _absent(value):
        return DASH
    sign, amount, step = ("-" if value < 0 else ""), abs(value), 0
    while step < len(units) - 1 and amount >= base * 0.9995:
        amount, step = amount / base, step + 1
    whole = step == 0 and amount == int(amount)
    digits = 0 if whole or amount >= 99.95 else 1 if amount >= 9.995 else 2
    return f"{sign}{amount:.{digits}f}{gap}{units[step]}".rstrip()


def times(value: float | None) -> str:
    """Return a factor with three significant digits: "1.38x", "12.7x", "0.72x", "957x"."""
    if value is None or _absent(value):
        return DASH
    digits = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f}x"


def duration(seconds: float | None) -> str:
    """Format a measured time with three significant digits: "808 µs", "60.1 ms", "1.62 s", "1m 31s", "2h 05m".

    Args:
        seconds: the time in seconds; None: absent, which gives `DASH`.
    """
    if seconds is None or _absent(seconds):
        return DASH
    if seconds <= 0:
        return "-" + duration(-seconds) if seconds else "0 s"
    if seconds >= 59.95:
        return _long(seconds)
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")):
        amount = seconds / scale
        if amount >= 0.9995 or unit == "ns":
            digits = 0 if amount >= 99.95 or unit == "ns" else 1 if amount >= 9.995 else 2
            return f"{amount:.{digits}f} {unit}"
    raise AssertionError("unreachable: the last unit takes every rest")


def overhead(seconds: float | None, step_seconds: float | None) -> str:
    """Format the overhead per step: "12.0 µs per step (0.02 %)"; the share only if the step time is known.

    Args:
        seconds: overhead per step in seconds; None: absent.
        step_seconds: time of one step in seconds; None: unknown.
    """
    text = f"{duration(seconds)} per step"
    if seconds is None or _absent(seconds) or step_seconds is None or _absent(step_seconds) or step_seconds <= 0:
        return text
    share = 100 * seconds / step_seconds
    return f"{text} ({percent_text(share, 2 if share < 1 else 1) if share >= 0.01 else '<0.01 %'})"


def _long(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours}h {minutes:02d}m"
    return f"{hours // 24}d {hours % 24:02d}h"


def printable(text: str, width: int | None = None) -> str:
    """`text` without control characters, cut to `width` characters with an ellipsis.

    Names come from trainings, command lines and capture files; none may reach a terminal as it is. Control,
    format, surrogate and private characters become a middle dot.
    """
    if width is not None:
        text = text[: width + 1]
    clean = text if text.isprintable() else "".join("·" if is_obeyed(char) else char for char in text)
    if width is None or len(clean) <= width:
        return clean
    return clean[: max(width - 1, 0)] + "…" if width > 0 else ""


def is_obeyed(char: str) -> bool:
    """Return True if a terminal may interpret the character: control, format, surrogate, private, line and
    paragraph ends."""
    return unicodedata.category(char) in _OBEYED


def printable_lines(text: str, *, styled: bool = False) -> str:
    """Return each line of `text` after `printable`.

    Args:
        text: one line or several.
        styled: keep what sets colours and weights (SGR sequences), which llmtop adds to text that is printable.
    """
    if styled and "\x1b" in text:
        parts = _STYLES.split(text)
        return "".join(part if index % 2 else printable_lines(part) for index, part in enumerate(parts))
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))


def shorten_middle(text: str, width: int) -> str:
    """Return the text after `printable`, shortened in the middle: names of kernels differ at both ends."""
    clean = printable(text[: max(4 * width, 4096)])
    if len(clean) <= width or width < 8:
        return printable(clean, width)
    left = (width - 1) // 2
    return f"{clean[:left]}…{clean[len(clean) - (width - 1 - left) :]}"


def width_of(text: str) -> int:
    """Cells that printable text takes in a terminal: two for a wide character, none for one set upon another."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )


def pad(text: str, width: int, *, right: bool = False) -> str:
    """`text` in at least `width` cells; `right` puts it at the right end, as numbers are."""
    blanks = " " * (width - width_of(text))
    return blanks + text if right else text + blanks


def evidence_text(evidence: Mapping[str, object]) -> str:
    """Return the numbers of a finding in one line: "device 0, share_pct 90.08"."""
    return ", ".join(f"{name} {_evidence_value(value)}" for name, value in evidence.items())


def _evidence_value(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return DASH if value is None else str(value).lower()
    return plain(value, 4) if isinstance(value, float) else str(value)


def round_significant(value: float) -> float:
    """Return a measured number for a program, with the five significant digits that instruments resolve."""
    return float(f"{value:.5g}")


def escaped_json(data: bytes) -> bytes:
    """Return JSON with every character that a terminal would interpret written as an escape: JSON itself escapes
    the ones below a blank only. The value stays the same."""
    if data.isascii() and b"\x7f" not in data:
        return data
    if data.translate(None, _PLAIN_IN_JSON).decode().isprintable():  # 30 times quicker than the pattern
        return data
    return _OBEYED_IN_JSON.sub(_as_json_escape, data.decode()).encode()


def _as_json_escape(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be")  # JSON writes what is beyond four digits as two halves
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


_PLAIN_IN_JSON = bytes(range(0x7F))
_OBEYED_IN_JSON = re.compile(
    "[\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e007f]"
)
"""C1 controls, and what formats, hides or turns text round: outside ASCII they stand in strings only."""


def encode_json(value: object, encode: Callable[[object], bytes] | None = None) -> bytes:
    """Encode a value as `escaped_json`, also where a text in it stands for bytes that are no UTF-8.

    Names of files and words of a command line may hold such bytes; Python keeps each as half a character, which
    JSON cannot have.

    Args:
        value: of types that msgspec knows.
        encode: of an encoder with other options.

    Returns:
        The JSON, with a question mark for each such byte.
    """
    import msgspec  # most callers of this module encode nothing

    encode = encode or msgspec.json.encode
    try:
        return escaped_json(encode(value))
    except UnicodeEncodeError:
        return escaped_json(encode(_encodable(msgspec.to_builtins(value))))


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {_encodable(key): _encodable(one) for key, one in value.items()}
    return [_encodable(one) for one in value] if isinstance(value, list | tuple) else value


def nearest_word(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that is most like a word; None where none is like it."""
    import difflib  # for a wrong word alone

    return next(iter(difflib.get_close_matches(word, list(known), 1)), None)
