"""A FUSE file system on which reads of one file never return.

python -m tests.support.hanging_fuse SOURCE MOUNT NAME OFFSET

It serves the files of SOURCE, read-only. A read of NAME at OFFSET bytes or later gets no reply, so that the reader
waits in the kernel as it does for a dead NFS or Lustre server. It speaks the kernel's protocol on /dev/fuse
(linux/fuse.h); mounting needs root.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import sys
from pathlib import Path

LOOKUP, FORGET, GETATTR, OPEN, READ, STATFS, RELEASE, FLUSH, INIT, OPENDIR, BATCH_FORGET = (
    *(1, 2, 3, 14, 15, 17, 18, 25, 26, 27, 42),
)
_IN = struct.Struct("<IIQQIIII")
"""fuse_in_header: length, opcode, unique, node, uid, gid, pid, padding."""
_OUT = struct.Struct("<IiQ")
"""fuse_out_header: length, error, unique."""
DIRECT_IO = 1
SECONDS = 60
"""How long the kernel may keep names and attributes."""


def mount(point: Path) -> int:
    """Mount on a folder and return the descriptor of /dev/fuse."""
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    library = ctypes.CDLL(None, use_errno=True)
    if library.mount(b"storage", os.fsencode(point), b"fuse.storage", 0, options):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(point))
    return device


class HangingFiles:
    """Replies to the kernel for one folder of files."""

    def __init__(self, source: Path, name: str, offset: int) -> None:
        """Args:
        source: the folder of files to serve.
        name: the file whose reads hang.
        offset: in bytes; reads before it are served.
        """
        self.files = dict(enumerate(sorted(source.iterdir()), 2))
        self.name, self.offset = name, offset

    def _attributes(self, node: int) -> bytes:
        size = 0 if node == 1 else self.files[node].stat().st_size
        mode = stat.S_IFDIR | 0o755 if node == 1 else stat.S_IFREG | 0o644
        times = (0,) * 6
        return struct.pack("<6Q10I", node, size, size // 512, *times, mode, 1, 0, 0, 0, 4096, 0)

    def reply(self, operation: int, node: int, body: bytes) -> bytes | int | None:
        """Return the body of the reply, an error number, or None for no reply."""
        if operation == INIT:
            return struct.pack("<IIIIHHIIHHI7I", 7, 31, 65536, 0, 12, 10, 65536, 1, 0, 0, 0, *([0] * 7))
        if operation in (FORGET, BATCH_FORGET):
            return None
        if operation == LOOKUP:
            wanted = body.rstrip(b"\0").decode()
            numbers = [number for number, path in self.files.items() if path.name == wanted]
            if not numbers:
                return errno.ENOENT
            return struct.pack("<QQQQII", numbers[0], 0, SECONDS, SECONDS, 0, 0) + self._attributes(numbers[0])
        if operation == GETATTR:
            return struct.pack("<QII", SECONDS, 0, 0) + self._attributes(node)
        if operation in (OPEN, OPENDIR):
            return struct.pack("<QII", 0, DIRECT_IO, 0)
        if operation == READ:
            _, offset, size = struct.unpack_from("<QQI", body)
            if self.files[node].name == self.name and offset >= self.offset:
                return None
            return self.files[node].read_bytes()[offset : offset + size]
        return b"" if operation in (RELEASE, FLUSH) else errno.ENOSYS

    def serve(self, device: int) -> None:
        """Reply until the file system is unmounted or this process ends."""
        while True:
            try:
                request = os.read(device, 1 << 20)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EINTR):
                    continue
                return
            _, operation, unique, node, *_ = _IN.unpack_from(request)
            reply = self.reply(operation, node, request[_IN.size :])
            if reply is None:
                continue
            body, error_number = (b"", -reply) if isinstance(reply, int) else (reply, 0)
            os.write(device, _OUT.pack(_OUT.size + len(body), error_number, unique) + body)


def main(arguments: list[str]) -> None:
    """Mount, print a line, and serve."""
    source, point, name, offset = arguments
    device = mount(Path(point))
    print("mounted", flush=True)
    HangingFiles(Path(source), name, int(offset)).serve(device)


if __name__ == "__main__":
    main(sys.argv[1:])
