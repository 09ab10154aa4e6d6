"""Which alerts of a snapshot are new, for all who tell a person or a program once."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from llmtop.snapshot import Alert


class Raised:
    """Tells which alerts are new: remembers those that were up when it was last asked."""

    def __init__(self, up: Iterable[Alert] = ()) -> None:
        self.up: list[Alert] = list(up)
        """As they were told last, each with its GPU and pid if they were ever known."""

    def new(self, present: Iterable[Alert]) -> list[Alert]:
        """The alerts of `present` that were not up before; one that has gone may come again."""
        waiting = list(present)
        before, self.up, new = self.up, [], []
        # Those that are the same to the letter first, so that none of them is taken by a vaguer one.
        for alert in sorted(waiting, key=lambda alert: not any(_same(alert, known) for known in before)):
            known = next((one for one in before if _same(alert, one)), None)
            known = known or next((one for one in before if alert.continues(one)), None)
            if known is None:
                new.append(alert)
                self.up.append(alert)
                continue
            before.remove(known)
            pid = known.pid if alert.pid is None else alert.pid
            self.up.append(replace(alert, gpu=alert.gpu or known.gpu, pid=pid))
        return [alert for alert in waiting if alert in new]


def _same(one: Alert, other: Alert) -> bool:
    return (one.id, one.gpu, one.pid) == (other.id, other.gpu, other.pid)
