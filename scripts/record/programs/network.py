"""Train a network as users write it: random images or tokens, SGD, autocast where a precision is
named.

    network.py NAME PRECISION BATCH [STEPS]

NAME: a network of torchvision, or "blocks" for four layers of a transformer of width 512.
PRECISION: default (PyTorch's own settings), bf16 or fp16 (autocast).
"""

import sys

import torch
import torchvision

NAME, PRECISION, BATCH = sys.argv[1], sys.argv[2], int(sys.argv[3])
STEPS = int(sys.argv[4]) if len(sys.argv) > 4 else 8
device = "cuda" if torch.cuda.is_available() else "cpu"


class Blocks(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True)
            for _ in range(4)
        )
        self.head = torch.nn.Linear(512, 1000)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


if NAME == "blocks":
    model, shape = Blocks(), (BATCH, 128, 512)
else:
    model, shape = torchvision.models.get_model(NAME), (BATCH, 3, 224, 224)
model.to(device).train()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
inputs = torch.randn(shape, device=device)
labels = torch.randint(0, 1000, (BATCH,), device=device)
dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(PRECISION)
for _ in range(STEPS):
    optimizer.zero_grad()
    with torch.autocast(device, dtype=dtype, enabled=dtype is not None):
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
