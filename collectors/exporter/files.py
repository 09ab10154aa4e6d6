"""Files of the exporter: values for node_exporter's textfile collector, and its own address."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from contextlib import suppress
from pathlib import Path

from collectors.base.interruptible_sleep import InterruptibleSleep
from collectors.exporter.stage import ExportStage
from collectors.exporter.text import page
from llmtop.errors import LlmtopError, NotPossibleHere, UnusableInput
from llmtop.model.snapshot import Snapshot

TEXTFILE = "llmtop.prom"
_LOCK = ".llmtop.lock"
_SD_SUFFIXES = (".json", ".yml", ".yaml")


class Textfile:
    """A stage that has DIR/llmtop.prom written after each snapshot, by a thread of its own.

    One exporter writes into a folder: node_exporter gives nothing at all where two files have the same series.
    """

    def __init__(self, folder: Path, stage: ExportStage) -> None:
        """Take the folder, and write once.

        Raises:
            NotPossibleHere: it cannot be written, or another exporter writes there.
        """
        self.path = folder / TEXTFILE
        self._stage = stage
        self.error: LlmtopError | None = None
        """Why it cannot be written now."""
        self._closed = False
        self._wake = InterruptibleSleep()
        self._lock = _lock_folder(folder)
        self._write()
        if self.error is not None:
            raise self.error
        self._thread = threading.Thread(target=self._run, name="llmtop-textfile", daemon=True)
        self._thread.start()

    def __call__(self, snapshot: Snapshot) -> Snapshot:
        """Write the file; comes after the stage that counts."""
        self._wake.set()
        return snapshot

    def close(self) -> None:
        """Remove the file: stale values must not be read as current."""
        self._closed = True
        self._wake.set()
        self._thread.join(2.0)
        with suppress(OSError):
            self.path.unlink()
        os.close(self._lock)

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait(None)
            self._wake.clear()
            if not self._closed:
                self._write()

    def _write(self) -> None:
        try:
            write_atomically(self.path, page(self._stage.collect()))
            self.error = None
        except OSError as error:
            self.error = NotPossibleHere(
                f"{self.path} cannot be written: {error.strerror}; give a folder of yours"
            )


def _lock_folder(folder: Path) -> int:
    try:
        file = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise NotPossibleHere(f"{folder} cannot be written: {error.strerror}; give a folder of yours") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise NotPossibleHere(
            f"another llmtop export writes into {folder}: run one per node, as root with --all-users for the "
            f"trainings of all users"
        ) from None
    return file


class Discovery:
    """An entry for Prometheus' file_sd_configs, there for as long as this exporter is."""

    def __init__(self, path: Path, target: str) -> None:
        """Write it.

        Args:
            path: of the file, one an exporter; Prometheus reads those that end in .json, .yml or .yaml.
            target: "host:port".

        Raises:
            UnusableInput: a name that Prometheus does not read.
            NotPossibleHere: it cannot be written.
        """
        if path.suffix not in _SD_SUFFIXES:
            raise UnusableInput(f"--file-sd {path}: the file name must end in .json, with one file per node")
        self._path = path
        self._text = json.dumps([{"targets": [target], "labels": {}}]).encode() + b"\n"
        try:
            write_atomically(path, self._text)
        except OSError as error:
            raise NotPossibleHere(f"{path} cannot be written: {error.strerror}") from None

    def close(self) -> None:
        """Remove it, unless another process has written it since."""
        with suppress(OSError):
            if self._path.read_bytes() == self._text:
                self._path.unlink()


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file that readers see as it was or as it is now, never in between.

    Raises:
        OSError: it cannot be; nothing is left behind.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with suppress(FileNotFoundError):
        fresh.unlink()
    file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(file, "wb") as out:
            os.fchmod(file, 0o644)  # its reader is another user
            out.write(data)
        os.replace(fresh, path)
    except OSError:
        with suppress(OSError):
            fresh.unlink()
        raise
