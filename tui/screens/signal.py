"""Asks which signal to send to a process. Nothing is sent before enter on one of them."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from llmtop import format as fmt
from llmtop.errors import LlmtopError
from llmtop.model.snapshot import Process
from tui.screens.send_signal import SIGNALS, send


class SignalScreen(ModalScreen[None]):
    """Asks which signal to send to a process; the list begins with "send nothing"."""

    CSS_PATH = "signal.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "dismiss", "back")]

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process

    def compose(self) -> ComposeResult:
        """Return which process, and what can be sent."""
        process = self._process
        what = f"{process.pid}  {fmt.printable(process.user or '')}\n{fmt.printable(process.command or '')}"
        with Vertical(id="box"):
            yield Static(f"Signal to process {what}", markup=False, id="process")
            yield OptionList(
                Option("send nothing"),
                *(Option(f"{number.name:<8} {meaning}") for number, meaning in SIGNALS),
                markup=False,
            )

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Send it, say what happened, and go back."""
        if event.option_index > 0:
            number = SIGNALS[event.option_index - 1][0]
            try:
                send(self._process, number)
                self.app.notify(f"{number.name} sent to process {self._process.pid}.", markup=False)
            except LlmtopError as error:
                self.app.notify(str(error), severity="warning", markup=False)
        self.dismiss()
