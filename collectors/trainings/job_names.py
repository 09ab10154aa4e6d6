"""Groups attached processes into runs and names these.

A training reports how it was started (`wire.Launch`); what all ranks of a run have in common names it, so that
every node gives it the same name. Two runs that are there at once never share one: the later name gets what
distinguishes it. A name stays for as long as one of its processes lives, and is free for the next run then.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator
from typing import NamedTuple

from llmtop.format import printable
from llmtop.model.jobs import NAME_SEPARATOR
from llmtop.protocol import wire

_MADE_UP = re.compile(r"[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}|\d{20,}", re.IGNORECASE)
"""A UUID in one of the ways in which torchrun makes up a run's id: its beginning is enough for a person."""
_LOOPBACK = ("localhost", "127.0.0.1", "::1", "[::1]", "0.0.0.0", "")
_PROGRAM = 48


class Member(NamedTuple):
    """A training process, as far as jobs are concerned."""

    key: Hashable
    """The same for as long as it is known."""
    pid: int
    """Pid on this host."""
    hello: wire.Hello
    live: bool
    """True if the process still answers."""

    @property
    def is_rank(self) -> bool:
        """Return True if others may train with it."""
        return self.hello.rank is not None

    @property
    def run_identity(self) -> Hashable:
        """Return the identity that all ranks of a run share with no other run."""
        hello, launch = self.hello, self.hello.launch
        if not self.is_rank:
            return self.key
        # Tasks of srun need not have met yet, or may meet in a way that is not seen.
        master = "" if launch.launcher == "srun" else launch.master
        job, step = launch.slurm_job_id, launch.slurm_step_id
        return launch.program, launch.launcher, job, step, launch.run_id, master, hello.world_size


class _Run:
    """Processes that train together."""

    def __init__(self, together: Hashable, name: str = "") -> None:
        self.together = together
        self.name = name
        self.members: list[Member] = []

    def has_room_for(self, member: Member) -> bool:
        """Return True if it may be one of these: each rank is there once."""
        return all(other.hello.rank != member.hello.rank for other in self.members)


class JobNames:
    """Names the jobs of one monitor's trainings. Not safe for several threads."""

    def __init__(self) -> None:
        self._given: dict[Hashable, tuple[Hashable, str]] = {}
        """Identity and name of the run, by process."""

    def assign_names(self, members: Iterable[Member]) -> dict[Hashable, str]:
        """Return the name of each one's job, by its key.

        Args:
            members: all that are known now; who is not among them is forgotten.
        """
        ordered = sorted(members, key=lambda one: (one.hello.started_at, one.pid))
        runs = self._runs([one for one in ordered if one.live])
        taken = {run.name for run in runs if run.name}
        for run in runs:
            run.name = run.name or next(name for name in _run_names(run.members[0]) if name not in taken)
            taken.add(run.name)
        before = self._given
        self._given = {one.key: (one.run_identity, run.name) for run in runs for one in run.members}
        for one in ordered:
            if one.key not in self._given:
                self._given[one.key] = before.get(one.key, (one.run_identity, next(_run_names(one))))
        return {key: name for key, (_, name) in self._given.items()}

    def _runs(self, live: list[Member]) -> list[_Run]:
        """Return the processes that train together: first those of an existing run, then newer ones."""
        runs: list[_Run] = []
        fresh = []
        for one in live:
            together, name = self._given.get(one.key, (None, ""))
            if together != one.run_identity:
                fresh.append(one)
                continue
            run = next((run for run in runs if (run.together, run.name) == (together, name)), None)
            if run is None:
                runs.append(run := _Run(together, name))
            run.members.append(one)
        for one in fresh:
            of_them = (run for run in runs if run.together == one.run_identity and run.has_room_for(one))
            run = next(of_them, None)
            if run is None:
                runs.append(run := _Run(one.run_identity))
            run.members.append(one)
        return runs


def _run_names(first: Member) -> Iterator[str]:
    """Yield possible names of a process's run: the best name, and additions if that name is taken."""
    hello, launch = first.hello, first.hello.launch
    program = printable(launch.program or program_of(hello.command), _PROGRAM)
    parts = [
        f"slurm {launch.slurm_job_id}" if launch.slurm_job_id else "",
        f"run {_short(launch.run_id)}" if launch.run_id not in ("", launch.slurm_job_id) else "",
        _rendezvous_text(launch.master) if first.is_rank and launch.master else "",
        f"step {launch.slurm_step_id}" if launch.slurm_step_id else "",
        f"pid {first.pid}",
    ]
    known = [text for text in parts if text]
    if len(known) == 1 and first.is_rank and (hello.world_size or 1) > 1:
        known.insert(0, f"{hello.world_size} ranks")  # there is no more information
    best = f"{program}{NAME_SEPARATOR}{known[0]}"
    yield best
    for text in known[1:]:
        yield f"{best}{NAME_SEPARATOR}{text}"
    number = 2
    while True:
        yield f"{best}{NAME_SEPARATOR}{number}"
        number += 1


def _short(run_id: str) -> str:
    return run_id[:8] if _MADE_UP.fullmatch(run_id) else run_id


def _rendezvous_text(master: str) -> str:
    """Return where ranks meet, in few words: ":29500" on this machine, "node:29500", the name of a file."""
    if master.startswith("file:"):
        return master.rpartition("/")[2]
    address, _, port = master.rpartition(":")
    return f":{port}" if address.lower() in _LOOPBACK else master


def program_of(command: str) -> str:
    """Return the program of a command line: "train.py", the name of a module, or "python"."""
    words = command.split()
    name = words[0].rpartition("/")[2] if words else ""
    if not name.startswith("python"):
        return name or "python"
    rest = iter(words[1:])
    for word in rest:
        if word == "-m":
            return next(rest, "python")
        if word == "-c":
            break
        if not word.startswith("-"):
            return word.rpartition("/")[2] or word
    return "python"
