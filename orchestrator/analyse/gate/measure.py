"""What a gate holds of a model on paper and of machine code. FLOPs: 1 multiply-add = 2."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from perfctl.orchestrator.analyse.flops.engine import BACKWARD, fused_only
from perfctl.orchestrator.analyse.gate.records import Measured, Place, Value
from perfctl.orchestrator.analyse.memory.estimate import Estimate
from perfctl.records.sass import Listed

Found = dict[Place, dict[str, Value]]


def of_model(estimates: Mapping[int, Estimate]) -> Measured:
    """Batch size -> one step on paper: the whole, then each layer by direction in the network's order."""
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
        casts = found.casts
        whole["cast_bytes"] = casts.read_bytes + casts.write_bytes
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
    return Measured(places, unknown)


def _add(places: Found, place: Place, quantity: str, value: int) -> None:
    mine = places.setdefault(place, {})
    before = mine.get(quantity, 0)
    assert isinstance(before, int)
    mine[quantity] = before + value


def of_code(kernels: Iterable[Listed]) -> Measured:
    """Registers of a thread, shared memory of a block, local memory of a thread; by kernel and architecture."""
    places: Found = {}
    unknown: dict[str, str] = {}
    for one in kernels:
        code = one.kernel
        place = Place(kernel=f"{one.name} (sm_{code.arch})")
        if place in places:
            unknown[place.name] = "several kernels have this name; the first is held"
            continue
        mine = places.setdefault(place, {})
        for quantity, value in (("registers", code.registers), ("spill_bytes", code.stack_bytes)):
            if value is None:
                unknown[f"{place.name}: {quantity}"] = "the code does not say"
            else:
                mine[quantity] = value
        mine["shared_bytes"] = code.shared_bytes + (one.dynamic_shared_bytes or 0)
    return Measured(places, unknown)
