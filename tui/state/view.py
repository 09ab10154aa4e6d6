"""State of a screen: the newest snapshot, the past, and the user's choices."""

from __future__ import annotations

from msgspec import Struct, field

from llmtop.model.snapshot import Gpu, Job, Rank, Snapshot
from tui.paint import gpu_names
from tui.paint.row_cache import RowCache
from tui.state.alerts import AlertLog
from tui.state.history import History
from tui.state.order import Order


class View(Struct):
    """Shown data and the user's choices. The app owns it; screens read it, keys change it."""

    history: History = field(default_factory=History)
    alerts: AlertLog = field(default_factory=AlertLog)
    """Alerts that hold and alerts that ended."""
    snapshot: Snapshot | None = None
    """Shown snapshot: the newest, or that of the instant to which `history` is rewound."""
    selected: str | None = None
    """uuid of the selected GPU."""
    rank_pid: int | None = None
    """pid of the training process in the steps pane; None: the selected GPU's, or the first."""
    paused: bool = False
    order: Order = Order()
    """Order of the table of GPUs and ranks on the main screen."""
    rank_order: Order = Order()
    """Order of the screen of ranks."""
    rank_group: str = ""
    """The role by which that screen groups ranks ("pp"); "": not grouped."""
    only_attached: bool = False
    """Show only GPUs that attached trainings use, where the feed itself cannot choose."""
    selection: str = "all"
    """Which GPUs are shown, in words."""
    interval: float = 1.0
    silent_seconds: float | None = None
    """For how long nothing has come, once that is too long for the screen to be live."""
    captures: tuple[tuple[float, str], ...] = ()
    """Captures within the charts' history: unix time, and a text with the capture engine and the verdict."""
    sorted_of: Snapshot | None = None
    sorted_ranks: list[Rank] = []
    """The ranks of that snapshot in their order, which is asked for many times a frame."""
    kept: RowCache = field(default_factory=RowCache)
    """Last painted rows."""
    rank_of: tuple[Snapshot | None, tuple[object, ...]] = None, ()
    rank_found: Rank | None = None
    """The process whose steps are shown, and what that follows from: it is asked for as often."""
    labels_of: Snapshot | None = None
    labels: dict[str, str] = {}
    """The numbers of that snapshot's GPUs by UUID: the time line asks for one for each of its rows."""
    replay: str = ""
    """Speed and position of a replay for the header."""
    demo: bool = False
    """True if the recording is the demo's, which has prepared captures."""
    ended: bool = False
    """True if a recording has been shown to its end."""

    def gpus(self) -> tuple[Gpu, ...]:
        """Return the GPUs to show: all of the snapshot, or only those that attached trainings use."""
        if self.snapshot is None:
            return ()
        if not self.only_attached:
            return self.snapshot.gpus
        used = {rank.gpu_uuid for rank in self.snapshot.ranks}
        return tuple(gpu for gpu in self.snapshot.gpus if gpu.uuid in used)

    def gpu_label(self, gpu: Gpu) -> str:
        """Return the number of a GPU, as it is written on the screen."""
        if self.snapshot is None:
            return str(gpu.index)
        if self.labels_of is not self.snapshot:
            self.labels_of, self.labels = self.snapshot, gpu_names.labels(self.snapshot.gpus)
        return self.labels.get(gpu.uuid, str(gpu.index))

    def position(self) -> int | None:
        """Return where the selected GPU stands in `gpus()`."""
        return next((i for i, gpu in enumerate(self.gpus()) if gpu.uuid == self.selected), None)

    def jobs(self) -> tuple[Job, ...]:
        """Return the jobs, in the order in which they began; none where the recording knows of none."""
        return () if self.snapshot is None else self.snapshot.jobs

    def job_of(self, rank: Rank) -> Job | None:
        """Return the job that this process is a rank of."""
        return next((job for job in self.jobs() if job.name == rank.job), None)

    def job(self) -> Job | None:
        """Return the job of the process whose steps are shown."""
        rank = self.rank()
        return None if rank is None else self.job_of(rank)

    def ranks(self) -> list[Rank]:
        """Attached processes, job by job, in the order of their ranks."""
        if self.snapshot is None:
            return []
        if self.sorted_of is self.snapshot:
            return list(self.sorted_ranks)
        place = {job.name: place for place, job in enumerate(self.jobs())}
        self.sorted_of, self.sorted_ranks = (
            self.snapshot,
            sorted(
                self.snapshot.ranks,
                key=lambda r: (place.get(r.job, len(place)), r.rank is None, r.rank or 0, r.host, r.pid),
            ),
        )
        return list(self.sorted_ranks)

    def rank(self) -> Rank | None:
        """Return the process whose steps are shown: the chosen one, else the one that the shown alert is about."""
        of = self.rank_pid, self.selected, self.alerts.changes
        if self.rank_of[0] is not self.snapshot or self.rank_of[1] != of:
            self.rank_of, self.rank_found = (self.snapshot, of), self._rank()
        return self.rank_found

    def _rank(self) -> Rank | None:
        ranks = self.ranks()
        chosen = [r for r in ranks if r.pid == self.rank_pid]
        on_selected = [r for r in ranks if self.selected is not None and r.gpu_uuid == self.selected]
        if len(ranks) < 2 or chosen or on_selected:
            return next(iter([*chosen, *on_selected, *ranks]), None)
        alert = self.alerts.selected_alert(self.alerts.unmuted(self.snapshot))
        accused = [r for r in ranks if alert is not None and r.pid == alert.pid and r.state != "gone"]
        if alert is not None and alert.pid is None and alert.gpu is not None:
            accused = [r for r in ranks if r.gpu_uuid == alert.gpu and r.state != "gone"]
        return next(iter([*accused, *ranks]))
