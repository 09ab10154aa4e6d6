"""Facts read from PyTorch's own modules, if the training has loaded them."""
