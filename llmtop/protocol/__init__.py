"""The messages between a training and a monitor, the socket directory, and the job's store."""
