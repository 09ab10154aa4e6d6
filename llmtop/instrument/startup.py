"""Work of attach(): the identity of the process, and the server. Imported only then."""

from __future__ import annotations

import atexit
import os
import time
from typing import TYPE_CHECKING

from llmtop.errors import NotPossibleHere
from llmtop.instrument import ending
from llmtop.instrument.guest import threads
from llmtop.instrument.guest.interrupts import raised_by_handler
from llmtop.instrument.guest.sanitize import log_once
from llmtop.instrument.identity import launcher_env, process_group
from llmtop.instrument.pytorch.compile import keep_untraced
from llmtop.instrument.record.boundary_observers import Nvtx, Watch, tool_listens
from llmtop.instrument.record.costs import Costs
from llmtop.instrument.record.cpu_waits import CpuWaits, can_measure
from llmtop.instrument.record.periodic import PeriodicTasks
from llmtop.naming import variable_names
from llmtop.system import procfs

if TYPE_CHECKING:
    from llmtop.instrument.identity.run_info import Facts
    from llmtop.instrument.record.state import State
    from llmtop.instrument.serve.hello import CaptureControl, Controls, OperatorControl, PauseControl


def start(recorder: State, watch: Watch) -> None:
    """Fill in the facts and begin to listen. May be called again when a signal's handler has cut it short.

    Raises:
        NotPossibleHere: this process has no threads to listen in.
        Exception: whatever else makes it impossible: no msgspec, no thread. The caller stays off.
    """
    library = threads.replaced_by()
    if library is not None:
        raise NotPossibleHere(
            f"{library} has replaced the threads and sockets of this process, and llmtop works only with the "
            "original ones"
        )
    facts = recorder.facts
    facts.started_at = time.time()
    facts.rank, facts.local_rank, facts.world_size = launcher_env.from_environment()
    facts.launch = launcher_env.launch()
    process_group.learn(facts)
    recorder.costs = Costs()
    recorder.cpu_waits = CpuWaits() if can_measure() else None
    recorder.run_periodic = PeriodicTasks(recorder, _listen_to_store)
    watch.step_is_hooked = facts.auto
    if tool_listens():
        watch.nvtx = Nvtx()
    keep_untraced()
    procfs.share_process()
    # msgspec first comes in here: a script that only imports llmtop never pays for it.
    from llmtop.instrument.serve.server import Server

    if recorder.server is None:
        recorder.server = Server(recorder, controls())
        atexit.register(ending.end, recorder)
    if os.environ.get(variable_names.RUN_LOG) != "0":
        ending.keeps_run = True
        _start_run_log(recorder)
    recorder.server.start()


def _start_run_log(recorder: State) -> None:
    """Start the thread that writes the run of this process.

    What it needs is imported here: a script may close all descriptors, also that of an import under way in another
    thread, which then closes a file of the script's own by the same number.
    """
    try:
        from llmtop.instrument.run_log import writer

        writer.start(recorder)
    except Exception as error:
        if raised_by_handler(error):
            raise
        log_once(error)


def controls() -> Controls:
    """Return what a monitor can control here.

    The modules are imported when a monitor first needs them, in the server thread. What they do at the end of the
    process and at a fork, they register in `guest.registry`.
    """
    from llmtop.instrument.serve.hello import Controls

    return Controls(_captures, _pauses, _operators)


def _captures() -> CaptureControl:
    from llmtop.instrument.control import self_capture

    return self_capture


def _pauses() -> PauseControl:
    from llmtop.instrument.control import pause

    return pause


def _operators() -> OperatorControl:
    from llmtop.instrument.control import op_ranges

    return op_ranges


def _listen_to_store(facts: Facts) -> None:
    """Listen for captures at a step in the job's store; without a thread or a file to be had, do not."""
    try:
        from llmtop.instrument.control import store_listener

        store_listener.begin(facts)
    except Exception as error:
        if raised_by_handler(error):
            raise
