"""Commands that advice gives whatever the program is written with."""

from __future__ import annotations

from typing import Final

STACKS: Final = "llmtop capture --engine py-spy --seconds 10   # while it runs"
