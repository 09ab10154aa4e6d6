"""Analysis of a capture: figures, causes and verdict."""
