"""Small modules whose FLOPs ``perfctl estimate`` computes for the guard."""

import torch
import torch.nn.functional as F
from torch import nn


class W(nn.Module):
    def __init__(self, f, *m):
        super().__init__()
        self.f = f
        self.m = nn.ModuleList(m)

    def forward(self, x):
        return self.f(self.m, x)


def grouped():
    return nn.Conv2d(16, 32, 3, groups=4, padding=1)


def depthwise():
    return nn.Conv2d(16, 32, 5, groups=16, stride=2)


def transposed():
    return nn.ConvTranspose2d(16, 8, 4, 2, 1)


def conv1d():
    return nn.Conv1d(16, 32, 7, dilation=2)


def conv3d():
    return nn.Conv3d(3, 8, 3)


def linear():
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4, bias=False))


def lstm():
    return W(lambda m, x: m[0](x)[0], nn.LSTM(16, 24, 2, batch_first=True, bidirectional=True))


def gru():
    return W(lambda m, x: m[0](x)[0], nn.GRU(16, 24, batch_first=True))


def attention():
    return W(
        lambda m, x: m[0](x, x, x, need_weights=False)[0],
        nn.MultiheadAttention(32, 4, batch_first=True),
    )


def causal():
    return W(lambda m, x: F.scaled_dot_product_attention(x, x, x, is_causal=True))


def encoder():
    return nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)


def norms():
    return nn.Sequential(nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 32))


def einsum():
    return W(lambda m, x: torch.einsum("bij,bkj->bik", x, x))


def frozen():
    model = nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 4))
    model[0].requires_grad_(False)
    return model


def shared():
    layer = nn.Linear(16, 16)
    return nn.Sequential(layer, nn.ReLU(), layer)


def bilinear():
    return W(lambda m, x: m[0](x, x), nn.Bilinear(16, 16, 8))
