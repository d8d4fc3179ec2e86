"""Small language models with a cache of keys and values as plain tuples, or as an object; tokens in, (logits, cache) out."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

WIDTH, HEADS, PAIRS, SIZE, INNER, WORDS, LAYERS = 32, 4, 2, 8, 48, 200, 3
EXPERTS, TOP = 6, 2


class Attention(nn.Module):
    """Grouped-query attention: PAIRS pairs of keys and values for HEADS queries. ``window``: tokens that it sees."""

    def __init__(self, window: int | None) -> None:
        super().__init__()
        self.window = window
        self.q, self.kv = nn.Linear(WIDTH, HEADS * SIZE, bias=False), nn.Linear(WIDTH, 2 * PAIRS * SIZE, bias=False)
        self.out = nn.Linear(HEADS * SIZE, WIDTH, bias=False)

    def forward(self, x, past=None):
        batch, tokens, _ = x.shape
        q = self.q(x).view(batch, tokens, HEADS, SIZE).transpose(1, 2)
        k, v = self.kv(x).view(batch, tokens, 2, PAIRS, SIZE).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        kept = (k, v) if self.window is None else (k[:, :, 1 - self.window :], v[:, :, 1 - self.window :])
        y = scaled_dot_product_attention(q, k, v, is_causal=past is None, enable_gqa=True)
        return self.out(y.transpose(1, 2).reshape(batch, tokens, -1)), kept


class Experts(nn.Module):
    """Each token goes to TOP of EXPERTS matrices; which ones depends on values, so a grouped product does it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(EXPERTS, WIDTH, WIDTH))

    def forward(self, x, chosen):
        flat, order = torch.sort(chosen.reshape(-1))
        ends = torch.histc(flat.float(), EXPERTS, 0, EXPERTS - 1).cumsum(0).to(torch.int32)
        y = torch._grouped_mm(x[order // TOP], self.weight, offs=ends)
        return torch.zeros_like(x).index_add(0, order // TOP, y)


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(WIDTH, EXPERTS, bias=False), Experts()

    def forward(self, x):
        rows = x.reshape(-1, WIDTH)
        return self.experts(rows, self.gate(rows).topk(TOP).indices).view(x.shape)


class Block(nn.Module):
    def __init__(self, window: int | None, mixture: bool) -> None:
        super().__init__()
        self.attention = Attention(window)
        dense = nn.Sequential(nn.Linear(WIDTH, INNER, bias=False), nn.SiLU(), nn.Linear(INNER, WIDTH, bias=False))
        self.mlp = Mixture() if mixture else dense

    def forward(self, x, past=None):
        y, kept = self.attention(x, past)
        return x + self.mlp(x + y), kept


class Cache:
    """Not a tuple: what it holds is found among its attributes."""

    def __init__(self, layers):
        self.layers = layers


class Language(nn.Module):
    def __init__(self, windows=(None,) * LAYERS, mixture=False, wrap=tuple) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block(window, mixture) for window in windows)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.wrap = wrap

    def forward(self, tokens, past_key_values=None, logits_to_keep=0):
        x, kept = self.words(tokens), []
        layers = getattr(past_key_values, "layers", past_key_values)
        for at, block in enumerate(self.blocks):
            x, pair = block(x, None if layers is None else layers[at])
            kept.append(pair)
        return self.head(x[:, -logits_to_keep:]), self.wrap(kept)


def plain():
    return Language()


def windowed():
    return Language((8, None, 8))


def mixture():
    return Language(mixture=True)


def wrapped():
    return Language(wrap=Cache)


class Named(Language):
    """Calls its cache what transformers calls it since 5.24."""

    def forward(self, tokens, cache=None, logits_to_keep=0):
        return super().forward(tokens, cache, logits_to_keep)


class NoCache(nn.Module):
    """Takes a cache and gives none."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, tokens, past_key_values=None):
        return self.head(self.words(tokens))


class Breaks(Language):
    """Works on a prompt and not on the token after it."""

    def forward(self, tokens, past_key_values=None, logits_to_keep=0):
        if past_key_values is not None:
            raise ValueError("one token at a time is not my style")
        return super().forward(tokens, past_key_values, logits_to_keep)
