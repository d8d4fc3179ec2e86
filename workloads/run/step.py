"""Run one step in phases, on its device and in its precision."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from perfctl.workloads.run.setup import Setup, autocast

Batch = tuple[Tensor, Tensor]
"""Inputs and targets, on the host."""
Phase = Callable[[str], AbstractContextManager[None]]
"""Context of one phase of a step: data, copy, forward, backward, optimizer or inference."""


def unmarked(name: str) -> AbstractContextManager[None]:
    """A phase without ranges or times."""
    return nullcontext()


def step(setup: Setup, batch: Batch, phase: Phase = unmarked) -> Tensor | None:
    """One training step, which returns its loss, or one inference step, which returns None."""
    if setup.options.mode == "infer":
        infer(setup, batch[0], phase)
        return None
    return train_step(setup, batch, phase)


def train_step(setup: Setup, batch: Batch, phase: Phase = unmarked) -> Tensor:
    """Forward, backward, optimizer. The loss stays on the device, to avoid waiting for it."""
    options, parts = setup.options, setup.parts
    assert parts.optimizer is not None
    with phase("copy"):
        inputs, targets = (part.to(options.device) for part in batch)
    with phase("forward"), autocast(options.precision, options.device):
        loss = parts.loss(parts.model(inputs), targets)
    with phase("backward"):
        setup.scaler.scale(loss).backward()
    with phase("optimizer"):
        setup.scaler.step(parts.optimizer)
        setup.scaler.update()
        parts.optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def infer(setup: Setup, inputs: Tensor, phase: Phase = unmarked) -> Tensor:
    """The model's outputs, without gradients; does not change the model's mode (train or eval)."""
    options = setup.options
    with torch.inference_mode():
        with phase("copy"):
            inputs = inputs.to(options.device)
        with phase("inference"), autocast(options.precision, options.device):
            outputs: Tensor = setup.parts.model(inputs)
    return outputs
