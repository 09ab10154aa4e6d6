"""Conduct of llmtop in the training's process: errors, threads, descriptors, and exit."""
