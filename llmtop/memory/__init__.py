"""Snapshots of PyTorch's CUDA allocator: read, analyzed, compared, rendered."""
