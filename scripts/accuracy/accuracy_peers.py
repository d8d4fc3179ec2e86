"""Other tools on the same models, side by side, on the CPU with real tensors, because some of them need that.

FlopCounterMode comes with torch; fvcore and torchinfo are used if installed (extra ``peers``). fvcore calls a
multiply-add one flop and torchinfo counts "mult-adds", so both are MAC already; FlopCounterMode's FLOPs are halved.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from importlib.util import find_spec
from typing import Any

import accuracy_cases as cases
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from perfctl.orchestrator.actions import estimate as estimation


def counter_macs(model: Any, given: tuple[Any, ...]) -> int:
    with FlopCounterMode(display=False) as counter:
        model(*given)
    return counter.get_total_flops() // 2


def fvcore_macs(model: Any, given: tuple[Any, ...]) -> int:
    from fvcore.nn import FlopCountAnalysis

    logging.getLogger("fvcore").setLevel(logging.ERROR)
    return int(FlopCountAnalysis(model, given).unsupported_ops_warnings(False).uncalled_modules_warnings(False).total())


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


Case = tuple[Callable[[], nn.Module], tuple[int, ...], int]

BESIDE: dict[str, Case] = {
    "Conv2d depthwise": (lambda: nn.Conv2d(16, 16, 3, padding=1, groups=16), (2, 16, 16, 16), 2 * 16 * 16 * 16 * 9),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(16, 8, 2, 2), (2, 16, 16, 16), 2 * 16 * 16 * 16 * 8 * 4),
    "Linear on 2 x 50 x 64": (lambda: nn.Linear(64, 32), (2, 50, 64), 2 * 50 * 64 * 32),
    "einsum bij,bkj->bik": (Einsum, (2, 50, 64), 2 * 50 * 50 * 64),
    **cases.PROBES,
}
"""Model, input, MAC by hand (or as published)."""

TORCHVISION = ("resnet18", "mobilenet_v2", "squeezenet1_1", "shufflenet_v2_x1_0", "vit_b_16", "swin_t")


def torchvision_cases(published: list[cases.Published]) -> dict[str, Case]:
    """Small published models; the figure is theirs, rounded to 3 decimals of GMAC."""
    known = {case.name: case for case in published}
    return {
        name: (_maker(known[name]), (1, *cases.inputs(name, 1)[0].shape[1:]), round(known[name].gmac * 1e9))
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
        "Side by side: forward MAC of one call, eval, no_grad. perfctl on meta; the others on the CPU with real tensors.",
        "FlopCounterMode counts FLOP (2 a MAC) and is halved here; fvcore and torchinfo count MAC. = : the reference.",
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


def _ask(peer: Callable[[Any, tuple[Any, ...]], int], model: Any, given: tuple[Any, ...]) -> int | None:
    """A peer's answer; None when it refuses the model."""
    try:
        with torch.no_grad(), redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
            return peer(model, given)
    except (ImportError, RuntimeError, TypeError, ValueError, NotImplementedError, AttributeError):
        return None
