"""A process that asks a Kineto host for work as libkineto does, and drops the first configurations that it gets.

usage: drops_configs.py HOW_MANY [unfinished]; "-1": all of them. What libkineto does with one where its thread
wakes too late. With "unfinished" it begins the file of each such configuration and leaves it.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from pathlib import Path

_HEADER = struct.Struct("@Q32s")
EVERY_SECONDS = 0.1


def main() -> None:
    """Ask until it is killed; one line is printed for each configuration."""
    drops = int(sys.argv[1])
    directory = Path(os.environ["KINETO_IPC_SOCKET_DIR"])
    client = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    client.settimeout(10)
    client.bind(str(directory / f"dynoconfigclient{os.urandom(4).hex()}"))
    question = struct.pack("@iiq1i", 3, 1, 0, os.getpid())
    print("asks", flush=True)
    while True:
        client.sendto(_HEADER.pack(len(question), b"req") + question, str(directory / "dynolog"))
        config = client.recv(4096)[_HEADER.size :].decode()
        if config:
            print("got one", flush=True)
            asked = Path(config.partition("ACTIVITIES_LOG_FILE=")[2].partition("\n")[0])
            if drops == 0 or sys.argv[2:]:
                _write(asked, finish=drops == 0)
            drops -= 1
        time.sleep(EVERY_SECONDS)


def _write(asked: Path, *, finish: bool) -> None:
    made = asked.with_name(f"{asked.stem}_{os.getpid()}{asked.suffix}")
    partial = made.with_name(made.name + ".tmp")
    partial.write_text('{"schemaVersion": 1, "traceEvents": []}')
    if finish:
        partial.rename(made)


if __name__ == "__main__":
    main()
