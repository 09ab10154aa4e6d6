"""An NCCL communicator that does not go on, and what of it is known here."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from llmtop.model.snapshot import StuckCommunicator
from llmtop.rules.state.gpu import GpuState
from llmtop.rules.state.rank import RankState


class CommunicatorState:
    """A communicator as one snapshot has it, with the attached ranks and the GPUs of its processes here."""

    is_updated = True
    __slots__ = ("gpus", "known", "now", "ranks", "stuck")

    def __init__(
        self,
        stuck: StuckCommunicator,
        ranks: Sequence[RankState],
        gpus: Sequence[GpuState],
        known: bool,
        now: float,
    ) -> None:
        """Put together what is known.

        Args:
            stuck: state of the communicator by NCCL RAS.
            ranks: attached processes of it.
            gpus: of its processes on this machine.
            known: True if the ranks' own counters already show which rank is behind.
            now: unix time of the snapshot.
        """
        self.stuck = stuck
        self.ranks = tuple(ranks)
        self.gpus = tuple(gpus)
        self.known = known
        self.now = now

    @property
    def key(self) -> Hashable:
        """NCCL's name of it."""
        return ("communicator", self.stuck.id)

    def concerned_keys(self) -> frozenset[Hashable]:
        """Its processes here and their GPUs."""
        own: frozenset[Hashable] = frozenset(gpu.key for gpu in self.gpus)
        return own.union(*(state.concerned_keys() for state in self.ranks))

    def alert_target(self) -> tuple[str | None, int | None]:
        """Return the rank behind where it runs here; else a process of it here, which waits."""
        behind = {one.pid for one in self.stuck.behind}
        pid = next((pid for pid in self.stuck.pids if pid in behind), None)
        pid = pid if pid is not None else next(iter(self.stuck.pids), None)
        state = next((state for state in self.ranks if state.rank.pid == pid), None)
        own = next((gpu for gpu in self.gpus if pid in (*gpu.pids, *gpu.foreign_pids)), None)
        gpu = None if own is None else own.gpu.uuid
        return (state.alert_target()[0] if state is not None else gpu), pid
