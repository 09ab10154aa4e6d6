"""What a command runs in: machine, GPUs, container, Python and packages, repository, variables; no secrets."""
