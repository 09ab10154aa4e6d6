"""An nsys that fails in each known way on demand: FAKE_NSYS says how, FAKE_NSYS_DIR is where its state is."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import time
from pathlib import Path

FAILS = os.environ.get("FAKE_NSYS", "")
STATE = Path(os.environ["FAKE_NSYS_DIR"])
COLLECTING = STATE / "collecting"
SESSION = "4711"


def _value(name: str) -> str:
    for index, word in enumerate(sys.argv):
        if word == name:
            return sys.argv[index + 1]
        if word.startswith(name + "="):
            return word.partition("=")[2]
    return ""


def _hang() -> None:
    """Wait until the test makes the file "go on", 60 s at most."""
    until = time.monotonic() + 60
    while not (STATE / "go on").exists() and time.monotonic() < until:
        time.sleep(0.02)


def _start() -> int:
    if FAILS == "start crashes":
        os.kill(os.getpid(), signal.SIGSEGV)
    if FAILS == "start hangs":
        _hang()
    if FAILS == "start refuses":
        print("Configuring is not allowed in this state.", file=sys.stderr)
        return 1
    COLLECTING.write_text(_value("-o"))
    return 0


def _stop() -> int:
    if not COLLECTING.exists():
        print("Collection stop is not allowed in this state.", file=sys.stderr)
        return 1
    output = Path(COLLECTING.read_text())
    if FAILS == "stop hangs":
        _hang()
    COLLECTING.unlink()
    (STATE / "stopped").touch()
    if FAILS == "stop crashes":
        os.kill(os.getpid(), signal.SIGSEGV)
    if FAILS == "stop leaves raw data":
        raw = STATE / "nsys-report-1.qdstrm"
        raw.write_bytes(b"raw")
        print(f"Importer error: no importer\nGenerated:\n    {raw}")
        return 0
    report = output.with_name(output.name + ".nsys-rep")
    if FAILS == "report elsewhere" or not report.parent.is_dir():
        report = STATE / "nsys-report-2.nsys-rep"
    report.write_bytes(b"report")
    print(f"\r[1/1] [====100%] x.nsys-rep\nGenerated:\n    {report}")
    return 0


def _lose_kernels(database: sqlite3.Connection) -> None:
    """Of two threads that launch kernels in turn, the kernels of one are missing."""
    pid = int(os.environ["FAKE_NSYS_PID"])
    database.execute("INSERT INTO StringIds VALUES (1, 'cudaLaunchKernel_v7000'), (2, 'gemm')")
    database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId)")
    database.execute(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL"
        " (start, end, deviceId, streamId, correlationId, globalPid, demangledName, shortName)"
    )
    for number in range(100):
        at, thread = 1000 * number, number % 2
        database.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, 1)",
            (at, at + 10, pid << 24 | thread, number),
        )
        if thread:
            database.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 0, 7, ?, ?, 2, 2)",
                (at + 20, at + 900, number, pid << 24),
            )


def _export() -> int:
    output = Path(_value("--output"))
    if FAILS == "export writes nothing":
        return 0
    if FAILS == "export on a full disk":
        output.touch()
        print("[QuadDCommon::tag_message*] = database or disk is full", file=sys.stderr)
        return 0
    if FAILS == "report is newer":
        print("The report was made by a newer version of Nsight Systems.", file=sys.stderr)
        return 1
    with sqlite3.connect(output) as database:
        database.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        database.execute("CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT)")
        database.execute("INSERT INTO NVTX_EVENTS VALUES (1, 2, 59, 'step')")
        if FAILS == "loses kernels":
            _lose_kernels(database)
    if FAILS == "export is cut off":
        output.write_bytes(output.read_bytes()[:1000])
    return 0


def main() -> int:
    """Answer one command line."""
    command = sys.argv[1]
    if command == "--version":
        print(f"NVIDIA Nsight Systems version {os.environ.get('FAKE_NSYS_VERSION', '2025.3.1.90-1')}")
    elif command == "sessions":
        state = "Collection" if COLLECTING.exists() else "Launched"
        print(f"ID TIME STATE LAUNCH NAME\n  {SESSION}  00:03  {state}  1 a session")
    elif command in ("start", "stop", "export"):
        return {"start": _start, "stop": _stop, "export": _export}[command]()
    return 0


if __name__ == "__main__":
    sys.exit(main())
