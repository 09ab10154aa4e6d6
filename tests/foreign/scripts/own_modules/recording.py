"""The user's own recording."""

WHOSE = "the user's recording"
