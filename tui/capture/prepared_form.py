"""The capture dialog of the demo: only the target can be chosen, the rest is as recorded."""

from __future__ import annotations

from dataclasses import dataclass

from llmtop.capture.prepared import STEPS, PreparedCaptures, PreparedTarget
from llmtop.model.snapshot import Snapshot
from llmtop.nsys_cli.tool import Option
from tui.capture.form import TARGET, CapturableProcess, Form


def prepared_form(prepared: PreparedCaptures, snapshot: Snapshot | None) -> PreparedForm:
    """Return the dialog's answers for what the screen shows now.

    Raises:
        NotPossibleHere: the captures cannot be read.
    """
    abilities = prepared.abilities()
    known = tuple(CapturableProcess(target, abilities) for target in prepared.targets(snapshot))
    return PreparedForm(known, parent=prepared.parent)


@dataclass
class PreparedForm(Form):
    """A form of which one line can be changed."""

    def fields(self) -> list[tuple[str, str]]:
        """See `Form.fields`."""
        return [(TARGET, "")]

    def lengths(self) -> list[tuple[int | None, float | None]]:
        """Return the length of the recording."""
        return [(STEPS, None)]

    def available_options(self) -> list[Option]:
        """None: it is recorded already."""
        return []

    def _can_count_steps(self) -> bool:
        return True

    @property
    def preface(self) -> str:
        """Return the note that nothing runs, with the content of the recording."""
        about = "".join(
            one.target.story.description for one in self.group if isinstance(one.target, PreparedTarget)
        )
        return f"The demo captures nothing: enter opens a capture that was recorded beforehand. {about}"

    @property
    def fixed(self) -> str:
        """See `Form.fixed`."""
        return "A recording runs no training: left and right choose one of its captures, whose settings are fixed."
