"""Engines that run inside the training: torch.profiler and the allocator's history."""
