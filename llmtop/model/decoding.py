"""Decoding of what another process wrote: garbage raises one kind of exception."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

import msgspec

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Decoder(Protocol[T_co]):
    """Common interface of msgspec's decoders for msgpack and for JSON."""

    def decode(self, body: bytes | memoryview, /) -> T_co:
        """Decode one message."""


class LazyJsonDecoder(Generic[T]):
    """A decoder of JSON that is made when it is first used: a snapshot's takes 3 ms, before the first frame."""

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind
        self._decoder: msgspec.json.Decoder[T] | None = None

    def decode(self, body: bytes | memoryview, /) -> T:
        """Decode one message.

        Raises:
            msgspec.DecodeError: not JSON, or of another type (`msgspec.ValidationError`, a subclass).
        """
        decoder = self._decoder
        if decoder is None:
            decoder = self._decoder = msgspec.json.Decoder(self._kind)
        return decoder.decode(body)


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
