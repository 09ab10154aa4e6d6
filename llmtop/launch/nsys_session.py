"""An nsys session for a training that is no child of nsys.

`nsys launch` takes from the program that it starts the terminal, the signals and the exit code. But what makes a
process part of a session is its environment alone (LD_PRELOAD, the injection libraries' paths, the session's id).
So nsys is given this module to launch, which hands that environment over and then holds the session open, while
the training starts in the place that it would have without nsys. NVTX and OS runtime traces of a process outside
nsys's own tree were whole with 2023.4.4, and neither killing nsys nor ending the session touched it. CPU sampling
needs ``--sample=system-wide`` then: "process-tree" sees the keeper only.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

if __name__ == "__main__":  # nsys runs this file by its path, in an interpreter that knows no packages (-I -S)
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from llmtop.launch import run_lifetime
from llmtop.naming import variable_names

AGAIN_SECONDS = 0.5
BUSY_SECONDS = 30.0
"""For how long an nsys that gives up on a busy machine is started again."""
COLLECTING_SECONDS = 60.0
"""Time in which the starter of a capture may stop it after the training has ended."""

_NOT_FOR_THE_TRAINING = frozenset({"LD_LIBRARY_PATH", "PWD", "OLDPWD", "SHLVL", "_"})
"""Variables that a wrapper script around nsys changes for nsys's own sake."""


def start(
    command: Callable[[str], Sequence[str]], new_name: Callable[[], str], environment: Mapping[str, str]
) -> tuple[str, dict[str, str]]:
    """Start a session, again where nsys ends before it has one: the training has not begun.

    nsys gives up where the process that it starts its program with gets no core for half a second; it is started
    again until that process gets one. After any other end it is started once more: one was seen while another
    session was ending.

    Args:
        command: makes the command line of nsys up to the program, of a session's name
            (`llmtop.nsys_cli.tool.launch_command`).
        new_name: makes a name that no session has.
        environment: what the training would have without nsys, with a `lifetime.MARKER`.

    Returns:
        The session's name, and what a process must have in its environment to be part of it.

    Raises:
        NotPossibleHere: nsys did not start it; what it said is in the sentence.
    """
    from llmtop.errors import NotPossibleHere
    from llmtop.launch.spawn_detached import EndedEarly
    from llmtop.nsys_cli.words import is_launcher_timeout

    deadline = time.monotonic() + BUSY_SECONDS
    may_fail = True
    while True:
        session = new_name()
        try:
            return session, _start_once(command(session), session, environment)
        except EndedEarly as ended:
            if is_launcher_timeout(ended.output):
                if time.monotonic() > deadline:
                    raise NotPossibleHere(
                        f"nsys was started again for {BUSY_SECONDS:.0f} s and gave up each time: this machine is "
                        "too busy to run its launcher within 0.5 s; stop other programs, or start without --nsys"
                    ) from None
            elif may_fail:
                may_fail = False
            else:
                raise
        time.sleep(AGAIN_SECONDS)


def _start_once(launch: Sequence[str], session: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Start a session, and return what a process must have in its environment to be part of it.

    The session ends after this process, whatever program that has become by then, and after all others that
    carry the same `lifetime.MARKER`.

    Args:
        launch: the command line of nsys up to the program (`llmtop.nsys_cli.tool.launch_command`).
        session: its name, as in `launch`.
        environment: what the training would have without nsys, with a `lifetime.MARKER`.

    Raises:
        EndedEarly: nsys ended; its output is in the sentence.
        NotPossibleHere: nsys was not ready in time.
    """
    from llmtop.launch import spawn_detached

    keeper = [sys.executable, "-I", "-S", str(Path(__file__).resolve())]
    about = [str(os.getpid()), environment[run_lifetime.MARKER], launch[0], session]
    # The keeper does not carry the marker itself: it waits until no process does.
    bare = {name: value for name, value in environment.items() if name != run_lifetime.MARKER}
    handed = spawn_detached.start("nsys", lambda address: [*launch, *keeper, "launched", address, *about], bare)
    return {
        name: value
        for name, value in handed.items()
        if environment.get(name) != value and name not in _NOT_FOR_THE_TRAINING
    }


def _collecting(nsys: str, session: str) -> bool:
    try:
        listed = subprocess.run(
            [nsys, "sessions", "list"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    lines = [line.split() for line in listed.stdout.splitlines() if line.split()[-1:] == [session]]
    return any(len(line) > 2 and line[2].startswith(("Collect", "Started", "Delay")) for line in lines)


def _keep(pid: int, marker: str, nsys: str, session: str) -> None:
    run_lifetime.wait_for_end(pid, marker)
    deadline = time.monotonic() + COLLECTING_SECONDS
    while _collecting(nsys, session) and time.monotonic() < deadline:
        time.sleep(2 * run_lifetime.POLL_SECONDS)


def _main(arguments: list[str]) -> None:
    """Hand over, then keep in an interpreter that nsys is not injected into: it would show in every report."""
    if arguments[0] == "launched":
        from llmtop.launch.spawn_detached import hand_over

        hand_over(arguments[1], os.environ)
        injected = variable_names.PROFILER_PREFIXES
        clean = {name: value for name, value in os.environ.items() if not name.startswith(injected)}
        again = [sys.executable, "-I", "-S", str(Path(__file__).resolve()), "keep", *arguments[2:]]
        os.execve(sys.executable, again, clean)
    pid, marker, nsys, session = arguments[1:]
    _keep(int(pid), marker, nsys, session)


if __name__ == "__main__":
    _main(sys.argv[1:])
