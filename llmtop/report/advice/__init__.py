"""Advice for each finding: the fix, how to confirm it, the next command."""
