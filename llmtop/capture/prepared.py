"""Captures that were recorded beforehand, opened as if they were taken now: for the demo, where nothing runs.

Their traces are real and lie packed in one archive; the report is made of them on the spot, as of any capture.
"""

from __future__ import annotations

import atexit
import shutil
import tarfile
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from llmtop.capture import take
from llmtop.capture.base import folder as folders
from llmtop.capture.base.folder import Info
from llmtop.capture.base.job import CaptureJob, OnProgress, Plan, Target
from llmtop.capture.base.step_listener import StepListener
from llmtop.capture.capabilities import Ability
from llmtop.capture.engines import ENGINES
from llmtop.capture.take import Result, TakeSnapshot
from llmtop.errors import NotPossibleHere
from llmtop.model.snapshot import Snapshot

STEPS = 5
PID = 463
"""Pid of the process that was recorded, as in the traces."""
_MIN_STAGE_SECONDS = 0.25
"""Seconds that a stage takes at least: quicker ones would flash by unread."""


@dataclass(frozen=True)
class Story:
    """One of the captures."""

    member: str
    """Name in the archive, without the engine before it and the ending."""
    name: str
    description: str
    """Description of the recording, in a sentence."""
    next_step: str
    """Next key or action after its report."""
    alert: str = ""
    """The id of the alert that it explains."""


STARVED = Story(
    "input_sleep",
    "the starved training",
    "A GPT on an H200 that waits for its data loader, as on the screen. It is smaller: its step takes 14 ms "
    "without that wait.",
    "A second capture has that fix: press enter twice to open it.",
    "input_bound",
)
FIXED = Story(
    "healthy_medium",
    "the same training, fixed",
    "The same GPT on the same H200 with the fix of the report: workers and prefetching have each batch ready in "
    "time.",
    "o lists both captures; there v compares this one with the one before the fix.",
)
LAUNCHING = Story(
    "launch_tiny",
    "the launch-bound training",
    "A tiny model on an H200 with an optimizer that launches a kernel for each parameter, as on the screen.",
    "The demo has no capture with this fix. It has one for the starved training.",
    "launch_bound",
)
STORIES = (STARVED, FIXED, LAUNCHING)


@dataclass(frozen=True)
class PreparedTarget(Target):
    """Target of a prepared capture."""

    story: Story = STARVED

    @property
    def name(self) -> str:
        """For sentences, as of a rank."""
        return self.story.name

    @property
    def command(self) -> str | None:
        """Return None: no program runs."""
        return f"recorded, {STEPS} steps"


class PreparedResult(Result):
    """Result of a prepared capture. Its trace has no file that another program opens."""

    @property
    def open_command(self) -> str:
        """See `Result.open_command`."""
        return f"llmtop report {self.folder}"


