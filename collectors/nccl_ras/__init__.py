"""NCCL's own view of a job, on all its nodes: asked where a training does not go on."""
