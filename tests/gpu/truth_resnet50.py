"""torchvision's ResNet-50 on synthetic pictures, batch 32, single precision, a plain loop."""

import torch
from torch import nn
from torchvision.models import resnet50

model = resnet50().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
pictures, labels = torch.randn(32, 3, 224, 224), torch.randint(1000, (32,))
while True:
    outputs = model(pictures.cuda(non_blocking=True))
    loss = nn.functional.cross_entropy(outputs, labels.cuda(non_blocking=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
