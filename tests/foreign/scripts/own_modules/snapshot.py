"""The user's own snapshot."""

WHOSE = "the user's snapshot"
