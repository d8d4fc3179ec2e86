"""What a gate holds of a model on paper. FLOPs: 1 multiply-add = 2."""

from __future__ import annotations

from collections.abc import Mapping

from perfctl.orchestrator.analyse.flops.engine import BACKWARD, fused_only
from perfctl.orchestrator.analyse.gate.records import Measured, Place, Value
from perfctl.orchestrator.analyse.memory.estimate import Estimate
from perfctl.records.compiled import CompiledStep

Found = dict[Place, dict[str, Value]]
_PASSES = ("forward", "backward")
"""Directions whose copies are held: an optimizer copies each gradient once, to begin its state with."""


def of_model(estimates: Mapping[int, Estimate], compiled: Mapping[int, CompiledStep] | None = None) -> Measured:
    """Batch size -> one step on paper: the whole, then each layer by direction in the network's order.

    compiled: batch size -> what torch.compile makes of the step.
    """
    places: Found = {}
    unknown: dict[str, str] = {}
    for batch, found in estimates.items():
        whole = places.setdefault(Place(batch=batch), {"parameters": found.parameters})
        for direction, totals in (("forward", found.forward), ("backward", found.backward)):
            if totals.unknown:
                names = ", ".join(dict.fromkeys(name for name, _ in totals.unknown))
                unknown[f"batch {batch}, FLOPs of {direction}"] = f"no formula for {names}: only what is known is held"
        if found.memory is not None:
            whole["memory_peak"] = found.memory.rounded_peak
        for op in found.ops:
            _add(places, Place(batch=batch, direction=op.direction), "operations", op.calls)
            if found.memory_trace is not None and op.direction in _PASSES:
                places[Place(batch=batch, direction=op.direction)].setdefault("copied_bytes", 0)
        casts = found.casts
        whole["cast_bytes"] = casts.read_bytes + casts.write_bytes
        for made in found.memory_trace.allocations if found.memory_trace is not None else ():
            if made.op == "aten.clone" and made.direction in _PASSES:
                for layer in ("", made.layer or "(model)"):
                    place = Place(batch=batch, layer=layer, direction=made.direction)
                    _add(places, place, "copied_bytes", made.bytes)
        for call in found.calls:
            if fused_only(call):
                continue
            direction = "backward" if call.direction in BACKWARD else call.direction
            figures = {
                "flops": call.flops, "elementwise_flops": call.elementwise_flops,
                "bytes": None if None in (call.read_bytes, call.write_bytes) else
                (call.read_bytes or 0) + (call.write_bytes or 0),
            }  # fmt: skip
            for quantity, value in figures.items():
                if value is None:
                    continue
                _add(places, Place(batch=batch, direction=direction), quantity, value)
                if value:
                    _add(
                        places, Place(batch=batch, layer=call.layer or "(model)", direction=direction), quantity, value
                    )
    return Measured(places, unknown, _of_compiled(compiled or {}, places, unknown))


def _of_compiled(
    steps: Mapping[int, CompiledStep], places: Found, unknown: dict[str, str]
) -> dict[str, dict[str, str]]:
    """Graph breaks, and what Inductor makes of the graphs; gives the facts beside them: versions, and why graphs break."""
    environment: dict[str, dict[str, str]] = {}
    for batch, step in steps.items():
        whole = Place(batch=batch)
        why = step.problem or "the step stopped"
        if step.broke:
            unknown[f"{whole.name}: graph_breaks"] = why
        else:
            places.setdefault(whole, {})["graph_breaks"] = sum(times for _, times in step.breaks)
        environment[f"batch {batch}"] = {
            "torch": step.torch, "graph breaks": "; ".join(reason for reason, _ in step.breaks) or "none",
        }  # fmt: skip
        for graph in step.graphs or ():
            at = Place(batch=batch, direction=graph.direction)
            _add(places, at, "compiled_operations", graph.operations)
            _add(places, at, "compiled_kernels", graph.kernels)
            _add(places, at, "library_calls", graph.library_calls)
        if step.graphs is None:
            unknown[f"{whole.name}: kernels of Inductor"] = why
    return environment


def _add(places: Found, place: Place, quantity: str, value: int) -> None:
    mine = places.setdefault(place, {})
    before = mine.get(quantity, 0)
    assert isinstance(before, int)
    mine[quantity] = before + value
