"""When this rank reaches the collectives of a step, for a few steps a second: the others wait for who is last."""
