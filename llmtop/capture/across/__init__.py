"""One capture of ranks on several nodes, asked for in the job's own store."""
