"""Output of ps: the state of each process."""

from __future__ import annotations

from llmtop.postmortem.evidence import Mark, Place

_STATES = ("STAT", "S")


class ProcessTable:
    """Reads a table of ps from its head on."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._columns: list[str] = []

    def add(self, text: str, number: int) -> Mark | bool:
        """Take a line: a mark for a process, True for another line of the table, else False."""
        words = text.split()
        if "PID" in words and any(one in words for one in _STATES) and len(words) < 20:
            self._columns = words
            return True
        if not self._columns:
            return False
        cells = text.split(None, len(self._columns) - 1)
        row = dict(zip(self._columns, cells, strict=False))
        if not row.get("PID", "").isdigit():
            self._columns = []
            return False
        state = row.get("STAT", row.get("S", ""))
        wchan = row.get("WCHAN", "-")
        text = f"state {state}" + (f", waits in {wchan}" if wchan not in ("-", "0") else "")
        cpu = row.get("%CPU", "")
        return Mark(
            "process_state",
            Place(self._file, number),
            text + (f", {cpu} % CPU" if cpu else ""),
            pid=int(row["PID"]),
        )
