"""One request from the job's store on one node: forwards it to its ranks and reports their state."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from llmtop.errors import NotPossibleHere
from llmtop.instrument.control.peer_rank import Gone, PeerRank
from llmtop.naming import file_names
from llmtop.protocol import client, job_store, socket_dir, wire
from llmtop.protocol.job_store import NodeStatus, RankStatus, StoreRequest
from llmtop.protocol.tcp_store import TcpStore

GREET_SECONDS = 1.5
"""How long ranks may take to say who they are; one that is stopped says nothing."""
STACKS_SECONDS = 3.0
"""How long a rank may take to show its stacks: its server thread needs Python's lock for that."""
_LONGEST = 300
_SHOWN_FRAMES = 48
_MAIN_THREAD_NAME = "MainThread"


class AskedHere:
    """One request on this node. Belongs to the thread that listens."""

    def __init__(self, number: int, ask: StoreRequest, store: wire.JobStore, names: list[str]) -> None:
        """Take it in; nothing is done yet.

        Args:
            number: of the request.
            ask: what is asked.
            store: of the job: ranks of other jobs are left alone.
            names: of this node.
        """
        self.number = number
        self.over = False
        self._ask = ask
        self._store = store
        self._status = NodeStatus(host=names[0])
        self._peers: dict[int, PeerRank] = {}
        self._greeting: list[PeerRank] = []
        """Peers by rank."""
        self._ranks: dict[int, RankStatus] = {}
        self._folder: Path | None = None
        self._made: list[Path] = []
        self._changed = True
        self._status_at = self._beat_at = time.monotonic()
        self._beat = b""
        self._stacks_until = 0.0
        if ask.node is not None and ask.node not in (*names, *(name.partition(".")[0] for name in names)):
            self.over = True

    @property
    def is_busy(self) -> bool:
        """Return True if a rank is at it."""
        return any(told.state not in wire.CAPTURE_ENDED for told in self._ranks.values())

    def forget(self) -> None:
        """In a forked child: close its copies of the connections, and send nothing on them."""
        for peer in (*self._greeting, *self._peers.values()):
            peer.channel.close()

    def begin(self) -> None:
        """Send the request to the chosen ranks."""
        greeting = self._greeted_peers()
        wanted = None if self._ask.ranks is None else set(self._ask.ranks)
        mine = {}
        for peer in greeting:
            hello = peer.hello
            if hello is None or hello.rank is None or not self._is_meant(hello, wanted):
                peer.close()
            else:
                mine[hello.rank] = peer
        if not mine:
            self.over = True
            return
        self._ranks = {rank: RankStatus(rank=rank, pid=mine[rank].pid) for rank in sorted(mine)}
        self._peers = mine
        if self._ask.engine == job_store.SHOW_STACKS:
            self._ask_stacks()
            return
        refused = self._find_folder()
        for rank in sorted(mine):
            if refused:
                self._set(rank, state="failed", detail=refused)
            else:
                self._ask_rank(rank)

    def drain(self) -> None:
        """Read the ranks' messages since the last call."""
        for rank, peer in list(self._peers.items()):
            self._read_states(rank, peer)
        if self._ask.engine == job_store.SHOW_STACKS and time.monotonic() > self._stacks_until:
            for rank, told in self._ranks.items():
                if told.state not in wire.CAPTURE_ENDED:
                    self._set(
                        rank, state="failed", detail="it does not answer: Python's lock is held, or it is stopped"
                    )

    def _read_states(self, rank: int, peer: PeerRank) -> None:
        try:
            for state in peer.states():
                if state.id == self._id(rank):
                    self._take(rank, state)
            if peer.stacks is not None:
                self._take_stacks(rank, peer.stacks)
                peer.stacks = None
        except Gone as error:
            del self._peers[rank]
            peer.close()
            if self._ranks[rank].state not in wire.CAPTURE_ENDED:
                self._set(rank, state="failed", detail=f"the rank has ended: {error}"[:_LONGEST])

    def write_status(self, store: TcpStore, keys: job_store.Keys, node: int) -> None:
        """Write the state if it has changed; end the request when the requester has gone or has its results.

        Raises:
            StoreError: the store has gone.
        """
        now = time.monotonic()
        key = keys.status(self.number, node)
        beat = store.get(keys.beat(self.number)) or b""
        if beat != self._beat:
            self._beat, self._beat_at = beat, now
        lost = now - self._beat_at > job_store.LOST_SECONDS
        if beat == job_store.END or lost:
            self.end(remove=lost)
            store.delete(key)
        elif self._changed or now - self._status_at > job_store.STATUS_INTERVAL_SECONDS:
            self._changed, self._status_at = False, now
            self._status.beat += 1
            self._status.ranks = list(self._ranks.values())
            store.set(key, job_store.encode(self._status))

    def end(self, *, remove: bool = False) -> None:
        """Cancel what has not ended, and close the connections.

        Args:
            remove: True: delete the written files, since the requester has gone.
        """
        self.over = True
        for rank, peer in self._peers.items():
            with contextlib.suppress(Gone):
                if self._ranks[rank].state not in wire.CAPTURE_ENDED:
                    peer.cancel(self._id(rank))
            peer.close()
        self._peers = {}
        if not remove:
            return
        for told in self._ranks.values():
            if told.path:
                with contextlib.suppress(OSError):
                    os.unlink(told.path)
        for folder in self._made:
            with contextlib.suppress(OSError):
                folder.rmdir()

    def _greeted_peers(self) -> list[PeerRank]:
        """Return those of this node's trainings that report their identity."""
        found = []
        try:
            files = client.discover(socket_dir.runtime_dir())
        except NotPossibleHere:
            return []
        for file in files:
            with contextlib.suppress(Gone):
                found.append(PeerRank(file.path))
        self._greeting = found
        until = time.monotonic() + GREET_SECONDS
        while any(one.hello is None for one in found) and time.monotonic() < until:
            found = [one for one in found if _is_there(one)]
            time.sleep(0.02)
        return found

    def _is_meant(self, hello: wire.Hello, wanted: set[int] | None) -> bool:
        return hello.store == self._store and (wanted is None or hello.rank in wanted)

    def _ask_rank(self, rank: int) -> None:
        assert self._folder is not None
        ask = self._ask
        path = self._folder / ask.file.replace("{rank}", str(rank))
        request = wire.CaptureRequest(
            id=self._id(rank),
            engine=ask.engine,
            path=os.fspath(path),
            steps=ask.steps,
            options=ask.options,
            memory_bytes=ask.memory_bytes,
            at_step=ask.at_step,
        )
        try:
            self._peers[rank].ask(request)
        except Gone as error:
            self._set(rank, state="failed", detail=f"the rank cannot be reached: {error}"[:_LONGEST])

    def _ask_stacks(self) -> None:
        self._stacks_until = time.monotonic() + STACKS_SECONDS
        for rank, peer in self._peers.items():
            self._ask_stacks_of(rank, peer)

    def _ask_stacks_of(self, rank: int, peer: PeerRank) -> None:
        try:
            peer.ask_stacks(self._id(rank))
        except Gone as error:
            self._set(rank, state="failed", detail=f"the rank cannot be reached: {error}"[:_LONGEST])

    def _take_stacks(self, rank: int, seen: wire.SampledStacks) -> None:
        frames = _main_stack(seen)
        if frames:
            self._set(rank, state="done", stack=frames)
        else:
            self._set(rank, state="failed", detail=(seen.refused or "it has no main thread")[:_LONGEST])

    def _take(self, rank: int, state: wire.CaptureState) -> None:
        self._set(
            rank,
            state=state.state,
            detail=state.detail[:_LONGEST],
            path=state.path,
            first_step=state.first_step,
            last_step=state.last_step,
            seconds=state.seconds,
            stopped_early=state.stopped_early[:_LONGEST],
        )

    def _set(self, rank: int, **fields: object) -> None:
        for name, value in fields.items():
            setattr(self._ranks[rank], name, value)
        self._changed = True

    def _id(self, rank: int) -> str:
        return f"{self._ask.id}-{rank}"

    def _find_folder(self) -> str:
        """Find or create the folder of the files; returns why there is none, or "".

        The named folder is used only if it is the requester's own: a file in it holds the request's token. Else a
        folder of the same name is created in the training's working directory.
        """
        given, file = Path(self._ask.folder), Path(self._ask.file)
        if file.is_absolute() or ".." in file.parts or given.name in ("", ".", ".."):
            return "the request names no file"
        try:
            if _is_the_askers(given, self._ask.token):
                self._folder, self._status.shared = given, True
                return ""
            here = Path.cwd() / file_names.CAPTURES / given.name
            for folder in (here.parent, here, (here / file).parent):
                if not folder.exists():
                    folder.mkdir(mode=0o700)
                    self._made.insert(0, folder)
        except (OSError, ValueError) as error:
            said = error.strerror if isinstance(error, OSError) else error
            return f"no folder can be made on {self._status.host}: {said}"
        self._folder = here
        return ""


def _main_stack(seen: wire.SampledStacks) -> list[wire.SampledFrame]:
    """Return the frames of the main thread, innermost first."""
    main = {number for number, thread in enumerate(seen.threads) if thread.name == _MAIN_THREAD_NAME}
    stack = next((one for one in seen.stacks if one.thread in main), None)
    if stack is None:
        return []
    places = stack.frames[: -_SHOWN_FRAMES - 1 : -1]
    frames = [seen.frames[place] for place in places if 0 <= place < len(seen.frames)]
    return [wire.SampledFrame(one.name[:_LONGEST], one.file[:_LONGEST], one.line) for one in frames]


def _is_there(peer: PeerRank) -> bool:
    """Return True if its connection is open; updates its Hello."""
    try:
        peer.states()
    except Gone:
        peer.close()
        return False
    return True


def _is_the_askers(folder: Path, token: str) -> bool:
    """Return True if that folder is this user's, and has that token in it."""
    if not token or not folder.is_absolute():
        return False
    try:
        number = os.open(folder / job_store.TOKEN, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError):  # ValueError: a name with a zero in it
        return False
    with open(number, "rb") as file:
        return os.fstat(number).st_uid == os.geteuid() and file.read(200) == token.encode()
