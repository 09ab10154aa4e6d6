"""Functions of torch that are wrapped or replaced, and restored."""
