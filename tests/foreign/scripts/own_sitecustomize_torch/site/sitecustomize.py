"""One that imports torch, before anything else can."""

import torch

torch.set_num_threads(1)
