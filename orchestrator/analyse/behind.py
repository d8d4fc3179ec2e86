"""What stands behind a ledger row: its kernels, how their layer was found, and gradients that belong together."""

from __future__ import annotations

from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfctl.orchestrator.analyse.algorithms import recognise
from perfctl.orchestrator.analyse.figure import Figure
from perfctl.orchestrator.analyse.timing import Key, kernel_keys, kernel_steps
from perfctl.parsers.records import Kernel, Range
from perfctl.parsers.stored import Run

GRADIENTS = ("grad_input", "grad_weight", "grad_bias")
GUESSED = "the layer of some launches was guessed"


@dataclass(frozen=True, slots=True)
class KernelUse:
    """One kernel name behind a ledger row."""

    name: str
    family: str | None
    algorithm: str | None
    """Method and tile that the name states, in words: "implicit gemm, 128x64 tile"."""
    per_step: float
    """Launches per step."""


def with_whole_backward(runs: Sequence[Run]) -> list[Run]:
    """Runs of one batch size in which a layer's gradients count as "backward" where any run saw that layer's "backward".

    The nodes of a layer may be told apart in one run and not in another; only sums over the same work are compared.
    """
    whole: set[str] = set()
    for run in runs:
        whole |= {kernel.layer for kernel in run.report.kernels if kernel.direction == "backward" and kernel.layer}
        whole |= {item.layer for item in run.report.ranges if item.direction == "backward" and item.layer}
    if not whole:
        return list(runs)
    return [_folded(run, whole) for run in runs]


def _folded(run: Run, layers: set[str]) -> Run:
    def gradient(item: Kernel | Range) -> bool:
        return item.direction in GRADIENTS and item.layer in layers

    kernels, ranges = list(run.report.kernels), list(run.report.ranges)
    if not any(map(gradient, kernels)) and not any(map(gradient, ranges)):
        return run
    report = replace(
        run.report,
        kernels=[kernel._replace(direction="backward") if gradient(kernel) else kernel for kernel in kernels],
        ranges=[item._replace(direction="backward") if gradient(item) else item for item in ranges],
    )
    return replace(run, report=report)


def guessed(figure: Figure) -> Figure:
    """What a launch executed is counted, and to which layer it belongs is not: an estimate for that layer."""
    if figure.value is None:
        return figure
    return replace(figure, state="estimated", reason="; ".join(filter(None, (GUESSED, figure.reason))))


def guesses(run: Run | None) -> dict[Key, float]:
    """(layer, direction) -> share of its launches whose layer was guessed; only where there are any."""
    tallies: dict[Key, list[bool]] = defaultdict(list)
    if run is not None:
        for kernel, key in zip(run.report.kernels, kernel_keys(run), strict=True):
            if key is not None:
                tallies[key].append(kernel.layer_source == "guessed")
    return {key: sum(found) / len(found) for key, found in tallies.items() if any(found)}


def kernel_uses(run: Run | None) -> dict[Key, tuple[KernelUse, ...]]:
    """Kernel names behind each (layer, direction), most launched first."""
    if run is None:
        return {}
    steps = kernel_steps(run) or 1
    tallies: dict[Key, Tally[tuple[str, str]]] = defaultdict(Tally)
    for kernel, key in zip(run.report.kernels, kernel_keys(run), strict=True):
        if key is not None:
            tallies[key][kernel.name, kernel.short_name or kernel.name] += 1
    return {
        key: tuple(
            KernelUse(short, recognise(name).family, algorithm(name), count / steps)
            for (name, short), count in tally.most_common()
        )
        for key, tally in tallies.items()
    }


def algorithm(name: str) -> str | None:
    """Method and tile of a kernel in words; None when its name says neither."""
    said = recognise(name)
    tile = "x".join(str(side) for side in said.tile if side is not None) if said.tile else None
    parts = [said.method, f"{tile} tile" if tile else None]
    if said.tensor_core:
        parts.append(f"{said.math or ''} tensor cores".strip())
    return ", ".join(part for part in parts if part) or None
