"""llmtop doctor on a machine with GPUs of either maker: what is shown, what is not, what would change that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from collectors.base.source import GpuReading
from collectors.dcgm import page as dcgm_page
from collectors.dcgm.activity import VARIABLE
from collectors.tpu import presence
from llmtop.cli.doctor import gpu_checks
from llmtop.model.snapshot import Gpu
from llmtop.system import procfs
from tests.support import amd_stub, preloaded
from tests.support.amd_stub import AmdScenario
from tests.support.pages import page, servers
from tests.support.processes import environment, wait_for
from tests.support.tpu_stand_in import pci


def doctor(runtime_dir: Path, **extra: str) -> dict[str, dict[str, Any]]:
    env = environment(LLMTOP_DIR=str(runtime_dir), **extra)
    done = preloaded.llmtop("doctor", "--json", env=env)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return {check["name"]: check for check in json.loads(done.stdout)["checks"]}


def doctor_of_amd(runtime_dir: Path, scenario: AmdScenario) -> dict[str, dict[str, Any]]:
    """What it says when amdsmi has replied within its limit, for which a busy machine is too slow at times."""

    def replied() -> dict[str, dict[str, Any]]:
        checks = doctor(runtime_dir, **amd_stub.environment(amd_stub.build(), scenario.path))
        return {} if checks["AMD GPUs"]["says"] == "amdsmi did not reply" else checks

    return wait_for(replied, what="a reply of amdsmi")


def test_amds_gpus_are_named_as_untried(runtime_dir: Path, tmp_path: Path) -> None:
    scenario = AmdScenario(tmp_path / "amd")
    checks = doctor_of_amd(runtime_dir, scenario)
    assert checks["AMD GPUs"]["ok"] is True
    assert "8 x AMD Instinct MI300X (support is not tested on hardware" in checks["AMD GPUs"]["says"]
    assert checks["driver"]["ok"] is (None if procfs.driver_version() is None else True)


def test_an_amd_driver_that_does_not_start_is_told_with_its_reason(runtime_dir: Path, tmp_path: Path) -> None:
    scenario = AmdScenario(tmp_path / "amd").fault("amdsmi_init", "error", 34).write()
    check = doctor_of_amd(runtime_dir, scenario)["AMD GPUs"]
    assert check["ok"] is False
    assert "modprobe amdgpu" in check["says"]


def test_without_any_gpu_amds_are_none(runtime_dir: Path, tmp_path: Path) -> None:
    check = doctor(runtime_dir, ROCM_PATH=str(tmp_path))["AMD GPUs"]
    assert check["ok"] is None
    assert check["says"].startswith("none found")


def test_tpus_and_torch_xla_are_told_and_what_would_change_that(
    runtime_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = doctor(runtime_dir)
    assert checks["TPUs"]["ok"] is None
    assert checks["TPUs"]["says"].startswith("none found by tpu-info")
    assert "not tested on hardware" in checks["TPUs"]["says"]
    assert "start_server(9012)" in checks["torch_xla"]["command"]
    assert "not on TPUs" in checks["torch_xla"]["says"]
    monkeypatch.setattr(presence, "DEVICES", pci(tmp_path / "pci"))
    monkeypatch.setattr(presence, "has_binding", lambda: False)
    missing = gpu_checks.tpu_check([], None)
    assert (missing.ok, missing.command) == (False, "pip install tpu-info")
    monkeypatch.setattr(presence, "has_binding", lambda: True)
    reading = GpuReading(notes=("TPU: the package tpu-info does not load (TypeError: no)",))
    assert "does not load" in gpu_checks.tpu_check([], reading).says


def test_who_gives_sm_activity_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    hopper = Gpu(index=0, uuid="GPU-a", name="H100", sm_active_pct=3.0, activity_source="gpm")
    ampere = Gpu(index=1, uuid="GPU-b", name="A100")
    assert gpu_checks.activity_check([hopper]).ok is True
    monkeypatch.setattr(dcgm_page, "LIMIT_SECONDS", 60.0)
    with servers() as serve:
        monkeypatch.setenv(VARIABLE, serve(page(b'DCGM_FI_PROF_SM_ACTIVE{gpu="1",UUID="GPU-b"} 0.5\n')))
        found = gpu_checks.activity_check([hopper, ampere])
        assert found.ok is True
        assert "for GPU 1 through dcgm-exporter" in found.says
        monkeypatch.setenv(VARIABLE, serve(page(b"node_load1 1\n")))
        found = gpu_checks.activity_check([hopper, ampere])
        assert found.ok is False
        assert "unavailable for GPU 1" in found.says
        assert "dcgm-exporter" in found.command
    monkeypatch.setenv(VARIABLE, "none")
    assert VARIABLE in gpu_checks.activity_check([ampere]).command
    monkeypatch.setenv(VARIABLE, "9400")
    assert "not the URL" in gpu_checks.activity_check([ampere]).says
