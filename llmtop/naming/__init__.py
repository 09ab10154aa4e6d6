"""Meaning of kernel names and phase names."""
