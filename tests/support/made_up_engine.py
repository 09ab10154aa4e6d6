"""An engine that nobody wrote llmtop for: what one class and one line in the registry are enough for."""

from __future__ import annotations

import time
from collections.abc import Collection

from llmtop.capture.base.engine import Check, Engine, Refusal
from llmtop.capture.base.job import CaptureJob, Recorded, Target
from llmtop.capture.base.wait_for_window import wait_window
from llmtop.nsys_cli.tool import Option


class MadeUpEngine(Engine):
    """Records that it was there."""

    name = "made-up"
    description = "a file that says hello"
    report_kind = "text"
    counts_steps = True
    options = (Option("loudly", "capital letters", "some ink", False),)

    def __init__(self, refused: Refusal | None = None) -> None:
        self.refused = refused
        self.started: dict[int, bool] = {}
        """What `find_unattached` returns, of whatever it is asked."""

    def refusal(self, target: Target) -> Refusal | None:
        """See `Engine.refusal`."""
        return self.refused

    def find_unattached(self, pids: Collection[int]) -> dict[int, bool]:
        """See `Engine.find_unattached`."""
        return {pid: trains for pid, trains in self.started.items() if pid in pids}

    def checks(self) -> list[Check]:
        """See `Engine.checks`."""
        return [Check(name="ink", ok=False, says="the pen is dry", command="buy ink")]

    def orphan_messages(self) -> list[str]:
        """See `Engine.orphan_messages`."""
        return ["there is a stain on the desk"]

    def warning(self, target: Target, options: object = ()) -> str:
        """See `Engine.warning`."""
        return "nothing of it is true"

    def record(self, job: CaptureJob) -> Recorded:
        """See `Engine.record`."""
        job.stage("record")
        begun = time.time_ns()
        notes = wait_window(job, begun)
        job.window = (begun, time.time_ns())
        text = "HELLO" if "loudly" in job.plan.options else "hello"
        (job.folder / "hello.txt").write_text(text)
        return Recorded(report=(f"# {text} from {len(job.plan.targets)}", {"says": text}), notes=notes)
