"""TPUs by the real tpu-info and gRPC, in the driver's own process: a server that speaks as libtpu, and made-up
files of the kernel's over the real ones, in a mount namespace."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from collectors.tpu.library import VARIABLE
from tests.support import nvml_stub
from tests.support.nvml_stub import Scenario
from tests.support.processes import REPOSITORY, environment, repeat_until
from tests.support.tpu_stand_in import DUTY, GIB, HBM, TOTAL, USED, healthy, pci

LIBRARY = REPOSITORY / ".cache" / "tpu"
_KERNEL = Path("/sys/bus/pci/devices")
_MAY = (
    os.geteuid() == 0
    and _KERNEL.is_dir()
    and shutil.which("unshare") is not None
    and subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True, timeout=240).returncode
    == 0
)
pytestmark = [
    pytest.mark.tpu,
    pytest.mark.slow("the real tpu-info, which `make test-all` alone fetches; test_source.py has the same faults"),
    pytest.mark.skipif(not LIBRARY.is_dir(), reason="no tpu-info: tests/fetch_tpu.sh brings it to .cache/tpu"),
    pytest.mark.skipif(not _MAY, reason="a mount namespace needs root, and a kernel with PCI"),
    pytest.mark.usefixtures("runtime_dir"),
]


class Libtpu:
    """The stand-in, serving."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._scenario = folder, folder / "scenario.json"
        self.says(healthy())
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.tpu_stand_in", str(self._scenario)],
            env={**environment(), "PYTHONPATH": f"{LIBRARY}:{REPOSITORY}"},
            cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def says(self, told: dict[str, Any]) -> None:
        self._scenario.write_text(json.dumps(told))

    def command(self, *words: str, device: str = "0x006f", count: int = 4, **variables: str) -> dict[str, Any]:
        """What a command of llmtop prints as JSON where those TPUs are."""
        devices = pci(self.folder / f"pci{len(list(self.folder.iterdir()))}", count, device)
        inner = f"mount --bind {devices} {_KERNEL} && exec {sys.executable} -m llmtop {' '.join(words)}"
        env = {**environment(**{VARIABLE: str(self.port), **variables}), "PYTHONPATH": f"{LIBRARY}:{REPOSITORY}"}
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", inner], env=env, cwd=REPOSITORY,
            capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        return json.loads(done.stdout)  # type: ignore[no-any-return]

    def gpus(
        self, error: str | None = None, note: str = "", **more: Any
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """GPUs and notes, where each TPU has this error, and a note or each TPU's utilization is there.

        On a busy machine the library comes too late for a command, or an answer for its limit.
        """

        def is_whole(snapshot: dict[str, Any]) -> bool:
            tpus = [gpu for gpu in snapshot["gpus"] if gpu.get("vendor") == "Google"]
            is_noted = note != "" and any(note in one for one in snapshot["host"]["notes"])
            is_known = is_noted or all(gpu.get("util_pct") is not None for gpu in tpus)
            return {gpu.get("error") for gpu in tpus} == {error} and (error is not None or is_known)

        snapshot = repeat_until(lambda: self.command("--once", "--json", **more), is_whole)
        return snapshot["gpus"], snapshot["host"].get("notes", [])


@pytest.fixture
def libtpu(tmp_path: Path) -> Iterator[Libtpu]:
    one = Libtpu(tmp_path)
    yield one
    one.process.kill()
    one.process.communicate(timeout=240)


def test_every_value_arrives_in_its_unit(libtpu: Libtpu) -> None:
    gpus, notes = libtpu.gpus()
    assert [(gpu["name"], gpu["vendor"], gpu["index"]) for gpu in gpus] == [
        ("TPU v6e", "Google", n) for n in range(4)
    ]
    assert [gpu["mem_used_bytes"] for gpu in gpus] == [(10 + n) * GIB for n in range(4)]
    assert {gpu["mem_total_bytes"] for gpu in gpus} == {32 * GIB}
    assert [gpu["util_pct"] for gpu in gpus] == [50.5, 51.5, 52.5, 53.5]
    assert [gpu["dram_active_pct"] for gpu in gpus] == [20.25, 21.25, 22.25, 23.25]
    assert not [gpu["error"] for gpu in gpus if gpu.get("error")]
    assert not [note for note in notes if "TPU" in note]


def test_two_devices_a_chip(libtpu: Libtpu) -> None:
    libtpu.says(healthy(8, 4))
    gpus, _ = libtpu.gpus(device="0x0076")
    assert [gpu["name"] for gpu in gpus] == ["TPU 7x"] * 8
    assert [gpu["util_pct"] for gpu in gpus] == [50.5, 50.5, 51.5, 51.5, 52.5, 52.5, 53.5, 53.5]


@pytest.mark.parametrize(
    ("metric", "fault", "says"),
    [
        (TOTAL, "hang", "libtpu has not answered within 1.5 s"),
        (DUTY, "hang", "libtpu has not answered within 1.5 s"),
        (DUTY, "garbage", "libtpu refuses with INTERNAL"),
        (USED, "PERMISSION_DENIED", "libtpu refuses with PERMISSION_DENIED"),
        (HBM, "UNIMPLEMENTED", None),
    ],
)
def test_a_figure_that_fails_costs_itself(metric: str, fault: str, says: str | None, libtpu: Libtpu) -> None:
    libtpu.says({**healthy(), metric: fault})
    gpus, _ = libtpu.gpus(says and f"{says} ({metric})")
    assert len(gpus) == 4
    field = {TOTAL: "mem_total_bytes", USED: "mem_used_bytes", DUTY: "util_pct", HBM: "dram_active_pct"}[metric]
    assert all(gpu.get(field) is None for gpu in gpus)


def test_where_nothing_listens_the_chips_are_there(libtpu: Libtpu) -> None:
    gpus, notes = libtpu.gpus(note="nothing answers", **{VARIABLE: "1"})
    assert len(gpus) == 4
    assert all(gpu.get("util_pct") is None for gpu in gpus)
    assert any("nothing answers at port 1 " in note for note in notes)


def test_nvidia_s_gpus_come_first_and_neither_hides_the_other(libtpu: Libtpu, tmp_path: Path) -> None:
    scenario = Scenario(count=2)
    nvidia = {
        nvml_stub.SCENARIO_VARIABLE: str(scenario.write(tmp_path / "nvidia")),
        "LD_LIBRARY_PATH": str(nvml_stub.build().parent),
    }
    gpus, _ = libtpu.gpus(**nvidia)
    assert [(gpu["index"], gpu.get("vendor", "NVIDIA")) for gpu in gpus] == [
        *((number, "NVIDIA") for number in range(2)),
        *((number, "Google") for number in range(2, 6)),
    ]
    assert all(gpu["util_pct"] is not None for gpu in gpus)
    libtpu.says({**healthy(), TOTAL: "hang"})
    gpus, _ = libtpu.gpus(f"libtpu has not answered within 1.5 s ({TOTAL})", **nvidia)
    assert [gpu.get("error") is None for gpu in gpus] == [True] * 2 + [False] * 4


def test_doctor_names_them_as_untried(libtpu: Libtpu) -> None:
    def tpus() -> dict[str, Any]:
        (check,) = [one for one in libtpu.command("doctor", "--json")["checks"] if one["name"] == "TPUs"]
        return check

    check = repeat_until(tpus, lambda check: check["ok"])
    assert check["ok"] is True
    assert check["says"].startswith("4 x TPU v6e (support is not tested on hardware")
