"""The screen in a process of its own, on a made-up machine that goes on for ever:

python -m tests.support.screen [--gpus N] [--ranks N] [--interval S] [--spinning N ...] [--ascii]
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Callable

from msgspec.structs import replace

from llmtop.model.snapshot import Snapshot
from screenshots.scenes import scene


class Ticking:
    """A feed that plays a scene over and over in a thread, its clock going on."""

    def __init__(self, make: Callable[[], list[Snapshot]], interval: float) -> None:
        self._make, self._interval = make, interval
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def interval(self) -> float:
        """Seconds between snapshots."""
        return self._interval

    def set_interval(self, seconds: float) -> None:
        """Change the rate."""
        self._interval = seconds

    def start(self, on_snapshot: Callable[[Snapshot], None]) -> None:
        """Play."""
        self._thread = threading.Thread(target=self._play, args=(on_snapshot,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(2)

    def _play(self, on_snapshot: Callable[[Snapshot], None]) -> None:
        number = 0
        moments = self._make()
        while not self._stop.is_set():
            moment = moments[number % len(moments)]
            on_snapshot(replace(moment, time=moments[0].time + number))
            number += 1
            self._stop.wait(self._interval)


def main() -> int:
    """Run the screen and return its exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--interval", type=float, default=1.0)
    parser.add_argument("--spinning", type=int, nargs="*", default=[])
    parser.add_argument("--ascii", action="store_true")
    arguments = parser.parse_args()

    def moments() -> list[Snapshot]:
        spinning = tuple(arguments.spinning)
        return scene(gpus=arguments.gpus, ranks=arguments.ranks, spinning=spinning, seconds=90)[15:]

    from tui.show import show

    return show(Ticking(moments, arguments.interval), ascii=arguments.ascii)


if __name__ == "__main__":
    sys.exit(main())
