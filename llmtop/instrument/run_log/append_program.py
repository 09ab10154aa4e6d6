"""Appends to files; also run as a program of its own, for a disk that may never answer (`disk.ForeignDisk`).

As a program it is started with -I -S and imports nothing of llmtop. Its standard input is a socket with frames:
anew, length of the name, length of the data, name, data. What cannot be written is answered with its errno. It
ends when the socket is closed.
"""

from __future__ import annotations

import os
import struct
import sys

_HEAD = struct.Struct("<BHI")
ERROR = struct.Struct("<I")
"""The errno of a frame that was not written."""
_FILE_MODE = 0o600
FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
_FOLDER_MODE = 0o700


def append(path: str, data: bytes, anew: bool) -> None:
    """Append to a file, or write it anew; of what the disk does not take as a whole nothing stays.

    Raises:
        OSError: the disk is full, the file cannot be opened.
    """
    number = os.open(path, FLAGS | os.O_CLOEXEC | (os.O_TRUNC if anew else 0), _FILE_MODE)
    try:
        size, done = os.fstat(number).st_size, 0
        try:
            while done < len(data):
                done += os.write(number, data[done:])
        except OSError:
            if done:
                os.ftruncate(number, size)
            raise
    finally:
        os.close(number)


def _receive(length: int) -> bytes:
    data = b""
    while len(data) < length:
        piece = os.read(0, length - len(data))
        if not piece:
            os._exit(0)
        data += piece
    return data


def _serve(folder: str) -> None:
    if os.fork():
        os._exit(0)
    os.umask(0o077)
    while True:
        anew, name_length, length = _HEAD.unpack(_receive(_HEAD.size))
        name, data = _receive(name_length).decode(), _receive(length)
        try:
            os.makedirs(folder, _FOLDER_MODE, exist_ok=True)
            append(f"{folder}/{name}", data, bool(anew))
        except OSError as error:
            try:
                os.write(0, ERROR.pack(error.errno or 0))
            except OSError:
                os._exit(0)


if __name__ == "__main__":
    _serve(sys.argv[1])
