"""Record one planted fault: torchrun with four gloo ranks, and what an operator would keep of it.

The recording is a folder: `dumps/RANK` (and `.json`), `torchrun/NODE/...` as --log-dir writes it,
`launcher.NODE.log`, and for jobs that hang `stacks/RANK.txt` (py-spy) and `ps.NODE.txt`.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path

from tests.support.ports import free_port
from tests.support.postmortem_faults import FAULTS, Fault, write_scripts
from tests.support.processes import REPOSITORY, wait_for

RANKS = 4
SHARD_BYTES = 400_000
END_SECONDS = 150
"""A stopped rank ends 30 s after the others: torchrun sends SIGTERM first."""
NODES = ("node-a", "node-b")


class PlantedJob:
    """One job with a fault (a context manager that ends all its processes)."""

    def __init__(self, name: str, folder: Path, *, is_neutral: bool = False) -> None:
        """Args:
        name: of `FAULTS`.
        folder: for the recording; made.
        is_neutral: run in a mount and host-name namespace, so that paths and hosts are neutral (needs root).
        """
        self.fault: Fault = FAULTS[name]
        self.folder, self.is_neutral = folder.resolve(), is_neutral
        self.home = self.folder / "job"
        self.seen = Path("/home/ml/job") if is_neutral else self.home
        """The job's folder as its processes see it."""
        self.token = uuid.uuid4().hex
        self.launchers: list[subprocess.Popen[bytes]] = []
        self.port = free_port()

    def __enter__(self) -> PlantedJob:
        self._write_data()
        write_scripts(self.fault, self.home)
        for node in range(self.fault.nodes):
            self.launchers.append(self._launch(node))
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self._processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for launcher in self.launchers:
            with suppress(ProcessLookupError):
                os.killpg(launcher.pid, signal.SIGKILL)
            launcher.wait(30)

    def _write_data(self) -> None:
        shards = self.home / ("storage" if self.fault.is_on_fuse else "data")
        shards.mkdir(parents=True)
        (self.home / "data").mkdir(exist_ok=True)
        (self.home / "fr").mkdir()
        for rank in range(RANKS):
            letters = bytearray(random.Random(rank).choices(b"abcdefghijklmnopqrstuvwxyz", k=SHARD_BYTES))
            if rank == self.fault.rank and self.fault.marker:
                letters[3000:3001] = self.fault.marker
            if rank == self.fault.rank and self.fault.short_shard:
                del letters[132 * 24 :]
            (shards / f"shard-{rank:02d}.bin").write_bytes(letters)

    def _launch(self, node: int) -> subprocess.Popen[bytes]:
        fault = self.fault
        variables = {
            **{name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ},
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": "/home/ml",
            "USER": "ml",
            "LANG": "C.UTF-8",
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "PYTHONWARNINGS": "ignore",
            "PYTHONUNBUFFERED": "1",
            "DATA": str(self.seen / "data"),
            "COLLECTIVE_TIMEOUT": str(fault.timeout),
            "STALL_SECONDS": str(fault.timeout - 6),
            "TORCH_FR_BUFFER_SIZE": "2000",
            "TORCH_FR_DUMP_TEMP_FILE": str(self.seen / "fr" / "trace_"),
            "FR_JSON": str(int(fault.json_too)),
            "TORCH_DISTRIBUTED_DEBUG": fault.debug,
            "RUN_TOKEN": self.token,
        }
        python = "/opt/llm/bin/python" if self.is_neutral else sys.executable
        command = [
            *(python, "-m", "torch.distributed.run", f"--nproc-per-node={RANKS // fault.nodes}"),
            *(f"--nnodes={fault.nodes}", f"--node-rank={node}", "--master-addr=127.0.0.1"),
            *(f"--master-port={self.port}", "--monitor-interval=4", f"--log-dir={self.seen}/logs/{NODES[node]}"),
            *(("--tee=3",) if fault.tee else ("--redirects=3",)),
            str(self.seen / fault.name),
        ]
        if self.is_neutral:
            command = ["unshare", "--mount", "--uts", "bash", "-c", self._namespace(node), "bash", *command]
        elif fault.is_on_fuse:
            raise SystemExit("The fault fuse is recorded with --neutral alone: it mounts a file system.")
        with (self.folder / f"launcher.{NODES[node]}.log").open("wb") as output:
            return subprocess.Popen(
                command, env=variables, cwd=self.home, stdout=output, stderr=output, start_new_session=True
            )

    def _namespace(self, node: int) -> str:
        """Return the shell commands that make the namespace and run the arguments in it."""
        prefix = Path(sys.base_prefix)
        config = self.folder / f"pyvenv.{node}.cfg"
        config.write_text("home = /opt/python3.11/bin\ninclude-system-site-packages = false\n")
        lines = [
            f"set -e; hostname {NODES[node]}",
            "mount -t tmpfs none /home; mkdir -p /home/ml/job",
            f"mount --bind {self.home} /home/ml/job; mount -t tmpfs none /opt; mkdir /opt/llm /opt/python3.11",
            f"mount --bind {sys.prefix} /opt/llm; mount --bind {prefix} /opt/python3.11",
            f"mount --bind {config} /opt/llm/pyvenv.cfg; cd /home/ml/job",
        ]
        if self.fault.is_on_fuse:
            lines += [
                f"(cd {REPOSITORY}; exec {sys.executable} -m tests.support.hanging_fuse {self.home}/storage "
                f"/home/ml/job/data shard-{self.fault.rank:02d}.bin 2600 > /dev/null) & sleep 2",
            ]
        return "; ".join((*lines, 'exec "$@"'))

    def _processes(self) -> dict[int, int]:
        """Return the rank of each process of the job by pid; -1 for launchers."""
        found = {}
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            with suppress(OSError):
                variables = Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")
                if f"RUN_TOKEN={self.token}".encode() in variables:
                    ranks = [int(one[5:]) for one in variables if one.startswith(b"RANK=")]
                    found[int(entry)] = ranks[0] if ranks else -1
        return found

    def _logs(self) -> bytes:
        return b"".join(path.read_bytes() for path in self.home.glob("logs/*/*/attempt_*/*/std*.log"))

    def run(self) -> None:
        """Wait until steps run, plant what comes from outside, take stacks of a hang, and wait for the end."""
        wait_for(lambda: self._logs().count(b"step") >= 2, 120, "steps")
        ranks = {rank: pid for pid, rank in self._processes().items() if rank >= 0}
        if self.fault.signal:
            time.sleep(1.5)
            os.kill(ranks[self.fault.rank], signal.Signals[self.fault.signal])
        if self.fault.address_space:
            pid = ranks[self.fault.rank]
            mapped = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            limit = mapped + self.fault.address_space
            resource.prlimit(pid, resource.RLIMIT_AS, (limit, limit))
        if self.fault.hangs:
            wait_for(lambda: list(self.home.glob("fr/trace_?")), 90, "a dump")
            self._take_stacks(ranks)
        deadline = time.monotonic() + END_SECONDS
        for launcher in self.launchers:
            with suppress(subprocess.TimeoutExpired):
                launcher.wait(max(1.0, deadline - time.monotonic()))

    def _py_spy(self, pid: int, *options: str) -> subprocess.Popen[bytes]:
        inside = ["nsenter", f"--target={pid}", "--mount", "--uts"] if self.is_neutral else []
        program = "/opt/llm/bin/py-spy" if self.is_neutral else str(Path(sys.executable).parent / "py-spy")
        command = [*inside, program, "dump", *options, "--pid", str(pid)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def _take_stacks(self, ranks: dict[int, int]) -> None:
        (self.folder / "stacks").mkdir()
        ordered = sorted(ranks.items())
        blocking = {rank: self._py_spy(pid) for rank, pid in ordered}
        for rank, pid in ordered:
            try:
                stack = blocking[rank].communicate(timeout=3)[0]
            except subprocess.TimeoutExpired:
                # py-spy waits for a process that the kernel does not stop: one that waits for a file system.
                blocking[rank].kill()
                stack = self._py_spy(pid, "--nonblocking").communicate(timeout=240)[0]
            (self.folder / "stacks" / f"{rank}.txt").write_bytes(stack)
        by_node = RANKS // self.fault.nodes
        for node in range(self.fault.nodes):
            pids = ",".join(str(pid) for rank, pid in ordered if rank // by_node == node)
            listing = subprocess.run(
                ["ps", "-o", "pid,stat,wchan:24,pcpu,args", "-p", pids],
                capture_output=True,
                timeout=30,
                check=False,
            )
            (self.folder / f"ps.{NODES[node]}.txt").write_bytes(listing.stdout)

    def collect(self) -> None:
        """Move what is evidence beside the job's folder, and remove that."""
        shutil.move(self.home / "logs", self.folder / "torchrun")
        (self.folder / "dumps").mkdir()
        for path in self.home.glob("fr/*"):
            shutil.move(path, self.folder / "dumps" / path.name.removeprefix("trace_"))
        for path in (self.home, *self.folder.glob("pyvenv.*")):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def record(name: str, folder: Path, *, is_neutral: bool = False) -> None:
    """Record a fault of `FAULTS` into a folder, which is made."""
    folder.mkdir(parents=True)
    with PlantedJob(name, folder, is_neutral=is_neutral) as job:
        job.run()
    job.collect()
