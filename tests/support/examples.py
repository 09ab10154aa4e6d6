"""How many examples Hypothesis makes of a test."""

from __future__ import annotations

import os
from typing import Final

EXAMPLES: Final = int(os.environ["LLMTOP_EXAMPLES"])
"""For `@settings`: a few in `make test`, many in `make test-all` (tests/conftest.py), or as many as one likes."""
