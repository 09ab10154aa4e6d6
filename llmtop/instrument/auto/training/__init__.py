"""The training loop as hooks on torch see it: steps, phases, evaluation, checkpoints."""
