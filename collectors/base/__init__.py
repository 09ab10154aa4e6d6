"""Base classes of collectors: sources, stages, periodic threads."""
