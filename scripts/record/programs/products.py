"""Square products, one a precision: each layer executes 2 x SIZE^3 FLOP (1 multiply-add = 2) per
forward.

    products.py SIZE
"""

import sys

import torch

SIZE = int(sys.argv[1])
KINDS = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
device = "cuda" if torch.cuda.is_available() else "cpu"


class Products(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for name, dtype in KINDS.items():
            setattr(self, name, torch.nn.Linear(SIZE, SIZE, bias=False, device=device, dtype=dtype))

    def forward(self, x):
        for name, dtype in KINDS.items():
            torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
            getattr(self, name)(x.to(dtype))


model = Products()
with torch.no_grad():
    for _ in range(8):
        model(torch.ones(SIZE, SIZE, device=device))
