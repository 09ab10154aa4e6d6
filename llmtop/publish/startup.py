"""What attach() starts: who this process is, and the server. Imported only then."""

from __future__ import annotations

import atexit
import time
from typing import TYPE_CHECKING

from llmtop.publish import identity
from llmtop.publish.chores import Chores
from llmtop.publish.compiling import keep_untraced
from llmtop.publish.watch import Nvtx, Watch, tool_listens

if TYPE_CHECKING:
    from llmtop.publish.state import State


def start(recorder: State, watch: Watch) -> None:
    """Fill in the facts and begin to listen.

    Raises:
        Exception: whatever makes it impossible: no msgspec, no directory, no thread. The caller stays off.
    """
    facts = recorder.facts
    facts.started_at = time.time()
    facts.rank, facts.local_rank, facts.world_size = identity.from_environment()
    recorder.run_chores = Chores(recorder)
    watch.step_is_hooked = facts.auto
    if tool_listens():
        watch.nvtx = Nvtx()
    keep_untraced()
    # msgspec first comes in here: a script that only imports llmtop never pays for it.
    from llmtop.publish.server import Server

    server = Server(recorder)
    server.start()
    recorder.server = server
    atexit.register(server.stop)
