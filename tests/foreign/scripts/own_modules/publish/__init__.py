"""And another."""
