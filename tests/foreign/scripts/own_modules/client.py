"""The user's own client."""

WHOSE = "the user's client"
