"""Finds the earlier run that a training is held to: once for each training, in a process of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
from msgspec.structs import replace

from llmtop.model.run_reference import RunReference
from llmtop.model.snapshot import Rank, Snapshot

_Key = tuple[int, float]
"""pid and when it attached."""
_MOST_SECONDS = 60.0
_END_SECONDS = 5.0
"""Time for the end of a killed process."""


class RunReferences:
    """A stage of the live pipeline, before the rules. A thread waits for the process that reads the runs."""

    def __init__(self) -> None:
        self._known: dict[_Key, RunReference | None] = {}
        self._waiting: dict[_Key, tuple[int | None, str | None]] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        return "earlier runs"

    def __call__(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with the references that are known by now."""
        wanted = {_key(rank): rank for rank in snapshot.ranks if _has_reference(rank)}
        models = {gpu.uuid: gpu.name for gpu in snapshot.gpus}
        with self._lock:
            self._known = {key: value for key, value in self._known.items() if key in wanted}
            for key, rank in wanted.items():
                if key not in self._known and (rank.gpu_uuid is None or rank.gpu_uuid in models):
                    self._known[key] = None
                    self._waiting[key] = rank.world_size, models.get(rank.gpu_uuid or "")
            if self._waiting and self._thread is None and not self._is_closed:
                self._thread = threading.Thread(target=self._find, name="llmtop-earlier-runs", daemon=True)
                self._thread.start()
            found = {key: reference for key, reference in self._known.items() if reference is not None}
        if not found:
            return snapshot
        ranks = tuple(
            replace(rank, reference=found[_key(rank)]) if _key(rank) in found else rank for rank in snapshot.ranks
        )
        return replace(snapshot, ranks=ranks)

    def end(self) -> None:
        """End the process that reads the runs, if one does."""
        with self._lock:
            self._is_closed = True
            if self._process is not None:
                self._process.kill()
            thread = self._thread
        if thread is not None:
            thread.join(_END_SECONDS)

    def _find(self) -> None:
        while True:
            with self._lock:
                if not self._waiting or self._is_closed:
                    self._thread = None
                    return
                key, (world_size, gpu_model) = self._waiting.popitem()
            reference = None
            with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):  # nothing to compare with
                reference = self._read(key[0], world_size, gpu_model)
            with self._lock:
                if key in self._known:
                    self._known[key] = reference

    def _read(self, pid: int, world_size: int | None, gpu_model: str | None) -> RunReference | None:
        query = msgspec.json.encode({"pid": pid, "world_size": world_size, "gpu_model": gpu_model}).decode()
        with self._lock:
            if self._is_closed:
                return None
            self._process = process = subprocess.Popen(
                [sys.executable, "-m", "llmtop.runs.reference", query],
                env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        try:
            out, _ = process.communicate(timeout=_MOST_SECONDS)
        finally:
            process.kill()
            process.wait(_END_SECONDS)
            with self._lock:
                self._process = None
        return msgspec.json.decode(out, type=RunReference | None) if process.returncode == 0 else None


def _key(rank: Rank) -> _Key:
    return rank.pid, rank.attached_at or 0.0


def _has_reference(rank: Rank) -> bool:
    """Return True if it is the first rank of a training of this user that has made a step."""
    return (
        rank.rank in (None, 0)
        and rank.uid in (None, os.geteuid())
        and rank.kind == "step"
        and not rank.inference
        and rank.state == "running"
        and rank.step is not None
    )
