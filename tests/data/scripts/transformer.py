"""A small language model: token and position embeddings, encoder layers under a causal mask, tied output weights."""

import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class LanguageModel(nn.Module):
    def __init__(self, vocabulary=40, width=16, heads=2, layers=2, length=12):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.zeros(1, length, width))
        layer = nn.TransformerEncoderLayer(width, heads, 32, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.decoder = nn.Linear(width, vocabulary, bias=False)
        self.decoder.weight = self.tokens.weight

    def forward(self, tokens):
        x = self.tokens(tokens) * math.sqrt(16) + self.positions[:, : tokens.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.decoder(self.norm(self.encoder(x, mask=mask, is_causal=True)))


def batches(count, size):
    for _ in range(count):
        yield torch.randint(0, 40, (size, 13))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--save")
    args = parser.parse_args()
    torch.manual_seed(3)

    model = LanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
    for batch in batches(args.iterations, args.batch_size):
        logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
    print("final loss", loss.item())
    model.eval()
    with torch.no_grad():
        print("likeliest next", model(batch[:1, :-1])[0, -1].argmax().item())
    if args.save:
        torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()
