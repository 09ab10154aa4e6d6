"""py-spy: the Python stacks of a process that knows nothing of it, read from outside and without pausing it."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from llmtop import procfs
from llmtop.capture import folder
from llmtop.capture.engine import Check, Engine, Refusal
from llmtop.capture.job import Job, Recorded, Target
from llmtop.capture.py_spy import ptrace_permission, stacks
from llmtop.capture.wait_for_window import seconds_for, wait_window
from llmtop.errors import NotPossibleHere, UnusableInput
from llmtop.format import printable

RATE_HZ = 100
START_SECONDS = 20.0
WRITE_SECONDS = 20.0
DUMP_SECONDS = 5.0
_DUMP_TRIES = 3
"""Without a pause a stack can change under py-spy's eyes; it then gives up and is asked again."""


def find() -> Path:
    """py-spy's program: beside this Python, else on PATH.

    Raises:
        NotPossibleHere: it is not there.
    """
    beside = Path(sys.executable).with_name("py-spy")
    if beside.is_file():
        return beside
    on_path = shutil.which("py-spy")
    if on_path is None:
        raise NotPossibleHere("py-spy is not installed: pip install py-spy")
    return Path(on_path)


def check(pid: int) -> None:
    """See whether py-spy can read a process.

    Raises:
        NotPossibleHere: it cannot; the sentence names the command that would change it.
    """
    find()
    refused = ptrace_permission.refusal(pid)
    if refused is not None:
        raise NotPossibleHere(f"{refused.because}; to change that: {refused.command}")


