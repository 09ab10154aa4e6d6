"""What attach() starts: who this process is, and the server. Imported only then."""

from __future__ import annotations

import atexit
import time
from typing import TYPE_CHECKING

from llmtop.publish import identity
from llmtop.publish.chores import Chores

if TYPE_CHECKING:
    from llmtop.publish.recorder import Recorder


def start(recorder: Recorder) -> None:
    """Fill in the facts and begin to listen.

    Raises:
        Exception: whatever makes it impossible: no msgspec, no directory, no thread. The caller stays off.
    """
    facts = recorder.facts
    facts.started_at = time.time()
    facts.rank, facts.local_rank, facts.world_size = identity.from_environment()
    recorder.run_chores = Chores(recorder)
    # msgspec first comes in here: a script that only imports llmtop never pays for it.
    from llmtop.publish.server import Server

    server = Server(recorder)
    server.start()
    recorder.server = server
    atexit.register(server.stop)
