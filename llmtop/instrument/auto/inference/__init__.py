"""Forward passes without a backward pass: requests to a model and generation."""
