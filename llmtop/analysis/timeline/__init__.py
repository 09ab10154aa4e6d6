"""Drawings of a trace: one step, or all whole steps, as rows of spans."""
