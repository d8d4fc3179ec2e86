"""A small residual network that runs the same block several times in each stage."""

import argparse

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.relu(out + x)


class SharedResNet(nn.Module):
    def __init__(self, repeats=3, classes=10):
        super().__init__()
        self.repeats = repeats
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        block = Block(8)
        self.stage1 = nn.ModuleList([block, block])
        self.down = nn.Conv2d(8, 16, 1, stride=2)
        self.stage2 = Block(16)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(16, classes)

    def forward(self, x):
        x = self.stem(x)
        for block in self.stage1:
            x = block(x)
        x = self.down(x)
        for _ in range(self.repeats):
            x = self.stage2(x)
        return self.head(self.pool(x).flatten(1))


parser = argparse.ArgumentParser()
parser.add_argument("-b", "--batch-size", type=int, default=4)
parser.add_argument("--iterations", type=int, default=8)
parser.add_argument("--save")
args = parser.parse_args()

torch.manual_seed(0)
net = SharedResNet()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
for step in range(args.iterations):
    images = torch.randn(args.batch_size, 3, 16, 16)
    labels = torch.randint(0, 10, (args.batch_size,))
    loss = criterion(net(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("final loss", loss.item())
if args.save:
    torch.save(net.state_dict(), args.save)
