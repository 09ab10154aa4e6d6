"""Data that a training leaves on the disk of its run, written by a thread of its own (format: `llmtop/runs`)."""
