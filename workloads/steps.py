"""One step: its phases, on its device, in its precision."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from perfctl.workloads.precision import autocast
from perfctl.workloads.setup import Setup

Batch = tuple[Tensor, Tensor]
"""Inputs and targets, on the host."""
Phase = Callable[[str], AbstractContextManager[None]]
"""Wraps one phase of a step: data, copy, forward, backward, optimizer or inference."""


def unmarked(name: str) -> AbstractContextManager[None]:
    """A phase that nobody times."""
    return nullcontext()


def step(setup: Setup, batch: Batch, phase: Phase = unmarked) -> Tensor | None:
    """One training step (its loss) or one inference (None)."""
    if setup.options.mode == "infer":
        infer(setup, batch[0], phase)
        return None
    return train_step(setup, batch, phase)


def train_step(setup: Setup, batch: Batch, phase: Phase = unmarked) -> Tensor:
    """Forward, backward, optimizer. The loss stays on the device, so that nothing waits for it."""
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
    """What the model answers, without gradients; the model's own mode (train or eval) is left as it is."""
    options = setup.options
    with torch.inference_mode():
        with phase("copy"):
            inputs = inputs.to(options.device)
        with phase("inference"), autocast(options.precision, options.device):
            outputs: Tensor = setup.parts.model(inputs)
    return outputs
