"""Workload: a text classifier, a bidirectional LSTM over characters.

It has no embedding: each of the 128 ASCII characters is a one-hot vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfctl.workloads.interface import WorkloadParts
from perfctl.workloads.spec import SpecError, WorkloadOptions, declare_number_option

if TYPE_CHECKING:
    from torch import Tensor, nn

NAME = "lstm"
ABOUT = (
    "Text classifier: characters through a bidirectional LSTM of 2 layers, 100 steps by default; "
    "Adam, lr 2e-3."
)
SAME_NETWORK = ("samples",)
"""Own options that change the amount of data, not the model."""

CHARACTERS = 128
HIDDEN, LAYERS, CLASSES = 256, 2, 10


@dataclass
class Own:
    hidden: int = declare_number_option(
        1, HIDDEN, "units per layer and direction (256)", heading=NAME
    )
    layers: int = declare_number_option(1, LAYERS, "layers, each in both directions (2)")
    length: int = declare_number_option(2, 100, "characters per text, by cutting or padding (100)")
    classes: int = declare_number_option(2, CLASSES, "number of classes (10)")
    samples: int = declare_number_option(4, 2000, "synthetic texts to train on (2000)")


def check(options: WorkloadOptions, model_options: Own) -> WorkloadOptions:
    if options.data not in ("synthetic", "csv"):
        raise SpecError(
            f"{NAME} needs texts: `data` must be csv (train.csv and test.csv in `data_dir`) or "
            "synthetic"
        )
    if options.data == "synthetic" and (model_options.classes % 2 or model_options.classes > 26):
        raise SpecError(
            f"`classes` of synthetic texts must be even and at most 26, got {model_options.classes}"
        )
    return options


def build(options: WorkloadOptions, model_options: Own) -> WorkloadParts:
    """Model, loss, optimizer and data on the CPU. Raises WorkloadError when the data is missing."""
    import torch
    from torch.nn.functional import cross_entropy

    from perfctl.workloads.data.texts import generate_synthetic_texts, read_texts

    model = build_bilstm(model_options.hidden, model_options.layers, model_options.classes)
    if options.data == "csv":
        assert options.data_dir is not None
        train, test = read_texts(options.data_dir, model_options.length, model_options.classes)
    else:
        train = generate_synthetic_texts(
            model_options.samples, model_options.length, model_options.classes, options.seed
        )
        test = generate_synthetic_texts(
            max(model_options.samples // 4, 1),
            model_options.length,
            model_options.classes,
            options.seed + 1_000_003,
        )
    return WorkloadParts(
        model, cross_entropy, torch.optim.Adam(model.parameters(), lr=2e-3), train, test
    )


def build_bilstm(hidden: int = HIDDEN, layers: int = LAYERS, classes: int = CLASSES) -> nn.Module:
    """Input: batch x length character codes (int64); output: batch x classes, before softmax."""
    from torch import nn
    from torch.nn.functional import one_hot

    class BiLSTM(nn.Module):
        """``lstm``, the mean of its outputs over the text, ``fc``."""

        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(CHARACTERS, hidden, layers, bidirectional=True, batch_first=True)
            self.fc = nn.Linear(2 * hidden, classes)

        def forward(self, codes: Tensor) -> Tensor:
            letters = one_hot(codes, CHARACTERS).to(self.fc.weight.dtype)
            states, _ = self.lstm(letters)
            answer: Tensor = self.fc(states.mean(dim=1))
            return answer

    return BiLSTM()
