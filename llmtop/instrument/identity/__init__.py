"""Identity of this process: launcher, rank, process group, run, declared facts."""
