"""Decoding of what another process wrote: garbage raises one kind of exception."""

from __future__ import annotations

from typing import Protocol, TypeVar

import msgspec

T_co = TypeVar("T_co", covariant=True)


class Decoder(Protocol[T_co]):
    """Common interface of msgspec's decoders for msgpack and for JSON."""

    def decode(self, body: bytes | memoryview, /) -> T_co:
        """Decode one message."""


def decode_checked(decoder: Decoder[T_co], body: bytes | memoryview) -> T_co:
    """Decode, and raise nothing but DecodeError.

    Raises:
        msgspec.DecodeError: garbage.
    """
    try:
        return decoder.decode(body)
    except RecursionError:
        raise msgspec.DecodeError("it is nested too deeply") from None
    except UnicodeDecodeError:
        raise msgspec.DecodeError("a text in it is not UTF-8") from None
