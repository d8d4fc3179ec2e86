"""The rules of FlopCounterMode, fvcore and thop, for ``accuracy_named.py``: each is a figure
computed from the operators that ran, so that an explanation of a difference is a sum that holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from perfctl.orchestrator.estimate.flops.engine import BACKWARD, find_formula
from perfctl.orchestrator.estimate.flops.formulas import adjust_complex_and_integer_work
from perfctl.orchestrator.estimate.step import Estimate
from perfctl.workloads.tracing import operations
from perfctl.workloads.tracing.gradients import iterate_tensors

_NORMS = {
    "native_batch_norm": 1,
    "cudnn_batch_norm": 1,
    "native_layer_norm": 2,
    "native_group_norm": 1,
}
"""Operator -> place of its scale."""


class Beside(TorchDispatchMode):
    """Runs the operators below another counter, and adds up what explains differences from it."""

    def __init__(self) -> None:
        super().__init__()
        self.grouped = 0
        """FLOPs that FlopCounterMode counts too often: weights' gradients of grouped convolutions,
        groups times."""
        self.norms = 0
        """What fvcore adds for normalisation: batch norm 2 a value in eval, other norms and
        training 5, without scale 1 less."""
        self.sampled = 0
        """What fvcore adds for interpolation: 1 for each output value, bilinear 4."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(getattr(func, "_overloadpacket", func))
        result = operations.run_operator_or_meta_substitute(func, name, args, kwargs or {})
        bare = name.partition(".")[2]
        if bare == "convolution_backward" and args[9] > 1 and args[10][1]:
            gradient, data, weight = args[:3]
            positions = data if args[7] else gradient
            self.grouped += (
                2 * (args[9] - 1) * positions.shape[0] * prod(positions.shape[2:]) * weight.numel()
            )
        elif bare in _NORMS:
            scaled = args[_NORMS[bare]] is not None
            training = "batch" not in bare or args[5]
            self.norms += args[0].numel() * ((4 + scaled) if training else (1 + scaled))
        elif bare in ("upsample_bilinear2d", "upsample_nearest2d"):
            self.sampled += result.numel() * (4 if "bilinear" in bare else 1)
        return result


@dataclass
class Theirs:
    """FlopCounterMode's FLOPs, and what explains them."""

    forward: int
    backward: int
    beside: Beside = field(repr=False)


def by_torch(model: nn.Module, inputs: tuple[Any, ...]) -> Theirs:
    """One training step without optimizer under FlopCounterMode."""
    model.train()
    beside = Beside()
    with beside, FlopCounterMode(display=False) as counter:
        output = model(*inputs)
    forward = counter.get_total_flops()
    ends = [end for end in iterate_tensors(output) if end.requires_grad and end.is_floating_point()]
    with beside, FlopCounterMode(display=False) as counter:
        torch.autograd.backward(ends, [torch.ones_like(end) for end in ends])
    return Theirs(forward, counter.get_total_flops(), beside)


def unknown_to_torch(found: Estimate) -> dict[str, tuple[int, int]]:
    """Operator that FlopCounterMode has no formula for -> its FLOPs (forward, backward)
    by perfctl."""
    flops: dict[str, list[int]] = {}
    for op in found.ops:
        formula = find_formula(op)
        if formula is None or "missed" in op.attributes or _known(op.op):
            continue
        for part in formula(op):
            if macs := adjust_complex_and_integer_work(op, part).macs:
                flops.setdefault(op.op, [0, 0])[part.direction in BACKWARD] += 2 * macs * op.calls
    return {name: (both[0], both[1]) for name, both in flops.items()}


def _known(op: str) -> bool:
    """Attention and recurrent layers are one operation of perfctl's own; FlopCounterMode sees the
    products inside."""
    space, _, bare = op.partition(".")
    return (
        space == "perfctl" or getattr(getattr(torch.ops, space, None), bare, None) in flop_registry
    )


def as_counted(
    counter: str, model: nn.Module, inputs: tuple[Any, ...], found: Estimate
) -> list[tuple[str, float]]:
    """(What a counter counts besides or leaves out, giga multiply-adds) for one sample in eval;
    ``found``: perfctl's."""
    macs = [call for call in found.calls if call.direction == "forward" and call.macs]
    if counter == "fvcore":
        beside = Beside()
        with torch.no_grad(), beside:
            model.eval()(*inputs)
        words = {
            path
            for path, module in model.named_modules()
            if isinstance(getattr(module, "padding", None), str)
        }
        return _without_zeros(
            ("its norms", beside.norms),
            ("its interpolations", beside.sampled),
            (
                "without convolutions whose padding is a word",
                -sum(call.macs for call in macs if call.layer in words),
            ),
            ("without nn.LSTM", -sum(call.macs for call in macs if call.kind == "LSTM")),
        )
    if counter == "thop":
        leaves = {
            path
            for path, module in model.named_modules()
            if isinstance(module, (nn.Linear, nn.modules.conv._ConvNd))
        }
        return _without_zeros(
            (
                "only what layers multiply, no attention",
                -sum(call.macs for call in macs if call.layer not in leaves),
            )
        )
    return []


def _without_zeros(*terms: tuple[str, int]) -> list[tuple[str, float]]:
    return [(text, count / 1e9) for text, count in terms if count]


def total(terms: Iterable[tuple[str, float]]) -> float:
    return sum(count for _, count in terms)
