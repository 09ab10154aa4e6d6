"""Who this process is: launcher, rank, process group, run, declared facts."""
