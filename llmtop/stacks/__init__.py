"""Sampled Python stacks: read, folded, rendered."""
