"""Part `monitor`: what the monitor says of all GPUs beside a load that is known, and what it costs.

One training goes through idleness, all-reduces and matrix products on some of the GPUs (known_load.py). Beside
the first two sampling rounds are timed in a process of its own; beside the last the screens of llmtop and of
nvitop draw once a second on terminals of 200x50.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.bench_exporter import processor_seconds
from tests.gpu.check_capture import end
from tests.gpu.eight import judging
from tests.gpu.eight.beside import Drawn, Watch, ranks_said, training
from tests.gpu.eight.setting import Case, Setting
from tests.support.processes import REPOSITORY

ROUNDS, INTERVAL = 36, 0.25
SCREEN_SETTLE_SECONDS = 5.0
PATIENCE_SECONDS = 180.0
"""For all phases; ranks that hang are ended then."""
RING = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}
"""So that it is known what goes over the links: LL and LL128 send flags beside the data."""
ROUNDS_CODE = """
import json, sys
from benchmarks.bench_sampling import rounds
print(json.dumps(rounds(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))))
"""


def cases(setting: Setting) -> Iterator[Case]:
    """One."""
    yield Case("monitor", "known_load", sum(judging.PHASES.values()) + 35, lambda left: Beside(setting).run(left))


class Beside:
    """What is done in each phase of the load."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.rounds: dict[str, list[float]] = {}
        self.work: dict[str, dict[str, Any]] = {}
        self.counters: list[Any] = []
        self.shares: dict[str, float | None] = {"llmtop": None, "nvitop": None}
        self.notes: list[str] = []

    def run(self, left: float) -> dict[str, Any]:
        """Go through the phases; the row."""
        setting = self.setting
        with setting.scratch() as scratch:
            sockets, go = Path(scratch, "s"), Path(scratch)
            script = ["-m", "tests.gpu.eight.known_load", setting.backend, str(go)]
            watch = Watch(setting, sockets)
            try:
                with training(setting, sockets, script, None, **RING) as ranks:
                    ends = threading.Timer(min(left, PATIENCE_SECONDS), end, [ranks])
                    ends.daemon = True
                    ends.start()
                    for line in ranks.stdout or ():
                        told = json.loads(line) if line.startswith("{") else {}
                        if "ready" in told:
                            self._begins(told["ready"], go, sockets)
                        if "done" in told:
                            self.work[told["done"]] = told
                            self.counters += [self._counted()] if told["done"] == "all_reduce" else []
                        if told.get("done") == "products":
                            break
                    ends.cancel()
            finally:
                watch.close()
        return self._judged(watch) | setting.recordings.add("monitor", watch.file)

    def _begins(self, name: str, go: Path, sockets: Path) -> None:
        """Act beside a phase; returns before that is over."""
        self._pretend(name)
        if name == "all_reduce":
            self.counters.append(self._counted())
        if name == "products":
            screens = self._screens(sockets)
            (go / name).touch()
            self._watch_screens(screens)
            return
        (go / name).touch()
        time.sleep(judging.SETTLE_S)
        done = subprocess.run(
            [sys.executable, "-c", ROUNDS_CODE, str(self.setting.gpus), str(ROUNDS), str(INTERVAL)],
            env=self.setting.monitor(sockets), cwd=REPOSITORY, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip
        if done.returncode:
            self.notes.append(f"rounds: {done.stderr.strip()[-300:]}")
        else:
            self.rounds[name] = json.loads(done.stdout)

    def _pretend(self, name: str) -> None:
        """Have the stand-in for the driver answer as GPUs in that phase would."""
        setting = self.setting
        if setting.real:
            return
        for gpu in range(setting.gpus):
            full = name == "products" and gpu in judging.planted(setting.gpus)
            link = 1000 if name == "all_reduce" else 0
            setting.scenario.set(
                gpu, sm_active=96 if full else 0, power_watts=650 if full else 110, nvlink_tx_mib=link,
                nvlink_rx_mib=link,
            )  # fmt: skip
        assert setting.driver
        setting.scenario.write()

    def _counted(self) -> Any:
        done = subprocess.run(
            [sys.executable, "-m", "tests.gpu.eight.link_counters"],
            env=self.setting.monitor(self.setting.folder), cwd=REPOSITORY, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        if done.returncode:
            self.notes.append(f"link counters: {done.stderr.strip()[-300:]}")
            return None
        return json.loads(done.stdout)

    def _screens(self, sockets: Path) -> dict[str, Drawn]:
        commands = {
            "llmtop": ("textual", ["-m", "llmtop", "--interval", "1"]),
            "nvitop": ("nvitop", ["-m", "nvitop", "--monitor", "full", "--interval", "1"]),
        }
        started = {}
        for name, (package, command) in commands.items():
            if importlib.util.find_spec(package) is None:
                self.notes.append(f"{package} is not installed: no figure of the screen of {name}")
            else:
                started[name] = Drawn([sys.executable, *command], self.setting.monitor(sockets))
        return started

    def _watch_screens(self, screens: dict[str, Drawn]) -> None:
        """Processor time of each in the rest of the phase, percent of a core."""
        time.sleep(SCREEN_SETTLE_SECONDS)
        begun = time.monotonic()
        families = {name: one.family() for name, one in screens.items() if one.process.poll() is None}
        before = {name: processor_seconds(family) for name, family in families.items()}
        time.sleep(max(1.0, judging.PHASES["products"] - SCREEN_SETTLE_SECONDS - 1.0))
        for name, family in families.items():
            if screens[name].process.poll() is None:
                took = time.monotonic() - begun
                self.shares[name] = 100 * (processor_seconds(family) - before[name]) / took
        for name, one in screens.items():
            if self.shares[name] is None or one.drawn < 2000:
                self.notes.append(f"the screen of {name} ended with {one.process.poll()}, {one.drawn} bytes drawn")
                self.shares[name] = None
            one.close()

    def _judged(self, watch: Watch) -> dict[str, Any]:
        gpus, seen = self.setting.gpus, watch.snapshots
        told: dict[str, Any] = {"stand_in": not self.setting.real, "notes": self.notes}
        told["sampling"] = judging.rounds(self.rounds)
        told["screens"] = judging.cost(self.shares)
        if "all_reduce" in self.work:
            told["nvlink"] = judging.links(self.work["all_reduce"], gpus, seen, self.counters)
        if "products" in self.work:
            told["load"] = judging.load(self.work["products"], gpus, seen)
        parts = [told.get(name, {"ok": False})["ok"] for name in ("sampling", "nvlink", "load", "screens")]
        told["ok"] = all(one is not False for one in parts)
        if len(self.work) < 3:
            told["ranks_said"] = ranks_said(self.setting)
        return told
