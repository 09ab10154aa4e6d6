"""The user's own wire."""

WHOSE = "the user's wire"
