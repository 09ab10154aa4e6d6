"""The user's own format."""

WHOSE = "the user's format"