def dump(pid: int) -> tuple[stacks.ThreadStack, ...]:
    """The stacks of all Python threads now; takes about 0.05 s and does not pause the process.

    Raises:
        NotPossibleHere: not permitted, no Python process, or gone.
    """
    check(pid)
    last = ""
    for _ in range(_DUMP_TRIES):
        try:
            done = subprocess.run(
                [str(find()), "dump", "--json", "--nonblocking", "--full-filenames", "--pid", str(pid)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=DUMP_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            last = f"no answer within {DUMP_SECONDS:.0f} s"
            continue
        if done.returncode == 0:
            return stacks.from_dump(done.stdout, pid)
        last = done.stderr.decode(errors="replace")
    raise NotPossibleHere(_said(pid, last))


def _said(pid: int, text: str) -> str:
    if not procfs.is_alive(pid):
        return f"process {pid} has ended"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reason = printable(lines[0].removeprefix("Error: ")) if lines else "it gave no reason"
    return f"py-spy cannot read process {pid} ({reason}); is it a Python process?"


def _is_python(target: Target) -> bool:
    if target.hello is not None:
        return True
    try:
        if "python" in Path(os.readlink(f"/proc/{target.pid}/exe")).name:
            return True
        return "libpython" in Path(f"/proc/{target.pid}/maps").read_text(errors="replace")
    except OSError:
        return True  # not ours to see; the check of permissions says so


@dataclass
class _Recording:
    target: Target
    raw: Path
    process: subprocess.Popen[bytes]
    log_fd: int

    def log(self) -> str:
        return os.pread(self.log_fd, 1 << 16, 0).decode(errors="replace")

    def stop(self) -> None:
        """Ask it to write what it has."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()  # py-spy itself, never the training
            self.process.wait()
        os.close(self.log_fd)


class PySpyEngine(Engine):
    """Samples Python stacks; a speedscope file and a tree a process."""

    name = "py-spy"
    gives = "Python stacks only, read from outside: where the CPU's time goes"
    open_with = "https://www.speedscope.app"

    def refusal(self, target: Target) -> Refusal | None:
        """See `Engine.refusal`."""
        try:
            find()
        except NotPossibleHere as missing:
            because, _, command = str(missing).partition(": ")
            return Refusal(because, command)
        if not _is_python(target):
            return Refusal("it is no Python process")
        return ptrace_permission.refusal(target.pid)

    def checks(self) -> list[Check]:
        """See `Engine.checks`."""
        return [_program(), ptrace_permission.reading()]

    def record(self, job: Job) -> Recorded:
        """See `Engine.record`."""
        job.stage("prepare")
        for target in job.plan.targets:
            check(target.pid)
        job.stage("start")
        recordings: list[_Recording] = []
        try:
            recordings += (_begin(job, target) for target in job.plan.targets)
            for recording in recordings:
                _await_start(job, recording)
            begun = time.time_ns()
            job.stage("record")
            notes = wait_window(job, begun)
            job.window = (begun, time.time_ns())
            job.stage("stop")
            for recording in recordings:
                recording.stop()
            for recording in recordings:
                _await_end(job, recording)
        finally:
            for recording in recordings:
                recording.close()
        return _finish(job, recordings, notes)


def _begin(job: Job, target: Target) -> _Recording:
    raw = job.folder / f"{target.stem}.folded"
    log_fd = os.memfd_create("llmtop-py-spy")
    # Bounded, so that a py-spy whose monitor was killed ends as well.
    seconds = job.plan.seconds or seconds_for(job)
    bound = math.ceil(3 * seconds) + 30
    command = [str(find()), "record", "--pid", str(target.pid), "--duration", str(bound), "--rate", str(RATE_HZ)]
    command += [
        "--format",
        "raw",
        "--threads",
        "--idle",
        "--nonblocking",
        "--full-filenames",
        "--output",
        str(raw),
    ]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=log_fd, stderr=log_fd, start_new_session=True
    )
    return _Recording(target, raw, process, log_fd)


def _await_start(job: Job, recording: _Recording) -> None:
    deadline = time.monotonic() + START_SECONDS
    while "Sampling process" not in recording.log():
        if recording.process.poll() is not None:
            raise NotPossibleHere(_said(recording.target.pid, recording.log()))
        if time.monotonic() > deadline:
            raise NotPossibleHere(f"py-spy has not begun within {START_SECONDS:.0f} s; the training runs on")
        job.sleep(0.01)


def _await_end(job: Job, recording: _Recording) -> None:
    deadline = time.monotonic() + WRITE_SECONDS
    while recording.process.poll() is None:
        if time.monotonic() > deadline:
            raise NotPossibleHere(
                f"py-spy has not written {recording.raw} within {WRITE_SECONDS:.0f} s: nothing was kept"
            )
        job.sleep(0.02)
    if not recording.raw.is_file() or recording.raw.stat().st_size == 0:
        said = "; ".join(line for line in recording.log().splitlines() if "rror" in line) or "it gave no reason"
        raise NotPossibleHere(f"py-spy left no samples in {recording.raw} ({printable(said)}): is the disk full?")


def _finish(job: Job, recordings: list[_Recording], notes: list[str]) -> Recorded:
    recorded = Recorded(notes=notes, tool={"py-spy": str(find())})
    texts, data = [], []
    for recording in recordings:
        samples = _samples(recording)
        profile = job.folder / f"{recording.target.stem}.speedscope.json"
        folder.write(profile, stacks.speedscope(samples, recording.target.name, RATE_HZ))
        recorded.traces.append(profile)
        texts.append(_markdown(recording.target, samples))
        data.append({"pid": recording.target.pid, "rank": recording.target.rank, "threads": _data(samples)})
    recorded.report = ("\n".join(texts), {"engine": "py-spy", "rate_hz": RATE_HZ, "processes": data})
    return recorded


def _samples(recording: _Recording) -> stacks.Samples:
    try:
        return stacks.from_raw(recording.raw.read_text(errors="replace"))
    except (OSError, UnusableInput) as error:
        raise NotPossibleHere(f"what py-spy wrote to {recording.raw} cannot be used: {error}") from None


def _data(samples: stacks.Samples) -> list[dict[str, object]]:
    return [
        {
            "thread": thread,
            "samples": sum(number for _, number in samples.of(thread)),
            "hottest": [
                {"frame": text, "self_samples": own, "total_samples": total}
                for text, own, total in stacks.hottest(samples, thread)
            ],
        }
        for thread in samples.threads
    ]


def _markdown(target: Target, samples: stacks.Samples) -> str:
    lines = [f"# Python stacks of {target.name}", ""]
    lines += [
        f"{RATE_HZ} samples a second of each thread, waiting ones included; ▸ marks the script's own code.",
        "",
    ]
    for thread in samples.threads:
        root = samples.flame(thread)
        lines += [f"## {thread}: {root.samples} samples", "", "```"]
        lines += stacks.tree_lines(root)
        lines += ["```", ""]
    return "\n".join(lines)


def _program() -> Check:
    try:
        return Check(name="py-spy", ok=True, says=str(find()))
    except NotPossibleHere as refusal:
        because, _, command = str(refusal).partition(": ")
        return Check(name="py-spy", ok=False, says=because, command=command)
