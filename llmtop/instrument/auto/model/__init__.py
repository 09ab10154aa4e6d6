"""Facts about the model in training: batch shape, dtype, FLOPs."""
