"""What a monitor adds to the runs of this node's trainings (`llmtop/runs`)."""
