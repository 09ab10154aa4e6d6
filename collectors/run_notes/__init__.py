"""Notes of a monitor on the runs of this node's trainings (`llmtop/runs`)."""
