"""The user's own peaks."""

WHOSE = "the user's peaks"
