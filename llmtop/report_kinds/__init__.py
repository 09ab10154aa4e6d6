"""Kinds of report: how each is recognised, read, rendered and compared, and which screen shows it."""
