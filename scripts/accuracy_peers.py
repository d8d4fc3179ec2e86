"""Other tools on the same models, side by side: they take part when installed (extra ``peers``)."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import accuracy_cases as cases


@dataclass
class Peers:
    """Forward GMAC of other tools inside the published rounding, and their seconds."""

    inside: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    tried: int = 0


def fvcore_macs(model: Any, given: tuple[Any, ...]) -> int:
    from fvcore.nn import FlopCountAnalysis

    return int(FlopCountAnalysis(model, given).unsupported_ops_warnings(False).uncalled_modules_warnings(False).total())


def torchinfo_macs(model: Any, given: tuple[Any, ...]) -> int:
    import torchinfo

    return int(torchinfo.summary(model, input_data=given, verbose=0, device="meta").total_mult_adds)


PEERS = {"fvcore": fvcore_macs, "torchinfo": torchinfo_macs}


def installed(name: str) -> bool:
    """Whether a peer of that name can be imported."""
    return find_spec(name) is not None


def compare(peers: Peers, case: cases.Published, model: Any, given: Any, counter: int, seconds: float) -> None:
    """What the other tools say of the same model."""
    peers.tried += 1
    values = {"FlopCounterMode": (counter, seconds)}
    for name, run in PEERS.items():
        with contextlib.suppress(ImportError, RuntimeError, TypeError, ValueError, NotImplementedError, AttributeError):
            start = time.perf_counter()
            values[name] = (run(model, given), time.perf_counter() - start)
    for name, (macs, taken) in values.items():
        good = abs(macs / 1e9 - case.gmac) <= cases.ROUNDING + 1e-12
        peers.inside[name] = peers.inside.get(name, 0) + good
        peers.seconds.setdefault(name, []).append(taken)
