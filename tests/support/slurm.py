"""A real SLURM of one node: munged, slurmctld and slurmd in a folder of their own, as root."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

from tests.support.ports import free_port
from tests.support.processes import REPOSITORY, environment, wait_for

NO_SLURM = "no SLURM: run tests/fetch_hosts.sh, or install slurm-wlm and munge"
_FETCHED = REPOSITORY / ".cache" / "slurm"
_LIBRARIES = "usr/lib/x86_64-linux-gnu"


def find(program: str) -> str | None:
    """The path of one of its programs: fetched to .cache/slurm, else on PATH."""
    for name in (program, f"{program}-wlm"):
        for folder in ("usr/sbin", "usr/bin"):
            if (_FETCHED / folder / name).exists():
                return str(_FETCHED / folder / name)
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def why_not() -> str:
    """Why there can be none here; empty where there can."""
    if os.geteuid() != 0:
        return "SLURM's daemons are run as root, and this is not"
    missing = [name for name in ("munged", "slurmctld", "slurmd", "slurmstepd", "srun") if find(name) is None]
    return NO_SLURM if missing else ""


def _plugins() -> Path:
    fetched = _FETCHED / _LIBRARIES / "slurm-wlm"
    return fetched if fetched.is_dir() else Path("/") / _LIBRARIES / "slurm-wlm"


class Slurm:
    """A context manager; `run` calls its commands."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._daemons: list[subprocess.Popen[bytes]] = []
        self.variables = environment(SLURM_CONF=str(folder / "slurm.conf"))
        if _FETCHED.is_dir():
            libraries = _FETCHED / _LIBRARIES
            self.variables["LD_LIBRARY_PATH"] = f"{libraries}:{libraries / 'slurm-wlm'}"

    def __enter__(self) -> Slurm:
        self._configure()
        self._start("munged", *self._munge())
        wait_for((self.folder / "munge.sock").exists, what="munged")
        self._start("slurmctld", "-D", "-i", "-f", str(self.folder / "slurm.conf"))
        stepd = find("slurmstepd")
        self._start("slurmd", "-D", "-f", str(self.folder / "slurm.conf"), "-d", str(stepd))
        wait_for(lambda: "idle" in self.run("sinfo", "-h", "-o", "%T", check=False), 60, "an idle node")
        return self

    def __exit__(self, *_: object) -> None:
        self.run("scancel", "--state=RUNNING", "--user=root", check=False)
        for daemon in reversed(self._daemons):
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait(100)

    def run(self, program: str, *arguments: str, check: bool = True) -> str:
        """What a command says on stdout."""
        done = subprocess.run(
            [str(find(program)), *arguments],
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert not check or done.returncode == 0, done.stderr + self.logs()
        return done.stdout

    def logs(self) -> str:
        """The ends of the daemons' logs."""
        return "\n".join(path.read_text()[-1500:] for path in self.folder.glob("*.log"))

    def _start(self, program: str, *arguments: str) -> None:
        with (self.folder / f"{program}.log").open("wb") as log:
            command = [str(find(program)), *arguments]
            started = subprocess.Popen(
                command,
                env=self.variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._daemons.append(started)

    def _munge(self) -> list[str]:
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        names = {"key-file": key.name, "socket": "munge.sock", "pid-file": "munge.pid", "log-file": "munge.log"}
        paths = [f"--{option}={self.folder / name}" for option, name in names.items()]
        return ["--foreground", "--force", f"--seed-file={self.folder / 'munge.seed'}", *paths]

    def _configure(self) -> None:
        host = socket.gethostname().partition(".")[0]
        state, spool = self.folder / "state", self.folder / "spool"
        state.mkdir()
        spool.mkdir()
        ports = [free_port(), free_port()]
        (self.folder / "slurm.conf").write_text(
            f"""ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
AuthInfo=socket={self.folder / "munge.sock"}
CredType=cred/munge
PluginDir={_plugins()}
StateSaveLocation={state}
SlurmdSpoolDir={spool}
SlurmctldPidFile={self.folder / "slurmctld.pid"}
SlurmdPidFile={self.folder / "slurmd.pid"}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={os.cpu_count() or 1} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=10 State=UP OverSubscribe=FORCE:4
"""
        )