class PreparedCaptures:
    """The captures of an archive, and the folder for them: a temporary one that goes with the program."""

    def __init__(self, archive: Path) -> None:
        """Open nothing yet.

        Args:
            archive: has a member ENGINE-NAME.sqlite for each of `STORIES`.
        """
        self._archive = archive
        self._lock = threading.Lock()
        self.taken: list[Story] = []
        """Stories in the order in which they were opened."""

    @cached_property
    def parent(self) -> Path:
        """Where they go; made when it is asked for first, and removed when the program ends."""
        made = Path(tempfile.mkdtemp(prefix="llmtop-demo-"))
        atexit.register(self.close)
        return made

    def close(self) -> None:
        """Remove what was unpacked."""
        with suppress(KeyError):
            shutil.rmtree(self.__dict__.pop("parent"), ignore_errors=True)

    def targets(self, snapshot: Snapshot | None) -> list[PreparedTarget]:
        """Return possible targets, first those that fit the moment: the fix after its fault, then targets of
        alerts."""
        holding = {alert.id for alert in snapshot.alerts} if snapshot is not None else set()
        fits = [story for story in STORIES if story.alert in holding and story not in self.taken]
        if STARVED in self.taken and FIXED not in self.taken:
            fits.insert(0, FIXED)
        ordered = dict.fromkeys([*fits, *STORIES])
        return [PreparedTarget(PID, story=story) for story in ordered]

    def abilities(self) -> tuple[Ability, ...]:
        """Return each engine's support: only that of the recording engine."""
        recorded = self._members()
        return tuple(
            Ability(name, True, "recorded")
            if name in recorded
            else Ability(name, False, "the demo's captures are not of this engine")
            for name in ENGINES
        )

    def _members(self) -> dict[str, dict[str, str]]:
        """Return the archive's members by engine and name.

        Raises:
            NotPossibleHere: it is missing or damaged.
        """
        try:
            with tarfile.open(self._archive) as packed:
                names = packed.getnames()
        except (OSError, tarfile.TarError, EOFError) as error:
            raise _damaged_error(error) from None
        found: dict[str, dict[str, str]] = {}
        for name in names:
            engine, _, rest = name.partition("-")
            found.setdefault(engine, {})[rest.removesuffix(".sqlite")] = name
        return found

    def take(
        self,
        plan: Plan,
        on_progress: OnProgress = lambda progress: None,
        cancelled: threading.Event | None = None,
        snapshot: TakeSnapshot = lambda: None,
    ) -> Result:
        """Open one of the recorded captures in place of recording one; for the demo.

        Args:
            plan: its only target must be a `PreparedTarget`.
            on_progress: called in this thread at each change.
            cancelled: set by the caller to cancel; None: cannot be cancelled.
            snapshot: ignored; it is of another run than the capture.

        Returns:
            As of `llmtop.capture.take.take`, with a folder of its own that is deleted on an error.

        Raises:
            NotPossibleHere: the disk is too full.
            Cancelled: the person cancelled.
        """
        del snapshot  # of another run than the capture
        (target,) = plan.targets
        assert isinstance(target, PreparedTarget)
        folders.check_disk(plan.parent)
        path = folders.make_folder(plan.parent, f"{target.story.member.split('_')[0]}-{plan.engine}")
        watch = StepListener([])
        try:
            job = CaptureJob(plan, path, watch, on_progress, cancelled)
            return self._open(job, target.story)
        except BaseException:
            folders.discard(path)
            raise
        finally:
            watch.close()

    def _open(self, job: CaptureJob, story: Story) -> Result:
        job.stage("prepare", "recorded beforehand: nothing runs here")
        trace = self._unpack(job, story)
        job.sleep(_MIN_STAGE_SECONDS)
        job.stage("analyse", "reading the trace")
        info = Info(
            engine=job.plan.engine,
            host="recorded on an H200",
            started_at=time.time(),
            pids=[PID],
            ranks=[None],
            steps_wanted=STEPS,
            notes=[
                f"prepared: {story.description} It was recorded beforehand, is read now, and goes when the demo "
                "ends.",
                story.next_step,
            ],
        )
        folders.write_info(job.folder, info)  # the report is over the steps that were asked for
        report = take.written_report(job, trace)
        info.steps = report.steps.count if report.steps is not None else None
        job.sleep(_MIN_STAGE_SECONDS)
        job.end_stage()
        info.stage_seconds = {name: round(seconds, 3) for name, seconds in job.stage_seconds.items()}
        info.state, info.finished_at = "done", time.time()
        folders.write_info(job.folder, info)
        job.stage("done")
        with self._lock:
            self.taken.append(story)
        return PreparedResult(job.folder, info, folders.total_bytes(job.folder), trace, report)

    def _unpack(self, job: CaptureJob, story: Story) -> Path:
        name = self._members()[job.plan.engine][story.member]
        path = job.folder / "capture.sqlite"
        try:
            with tarfile.open(self._archive) as packed:
                member = packed.extractfile(name)
                if member is None:
                    raise NotPossibleHere(f"{name} is missing from the demo captures; reinstall llmtop")
                folders.write(path, member.read())
        except (OSError, tarfile.TarError, EOFError) as error:
            raise _damaged_error(error) from None
        return path


def _damaged_error(error: Exception) -> NotPossibleHere:
    return NotPossibleHere(f"the captures that llmtop demo opens cannot be read ({error}); install llmtop anew")
