"""True if a pickle asks for a memo out of all proportion.

Nine bytes of a pickle can ask Python to make room for four thousand million objects ("put this at number
4,294,967,295"), and it does, at once. No pickle that was written by Python numbers more objects than it has bytes.
"""

from __future__ import annotations

import mmap
import pickle
import re

_PLAIN = re.compile(
    rb"(?:[(.012NRabd}eltsuo)Q\]\x81\x85-\x89\x8f-\x91\x93\x94\x97\x98]|[Khq\x80\x82].|[M\x83]..|[Jj\x84].{4}"
    rb"|[G\x95].{8}|\x8a(?:\x05.{5}|\x06.{6}|\x07.{7}|\x08.{8})){1,5000}",
    re.DOTALL,
)
"""Opcodes whose length is known, and numbers as large as addresses and times are: the bulk of a snapshot."""
_LENGTH_BYTES = dict.fromkeys(b"UC\x8c\x8a", 1) | dict.fromkeys(b"TXB\x8b", 4) | dict.fromkeys(b"\x8d\x8e\x96", 8)
"""Opcodes after which so many bytes tell how many follow."""
_LONG_PUT = ord("r")
_GLOBAL = ord("c")
"""Names a class or a function in two lines. Whoever unpickles refuses it, with the name."""


def check_memo(data: mmap.mmap | bytes) -> None:
    """Check the opcodes without executing them.

    Args:
        data: the whole pickle, of protocol 2 or later.

    Raises:
        pickle.UnpicklingError: it numbers an object beyond its own size, has an opcode that only older protocols
            write, or is cut.
    """
    place, size = 0, len(data)
    while place < size:
        plain = _PLAIN.match(data, place)
        if plain is not None:
            place = plain.end()
            continue
        code = data[place]
        length = _LENGTH_BYTES.get(code)
        if length is not None:
            begin = place + 1 + length
            place = begin + int.from_bytes(data[place + 1 : begin], "little")
        elif code == _LONG_PUT:
            if int.from_bytes(data[place + 1 : place + 5], "little") > size:
                raise pickle.UnpicklingError("it announces more objects than it has bytes")
            place += 5
        elif code == _GLOBAL:
            for _ in range(2):
                place = data.find(b"\n", place) + 1
                if place == 0:
                    raise pickle.UnpicklingError("it is cut off")
        elif data.find(b".", max(0, place - 1), place) >= 0:
            return  # the end, and something after it
        else:
            raise pickle.UnpicklingError(
                f"the byte {code:#04x} at {place} does not occur in a memory snapshot: "
                "take it again with llmtop capture --engine memory"
            )
