"""The engine that takes a window out of a training started under nsys."""
