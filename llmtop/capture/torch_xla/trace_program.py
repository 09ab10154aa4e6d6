"""Program for one window of torch_xla's own client, run in its own process with the training's Python.

Usage: PORT FOLDER PACKAGES…. It prints "ready" once torch_xla is loaded, and reads from its input for how many
milliseconds to record. It imports nothing of llmtop's.
"""

from __future__ import annotations

import os
import signal
import sys

NOT_LOADED, NOT_RECORDED = 3, 4


def main() -> int:
    """Take the window. Exit code 0, or one per failed stage, with the reason as last line of stderr."""
    port, folder, *packages = sys.argv[1:]
    os.nice(10)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # it ends at once, and with it the recording
    sys.path[:0] = packages
    try:
        from torch_xla.debug import profiler
    except Exception as error:  # noqa: BLE001 - the import of torch_xla may raise anything
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return NOT_LOADED
    print("ready", flush=True)
    asked = sys.stdin.readline().strip()
    if not asked:
        return NOT_RECORDED
    try:
        profiler.trace(
            f"localhost:{port}",
            folder,
            duration_ms=int(asked),
            num_tracing_attempts=1,
            timeout_s=10 + int(asked) // 1000,
            interval_s=1,
        )
    except Exception as error:  # noqa: BLE001 - its errors are RuntimeErrors with a text, today
        print(str(error).strip() or type(error).__name__, file=sys.stderr)
        return NOT_RECORDED
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # torch_xla's own end is for processes that compute
