"""The first line of a recording: who wrote it, when, and in which form."""

from __future__ import annotations

from typing import Any

import msgspec

from llmtop.model.snapshot import SCHEMA
from llmtop.version import __version__

MAGIC = "llmtop-recording"
FORMAT = 1


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """Header of a recording, in its first member."""

    magic: str = MAGIC
    format: int = FORMAT
    schema: int = SCHEMA
    """Schema of the snapshots (`llmtop.model.snapshot.SCHEMA`)."""
    version: str = __version__
    created: float
    """Unix time."""
    host: str = ""
    environment: dict[str, Any] | None = None
    """Environment of the recording, as far as it was known at the start (`llmtop/environment/model.py`)."""
