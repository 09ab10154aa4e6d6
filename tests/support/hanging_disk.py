"""A FUSE file system in memory that answers until SIGUSR1, and from then on no write and no open.

After SIGUSR2 writes fail with EDQUOT, as on a network file system with a quota.

python -m tests.support.hanging_disk FOLDER, as root. It prints "mounted" and ends at its unmounting.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import stat
import struct
import sys

LOOKUP, FORGET, GETATTR, SETATTR, MKDIR, OPEN, READ, WRITE = 1, 2, 3, 4, 9, 14, 15, 16
RELEASE, FSYNC, FLUSH, INIT, OPENDIR, READDIR, RELEASEDIR, ACCESS, CREATE = 18, 20, 25, 26, 27, 28, 29, 34, 35
INTERRUPT, DESTROY, BATCH_FORGET = 36, 38, 42
"""Operations of include/uapi/linux/fuse.h."""
_HEAD = 40
_OPENED = struct.pack("<QII", 1, 0, 0)
_hangs = _has_no_quota = False


class Disk:
    """Files by inode number: mode, content and names."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._nodes: dict[int, tuple[int, bytearray, dict[bytes, int]]] = {
            1: (stat.S_IFDIR | 0o700, bytearray(), {})
        }

    def serve(self) -> None:
        """Answer until it is unmounted."""
        while True:
            try:
                message = os.read(self._device, 1 << 18)
            except OSError as error:
                if error.errno == errno.EINTR:
                    continue
                return
            length, operation, unique, node = struct.unpack_from("<IIQQ", message)
            if _hangs and operation in (OPEN, CREATE, WRITE, FLUSH, LOOKUP):
                continue
            if operation in (FORGET, BATCH_FORGET, INTERRUPT):
                continue
            answer = self._answer(operation, node, message[_HEAD:length])
            failed = -answer if isinstance(answer, int) else 0
            data = b"" if isinstance(answer, int) else answer
            os.write(self._device, struct.pack("<IiQ", 16 + len(data), failed, unique) + data)
            if operation == DESTROY:
                return

    def _answer(self, operation: int, node: int, body: bytes) -> bytes | int:
        """The data of an answer, or the number of an error."""
        if operation == INIT:
            return struct.pack("<IIIIHHIIHHIIII", 7, 31, 65536, 0, 12, 10, 65536, 1, 16, 0, 0, 0, 0, 0) + bytes(16)
        if operation in (GETATTR, SETATTR):
            if operation == SETATTR and body[0] & 8:  # the size
                (size,) = struct.unpack_from("<Q", body, 16)
                del self._nodes[node][1][size:]
            return struct.pack("<QII", 0, 0, 0) + self._attributes(node)
        if operation == LOOKUP:
            child = self._nodes[node][2].get(body.rstrip(b"\0"))
            return errno.ENOENT if child is None else self._entry(child)
        if operation in (MKDIR, CREATE):
            kind, after = (stat.S_IFDIR, 8) if operation == MKDIR else (stat.S_IFREG, 16)
            (mode,) = struct.unpack_from("<I", body, 0 if operation == MKDIR else 4)
            number = max(self._nodes) + 1
            self._nodes[number] = kind | stat.S_IMODE(mode), bytearray(), {}
            self._nodes[node][2][body[after:].rstrip(b"\0")] = number
            return self._entry(number) + (_OPENED if operation == CREATE else b"")
        if operation in (OPEN, OPENDIR):
            return _OPENED
        if operation == WRITE and _has_no_quota:
            return errno.EDQUOT
        if operation == WRITE:
            _, offset, size = struct.unpack_from("<QQI", body)
            content = self._nodes[node][1]
            content.extend(bytes(max(0, offset + size - len(content))))
            content[offset : offset + size] = body[_HEAD : _HEAD + size]
            return struct.pack("<II", size, 0)
        if operation == READDIR:
            return self._names(node) if struct.unpack_from("<QQ", body)[1] == 0 else b""
        if operation == READ:
            _, offset, size = struct.unpack_from("<QQI", body)
            return bytes(self._nodes[node][1][offset : offset + size])
        return b"" if operation in (RELEASE, RELEASEDIR, FLUSH, FSYNC, ACCESS, DESTROY) else errno.ENOSYS

    def _names(self, node: int) -> bytes:
        """The directory's entries, whose kind the reader asks for."""
        found = b""
        for place, (name, number) in enumerate(self._nodes[node][2].items(), 1):
            entry = struct.pack("<QQII", number, place, len(name), 0) + name
            found += entry + bytes(-len(entry) % 8)
        return found

    def _attributes(self, node: int) -> bytes:
        mode, content, _ = self._nodes[node]
        times = (0,) * 6
        return struct.pack(
            "<QQQQQQIIIIIIIIII", node, len(content), 0, *times[:3], *times[3:], mode, 1, 0, 0, 0, 512, 0
        )

    def _entry(self, node: int) -> bytes:
        return struct.pack("<QQQQII", node, 0, 0, 0, 0, 0) + self._attributes(node)


def main(folder: str) -> None:
    """Mount and serve."""

    def hang(*_: object) -> None:
        global _hangs
        _hangs = True

    def use_up(*_: object) -> None:
        global _has_no_quota
        _has_no_quota = True

    signal.signal(signal.SIGUSR1, hang)
    signal.signal(signal.SIGUSR2, use_up)
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"hanging", folder.encode(), b"fuse", 0, options):
        raise OSError(ctypes.get_errno(), "mount")
    print("mounted", flush=True)
    Disk(device).serve()


if __name__ == "__main__":
    main(sys.argv[1])
