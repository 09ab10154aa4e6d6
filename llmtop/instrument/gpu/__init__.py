"""GPU times of phases by CUDA events, and tensors that are logged without waiting for them."""
