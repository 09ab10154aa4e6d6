"""The machine around the GPUs: CPU, memory, containers, and the processes that use a GPU."""
