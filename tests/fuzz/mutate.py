"""Damages bytes, each time in the same way for the same seed: bits flip, slices go or come twice, lengths lie."""

from __future__ import annotations

import random
from collections.abc import Callable

_HUGE = (
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x00\x00\x10\x00",
    b"\xdd\xff\xff\xff\xff",
    b"\xc6\x7f\xff\xff\xff",
)
"""What lengths look like in front of frames, and within msgpack (an array, bytes)."""
_NEST = (b"\x91", b"[", b'{"a":')
_MOST_AT_ONCE = 4
_MOST_BYTES = 1 << 20


def mutate(data: bytes, seed: int) -> bytes:
    """A damaged copy of `data`, at most a megabyte; the same for the same arguments."""
    chance = random.Random(seed)
    damaged = bytearray(data)
    for _ in range(chance.randint(1, _MOST_AT_ONCE)):
        chance.choice(_WAYS)(damaged, chance)
        del damaged[_MOST_BYTES:]
    return bytes(damaged)


def _place(data: bytearray, chance: random.Random) -> int:
    return chance.randrange(len(data) + 1)


def _slice(data: bytearray, chance: random.Random) -> slice:
    begin = _place(data, chance)
    return slice(begin, begin + chance.choice((1, 2, 4, 16, 64, 1024)))


def _flip(data: bytearray, chance: random.Random) -> None:
    for _ in range(chance.choice((1, 1, 1, 8))):
        if data:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def _set(data: bytearray, chance: random.Random) -> None:
    if data:
        data[chance.randrange(len(data))] = chance.choice((0, 1, 0x7F, 0x80, 0xC1, 0xFF, chance.randrange(256)))


def _insert(data: bytearray, chance: random.Random) -> None:
    place = _place(data, chance)
    data[place:place] = chance.randbytes(chance.choice((1, 2, 8, 200)))


def _delete(data: bytearray, chance: random.Random) -> None:
    del data[_slice(data, chance)]


def _repeat(data: bytearray, chance: random.Random) -> None:
    piece = data[_slice(data, chance)]
    place = _place(data, chance)
    data[place:place] = piece * chance.choice((1, 1, 3, 1000))


def _swap(data: bytearray, chance: random.Random) -> None:
    piece = _slice(data, chance)
    moved = data[piece]
    del data[piece]
    place = _place(data, chance)
    data[place:place] = moved


def _cut(data: bytearray, chance: random.Random) -> None:
    del data[_place(data, chance) :]


def _lie(data: bytearray, chance: random.Random) -> None:
    place = _place(data, chance)
    data[place : place + 4] = chance.choice(_HUGE)


def _nest(data: bytearray, chance: random.Random) -> None:
    place = _place(data, chance)
    data[place:place] = chance.choice(_NEST) * chance.choice((10, 1000, 100_000))


_WAYS: tuple[Callable[[bytearray, random.Random], None], ...] = (
    _flip,
    _flip,
    _set,
    _insert,
    _delete,
    _repeat,
    _swap,
    _cut,
    _lie,
    _nest,
)
