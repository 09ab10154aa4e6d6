"""What the GPU says of a phase: CUDA events, and tensors that are logged without waiting for them."""
