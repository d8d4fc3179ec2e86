"""The kernels of a ledger row, and how their layer was found."""

from __future__ import annotations

from collections import Counter as Tally
from collections import defaultdict
from dataclasses import dataclass, replace

from perfctl.orchestrator.analyse.algorithms import recognise
from perfctl.orchestrator.analyse.figure import Figure
from perfctl.orchestrator.analyse.prepared import PreparedRun
from perfctl.orchestrator.analyse.timing import Key

GUESSED = "the layer of some launches was guessed"


@dataclass(frozen=True, slots=True)
class KernelUse:
    """One kernel name behind a ledger row."""

    name: str
    family: str | None
    algorithm: str | None
    """Method and tile that the name states, in words: "implicit gemm, 128x64 tile"."""
    per_step: float
    """Number of launches per step."""


def guessed(figure: Figure) -> Figure:
    """The count of a launch whose layer was guessed: exact for the launch, an estimate for the layer."""
    if figure.value is None:
        return figure
    return replace(figure, state="estimated", reason="; ".join(filter(None, (GUESSED, figure.reason))))


def guesses(run: PreparedRun | None) -> dict[Key, float]:
    """(layer, direction) -> share of its launches whose layer was guessed; only where there are any."""
    tallies: dict[Key, list[bool]] = defaultdict(list)
    if run is not None:
        for kernel, key in zip(run.run.report.kernels, run.keys, strict=True):
            if key is not None:
                tallies[key].append(kernel.layer_source == "guessed")
    return {key: sum(found) / len(found) for key, found in tallies.items() if any(found)}


def kernel_uses(run: PreparedRun | None) -> dict[Key, tuple[KernelUse, ...]]:
    """Kernel names behind each (layer, direction), most launched first."""
    if run is None:
        return {}
    steps = run.steps or 1
    tallies: dict[Key, Tally[tuple[str, str]]] = defaultdict(Tally)
    for kernel, key in zip(run.run.report.kernels, run.keys, strict=True):
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
    """Method and tile of a kernel in words; None when its name states neither."""
    said = recognise(name)
    tile = "x".join(str(side) for side in said.tile if side is not None) if said.tile else None
    parts = [said.method, f"{tile} tile" if tile else None]
    if said.tensor_core:
        parts.append(f"{said.math or ''} tensor cores".strip())
    return ", ".join(part for part in parts if part) or None
