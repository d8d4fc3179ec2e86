"""Train whole epochs and measure loss and accuracy."""

from __future__ import annotations

import torch
from torch import Tensor

from perfctl.parsers.records import Summary
from perfctl.workloads import data
from perfctl.workloads.clock import Timeline
from perfctl.workloads.record import Record
from perfctl.workloads.setup import Setup
from perfctl.workloads.steps import infer, train_step

DICE = "dice:epoch:"
"""Prefix of a summary's name, before the epoch's number: mean Dice over all classes but the first (background)."""


def run_epochs(setup: Setup, record: Record) -> None:
    """Per epoch, a row "epoch" with mean loss and accuracy, and a row "test" for the test pass."""
    shuffle = torch.Generator().manual_seed(setup.options.seed)
    for number in range(setup.options.epochs):
        timeline = Timeline(setup.clock)
        with timeline.time(number, "epoch"):
            loss = _train_epoch(setup, shuffle)
        with timeline.time(number, "test"):
            test_loss, accuracy, dice = evaluate(setup)
        timeline.note(number, "epoch", loss, accuracy)
        timeline.note(number, "test", test_loss, accuracy)
        record.steps += timeline.rows()
        if setup.parts.overlap:
            record.summaries.append(Summary(f"{DICE}{number}", dice, "ratio"))
        if setup.parts.scheduler is not None:
            setup.parts.scheduler.step()


def _train_epoch(setup: Setup, shuffle: torch.Generator) -> Tensor:
    """Train on every sample once, in a new order; returns the mean loss over the samples."""
    dataset = setup.parts.train_data
    samples = data.size(dataset)
    total = torch.zeros((), device=setup.options.device)
    setup.parts.model.train()
    for indices in torch.randperm(samples, generator=shuffle).split(setup.options.batch_size):
        total += train_step(setup, data.take(dataset, indices)) * len(indices)
    return total / samples


def evaluate(setup: Setup) -> tuple[Tensor, float, float | None]:
    """(mean loss, accuracy 0..1, Dice 0..1 of masks) over the test data; the model's mode is restored.

    Accuracy counts every target, images or pixels. Dice is None when outputs are not masks.
    """
    parts, dataset, device = setup.parts, setup.parts.test_data, setup.options.device
    samples, was_training = data.size(dataset), parts.model.training
    total = torch.zeros((), device=device)
    right = torch.zeros((), dtype=torch.int64, device=device)
    asked = 0
    counts = torch.zeros(3, parts.overlap, dtype=torch.int64, device=device)
    parts.model.eval()
    for indices in torch.arange(samples).split(setup.options.batch_size):
        inputs, targets = data.take(dataset, indices)
        targets = targets.to(device)
        outputs = infer(setup, inputs)
        total += parts.loss(outputs.float(), targets) * len(indices)
        found = outputs.argmax(dim=1)
        right += (found == targets).sum()
        asked += targets.numel()
        if parts.overlap:
            counts += overlaps(found, targets, parts.overlap)
    parts.model.train(was_training)
    return total / samples, int(right) / asked, dice(counts) if parts.overlap else None


def overlaps(found: Tensor, targets: Tensor, classes: int) -> Tensor:
    """3 x classes: pixels of each class that are predicted correctly, predicted, and in the target."""
    hits = found[found == targets]
    return torch.stack([torch.bincount(part.flatten(), minlength=classes) for part in (hits, found, targets)])


def dice(counts: Tensor) -> float | None:
    """Mean of 2 x correct / (predicted + target) over all classes but the first; None when all are empty.

    Source: L. R. Dice, Ecology 26 (1945). Pixels are summed over all images before the division.
    """
    correct, predicted, target = counts[:, 1:].tolist()
    known = [2 * a / (b + c) for a, b, c in zip(correct, predicted, target, strict=True) if b + c]
    return sum(known) / len(known) if known else None
