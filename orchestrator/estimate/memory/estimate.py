"""One step of one model on paper: its layer calls, modules, FLOPs and memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from perfctl.orchestrator.estimate.flops.engine import (
    BACKWARD,
    Casts,
    Totals,
    TypeWork,
    casts_of,
    fused_only,
    integer_macs,
    totals,
    work_by_type,
)
from perfctl.orchestrator.estimate.flops.experts import Experts, experts_of
from perfctl.orchestrator.estimate.memory.trace import Memory
from perfctl.records.paper import LayerCall, MemoryTrace, OpShape

if TYPE_CHECKING:
    import pandas as pd

    from perfctl.records.paper import ModuleSeen


@dataclass(frozen=True, slots=True)
class Estimate:
    """One step of one model on paper. FLOPs count 1 multiply-add as 2."""

    JSON_KEYS = (
        "parameters",
        "trainable",
        "input_bytes",
        "active_parameters",
        "experts",
        "forward",
        "backward",
        "recompute",
        "fused",
        "integer_macs",
        "precision",
        "types",
        "casts",
        "calls",
        "modules",
        "memory",
        "data_dependent",
        "problem",
    )
    JSON_NAMES: ClassVar = {"fused": "fused_attention", "calls": "layers"}

    calls: tuple[LayerCall, ...]
    modules: tuple[ModuleSeen, ...]
    ops: tuple[OpShape, ...]
    problem: str | None
    """Where and why the trace stopped early, in one line; the record then has only what came
    before. None when whole."""
    memory: Memory | None
    data_dependent: tuple[str, ...] = ()
    """Operations whose result sizes depend on the data; the figures are then right for the traced
    input only."""
    input_bytes: int = 0
    memory_trace: MemoryTrace | None = None
    """Which storages were alive when; ``memory`` is worked out from it. None when it was not
    asked for."""
    precision: str = "fp32"
    """A name of :data:`perfctl.records.precision.PRECISIONS`."""

    @property
    def types(self) -> tuple[TypeWork, ...]:
        """Multiply-adds, elementwise FLOPs and bytes by type, forward and backward."""
        return work_by_type(self.ops, self.precision)

    @property
    def casts(self) -> Casts:
        return casts_of(self.ops)

    @property
    def parameters(self) -> int:
        """Elements of all parameters; shared ones count once."""
        return sum(module.parameters for module in self.modules)

    @property
    def trainable(self) -> int:
        return sum(module.trainable for module in self.modules)

    @property
    def experts(self) -> tuple[Experts, ...]:
        """The layers that are mixtures of experts."""
        return experts_of(self.ops, self.modules)

    @property
    def active_parameters(self) -> int | None:
        """Parameters that one token meets: of experts only its own. None where the model has
        no experts."""
        found = self.experts
        return self.parameters - sum(one.idle for one in found) if found else None

    @property
    def forward(self) -> Totals:
        return self._whole(totals(self.calls, ("forward",)))

    @property
    def backward(self) -> Totals:
        return self._whole(totals(self.calls, BACKWARD))

    def _whole(self, found: Totals) -> Totals:
        """Of a trace that stopped early, totals are lower bounds."""
        after = (
            ()
            if self.problem is None
            else ((f"what follows {self.problem.partition(': ')[0]}, where it stopped", 1),)
        )
        return replace(found, unknown=(*found.unknown, *after))

    @property
    def integer_macs(self) -> int:
        """Multiply-adds of integers, in every direction: no FLOPs, and in no other total."""
        return integer_macs(self.ops)

    @property
    def recompute(self) -> Totals:
        """Forward operations that activation checkpointing repeats in backward."""
        return totals((call for call in self.calls if not fused_only(call)), ("recompute",))

    @property
    def fused(self) -> Totals:
        """What a fused attention kernel computes again in backward; the math kernel does not. Part
        of no other total."""
        return totals(filter(fused_only, self.calls), ("recompute",))

    def frame(self) -> pd.DataFrame:
        """The layer calls as a DataFrame: one row for each layer, kind and direction."""
        import pandas as pd

        return pd.DataFrame(
            [call._asdict() for call in self.calls], columns=list(LayerCall._fields)
        )


def part_of(found: Estimate, layer: str) -> Estimate | None:
    """Only ``layer`` and what is inside it; None when the model has no such module."""
    if layer not in {module.path for module in found.modules}:
        return None

    def inside(path: str) -> bool:
        return not layer or path == layer or path.startswith(layer + ".")

    calls = tuple(call for call in found.calls if inside(call.layer) and (layer or call.kind))
    ops = tuple(op for op in found.ops if inside(op.layer))
    return replace(
        found,
        calls=calls,
        ops=ops,
        modules=tuple(module for module in found.modules if inside(module.path)),
    )
