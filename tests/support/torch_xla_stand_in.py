"""A stand-in for a torch_xla training: a file of its library's name is mapped, and a port speaks as gRPC does.

python -m tests.support.torch_xla_stand_in FOLDER KIND…, where FOLDER holds what `made` has put there: a package
torch_xla whose profiler.trace does what FOLDER/does says. For each KIND it listens on a port: "grpc" greets as a
server of gRPC, "mail" otherwise, "silent" not at all. The ports are printed; it ends when its input does.
"""

from __future__ import annotations

import mmap
import socket
import sys
import threading
from pathlib import Path

SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_PROFILER = """
import os, pathlib, shutil, sys, time

HOME = pathlib.Path(__file__).parents[2]

def trace(service_addr, logdir, duration_ms=1000, num_tracing_attempts=3, timeout_s=120, interval_s=5, **more):
    does, _, what = (HOME / "does").read_text().partition(" ")
    (HOME / "asked").write_text(f"{service_addr} {duration_ms} {os.environ.get('PJRT_DEVICE')}")
    if does == "fail":
        raise RuntimeError("No trace event was collected because there were no responses.")
    if does == "hang":
        time.sleep(600)
    if does == "die":
        os.abort()
    time.sleep(duration_ms / 1000)
    if does == "write":
        run = pathlib.Path(logdir, "plugins", "profile", "2026_01_01")
        run.mkdir(parents=True)
        shutil.copy(what, run / "localhost.xplane.pb")
"""


def made(folder: Path, loads: bool = True) -> Path:
    """The folder of the package, which `does` is then written to.

    Args:
        folder: where it is made.
        loads: whether torch_xla can be imported in it.
    """
    home = folder / "lib" / "site-packages"
    (home / "torch_xla" / "debug").mkdir(parents=True)
    (home / "torch_xla" / "__init__.py").write_text("" if loads else "import a_library_that_is_not_here\n")
    (home / "torch_xla" / "debug" / "__init__.py").write_text("")
    (home / "torch_xla" / "debug" / "profiler.py").write_text(_PROFILER)
    (home / "_XLAC.cpython-3-x86_64-linux-gnu.so").write_bytes(b"\0" * 4096)
    return home


def _serve(listening: socket.socket, greeting: bytes) -> None:
    while True:
        connection, _ = listening.accept()
        with connection:
            connection.sendall(greeting)
            connection.settimeout(100)
            if connection.recv(1):
                print("somebody spoke", flush=True)


def main() -> None:
    """Listen until the input ends."""
    home, *ports = sys.argv[1:]
    with Path(home, "_XLAC.cpython-3-x86_64-linux-gnu.so").open("rb") as file:
        kept = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    told = []
    for kind in ports:
        listening = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        told.append(str(listening.getsockname()[1]))
        greeting = SETTINGS if kind == "grpc" else b"" if kind == "silent" else b"220 ready\r\n"
        threading.Thread(target=_serve, args=(listening, greeting), daemon=True).start()
    print(" ".join(told), flush=True)
    sys.stdin.read()
    kept.close()


if __name__ == "__main__":
    main()
