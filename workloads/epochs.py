"""Whole epochs over the data, for the loss and the accuracy that a batch size reaches."""

from __future__ import annotations

import torch
from torch import Tensor

from perfctl.workloads import data
from perfctl.workloads.clock import Timeline
from perfctl.workloads.record import Record
from perfctl.workloads.setup import Setup
from perfctl.workloads.steps import infer, train_step


def run_epochs(setup: Setup, record: Record) -> None:
    """Whole epochs: a row "epoch" with the mean loss and the accuracy reached, a row "test" for the test pass."""
    shuffle = torch.Generator().manual_seed(setup.options.seed)
    for number in range(setup.options.epochs):
        timeline = Timeline(setup.clock)
        with timeline.time(number, "epoch"):
            loss = _train_epoch(setup, shuffle)
        with timeline.time(number, "test"):
            test_loss, accuracy = evaluate(setup)
        timeline.note(number, "epoch", loss, accuracy)
        timeline.note(number, "test", test_loss, accuracy)
        record.steps += timeline.rows()
        if setup.parts.scheduler is not None:
            setup.parts.scheduler.step()


def _train_epoch(setup: Setup, shuffle: torch.Generator) -> Tensor:
    """Train on every sample once, in a new order; mean loss over the samples."""
    dataset = setup.parts.train_data
    samples = data.size(dataset)
    total = torch.zeros((), device=setup.options.device)
    setup.parts.model.train()
    for indices in torch.randperm(samples, generator=shuffle).split(setup.options.batch_size):
        total += train_step(setup, data.take(dataset, indices)) * len(indices)
    return total / samples


def evaluate(setup: Setup) -> tuple[Tensor, float]:
    """(mean loss, accuracy 0..1) over the test data; the model is left as it was."""
    parts, dataset = setup.parts, setup.parts.test_data
    samples, was_training = data.size(dataset), parts.model.training
    total = torch.zeros((), device=setup.options.device)
    right = torch.zeros((), dtype=torch.int64, device=setup.options.device)
    parts.model.eval()
    for indices in torch.arange(samples).split(setup.options.batch_size):
        inputs, targets = data.take(dataset, indices)
        targets = targets.to(setup.options.device)
        outputs = infer(setup, inputs)
        total += parts.loss(outputs.float(), targets) * len(indices)
        right += (outputs.argmax(dim=1) == targets).sum()
    parts.model.train(was_training)
    return total / samples, int(right) / samples
