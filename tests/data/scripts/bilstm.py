"""Tags sequences with a bidirectional LSTM; accumulates gradients over two batches before each update."""

import argparse
import random

import numpy as np
import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self, words=50, tags=5, size=32, hidden=48):
        super().__init__()
        self.embed = nn.Embedding(words, size)
        self.lstm = nn.LSTM(size, hidden, num_layers=2, bidirectional=True, batch_first=True, dropout=0.1)
        self.drop = nn.Dropout(0.2)
        self.out = nn.Linear(2 * hidden, tags)

    def forward(self, tokens):
        states, _ = self.lstm(self.embed(tokens))
        return self.out(self.drop(states))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--updates", type=int, default=8)
    parser.add_argument("--save")
    args = parser.parse_args()
    random.seed(7)
    np.random.seed(7)
    torch.manual_seed(7)

    model = Tagger()
    loss_function = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for update in range(args.updates):
        for part in range(2):
            tokens = torch.from_numpy(np.random.randint(0, 50, (args.batch_size, 30)))
            tags = tokens % 5
            scores = model(tokens)
            loss = loss_function(scores.reshape(-1, 5), tags.reshape(-1)) / 2
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if random.random() < 0.5:
            print("update", update, "loss", loss.item())
    print("final loss", loss.item())
    if args.save:
        torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()
