"""One in-memory model of a capture, and its loaders."""
