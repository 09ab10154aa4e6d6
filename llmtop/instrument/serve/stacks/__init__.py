"""Python stacks of this process, read in the process itself and described in words."""
