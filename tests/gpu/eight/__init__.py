"""The parts of check_eight.py: what is run on several GPUs, and how it is judged."""

from typing import Final

CASES: Final = "cases: "
"""Begins the last line of check_eight.py and check_ranks.py: how many cases had each verdict."""
