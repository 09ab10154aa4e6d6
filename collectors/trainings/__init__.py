"""Attached trainings: what they publish, read from their sockets."""
