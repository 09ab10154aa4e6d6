"""Environment of a command: machine, GPUs, container, Python and packages, repository, variables; no secrets."""
