"""Other tools on the same models, side by side, on the CPU with real tensors, because some of them
need that.

FlopCounterMode comes with torch; fvcore and torchinfo are used if installed (extra ``peers``).
fvcore calls a multiply-add one flop and torchinfo counts "mult-adds", so both are MAC already;
FlopCounterMode's FLOPs are halved.

For ``accuracy_named.py`` the rules of FlopCounterMode, fvcore and thop are worked out for the very
model: each is a figure computed from the operators that ran, so that an explanation of a difference
is a sum that holds.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from importlib.util import find_spec
from math import prod
from typing import Any

import accuracy_cases as cases
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from perfctl.orchestrator.estimate import session as estimation
from perfctl.orchestrator.estimate.flops.engine import BACKWARD, find_formula
from perfctl.orchestrator.estimate.flops.formulas import convert_to_real_flops
from perfctl.orchestrator.estimate.step import Estimate
from perfctl.workloads.tracing import operations
from perfctl.workloads.tracing.gradients import iterate_tensors

Case = tuple[Callable[[], nn.Module], tuple[int, ...], int]

TORCHVISION = (
    "resnet18",
    "mobilenet_v2",
    "squeezenet1_1",
    "shufflenet_v2_x1_0",
    "vit_b_16",
    "swin_t",
)

_NORMS = {
    "native_batch_norm": 1,
    "cudnn_batch_norm": 1,
    "native_layer_norm": 2,
    "native_group_norm": 1,
}
"""Operator -> place of its scale."""


def counter_macs(model: Any, given: tuple[Any, ...]) -> int:
    with FlopCounterMode(display=False) as counter:
        model(*given)
    return counter.get_total_flops() // 2


def fvcore_macs(model: Any, given: tuple[Any, ...]) -> int:
    from fvcore.nn import FlopCountAnalysis

    logging.getLogger("fvcore").setLevel(logging.ERROR)
    return int(
        FlopCountAnalysis(model, given)
        .unsupported_ops_warnings(False)
        .uncalled_modules_warnings(False)
        .total()
    )


def torchinfo_macs(model: Any, given: tuple[Any, ...], device: str = "cpu") -> int:
    import torchinfo

    return int(torchinfo.summary(model, input_data=given, verbose=0, device=device).total_mult_adds)


PEERS: dict[str, Callable[[Any, tuple[Any, ...]], int]] = {
    "FlopCounterMode": counter_macs,
    "fvcore": fvcore_macs,
    "torchinfo": torchinfo_macs,
}


def installed(name: str) -> bool:
    """Whether a peer of that name can be imported."""
    return name == "FlopCounterMode" or find_spec(name) is not None


class Einsum(nn.Module):
    """einsum alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("bij,bkj->bik", x, x)


BESIDE: dict[str, Case] = {
    "Conv2d depthwise": (
        lambda: nn.Conv2d(16, 16, 3, padding=1, groups=16),
        (2, 16, 16, 16),
        2 * 16 * 16 * 16 * 9,
    ),
    "ConvTranspose2d": (
        lambda: nn.ConvTranspose2d(16, 8, 2, 2),
        (2, 16, 16, 16),
        2 * 16 * 16 * 16 * 8 * 4,
    ),
    "Linear on 2 x 50 x 64": (lambda: nn.Linear(64, 32), (2, 50, 64), 2 * 50 * 64 * 32),
    "einsum bij,bkj->bik": (Einsum, (2, 50, 64), 2 * 50 * 50 * 64),
    **cases.PROBES,
}
"""Model, input, MAC by hand (or as published)."""


def torchvision_cases(published: list[cases.Published]) -> dict[str, Case]:
    """Small published models; the figure is theirs, rounded to 3 decimals of GMAC."""
    known = {case.name: case for case in published}
    return {
        name: (
            _maker(known[name]),
            (1, *cases.inputs(name, 1)[0].shape[1:]),
            round(known[name].gmac * 1e9),
        )
        for name in TORCHVISION
        if name in known
    }


def _maker(case: cases.Published) -> Callable[[], nn.Module]:
    return lambda: cases.build(case.name, case.family, train=False, device="cpu")


def side_by_side(published: list[cases.Published]) -> list[str]:
    """The table: MAC by hand or as published, perfctl on meta, the others on the CPU."""
    names = [name for name in PEERS if installed(name)]
    missing = [name for name in PEERS if not installed(name)]
    lines = [
        (
            "Side by side: forward MAC of one call, eval, no_grad. perfctl on meta; the others on "
            "the CPU with real tensors."
        ),
        (
            "FlopCounterMode counts FLOP (2 a MAC) and is halved here; fvcore and torchinfo count "
            "MAC. = : the reference."
        ),
    ]
    if missing:
        lines.append(f"Not installed: {', '.join(missing)} (pip install 'perfctl[peers]')")
    heads = ["reference", "perfctl", *names]
    lines.append(f"{'':24}" + "".join(f"{head:>18}" for head in heads))
    for name, (make, shape, wanted) in {**BESIDE, **torchvision_cases(published)}.items():
        model, given = make().eval(), (torch.zeros(shape),)
        mine = estimation.estimate(model, [shape], mode="infer").forward.macs
        tolerance = cases.ROUNDING * 1e9 if name in TORCHVISION else 0
        cells = [f"{wanted:,}", _cell(mine, wanted, tolerance)]
        cells += [_cell(_ask(PEERS[peer], model, given), wanted, tolerance) for peer in names]
        lines.append(f"{name:24}" + "".join(f"{cell:>18}" for cell in cells))
    return lines


def _cell(value: int | None, wanted: int, tolerance: float) -> str:
    if value is None:
        return "refuses"
    if abs(value - wanted) <= tolerance:
        return "="
    return f"{value:,}"


def _ask(
    peer: Callable[[Any, tuple[Any, ...]], int], model: Any, given: tuple[Any, ...]
) -> int | None:
    """A peer's answer; None when it refuses the model."""
    try:
        with torch.no_grad(), redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
            return peer(model, given)
    except (ImportError, RuntimeError, TypeError, ValueError, NotImplementedError, AttributeError):
        return None


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
        result = operations.run(func, name, args, kwargs or {})
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
            if macs := convert_to_real_flops(op, part).macs:
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
