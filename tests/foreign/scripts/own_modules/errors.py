"""The user's own errors."""

WHOSE = "the user's errors"
