"""Figures of a step from pen and paper, that its time is set against: multiply-adds by kind, bytes, layers, parameters.

1 multiply-add is 2 FLOPs.
"""

from __future__ import annotations

from collections.abc import Iterable

from perfctl.orchestrator.analyse.estimate import BACKWARD
from perfctl.parsers.layer_times import Feature
from perfctl.parsers.paper import LayerCall


def features_of(calls: Iterable[LayerCall]) -> tuple[Feature, ...]:
    """Of one step at its batch size, all directions named apart. What has no formula is in "unknown", and in no sum."""
    sums: dict[str, float] = {}

    def add(name: str, value: float | None) -> None:
        sums[name] = sums.get(name, 0.0) + (value or 0.0)

    for call in calls:
        if call.direction == "optimizer":
            add("bytes:optimizer", (call.read_bytes or 0) + (call.write_bytes or 0))
            continue
        if call.macs is None:
            add("unknown", call.calls)
            continue
        moved = (call.read_bytes or 0) + (call.write_bytes or 0)
        if call.direction == "forward":
            add("flops:forward", 2 * call.macs)
            add("elementwise:forward", call.elementwise_flops)
            add("bytes:forward", moved)
            add("calls:forward", call.calls)
            add("parameters", call.parameters)
            add("activations", call.output_elements)
            if call.macs:
                add("layers", 1)
                add(f"flops:{call.kind}", 2 * call.macs)
        elif call.direction in BACKWARD:
            add("flops:backward", 2 * call.macs)
            add("bytes:backward", moved)
    return tuple(Feature(name, value, _UNITS.get(name.partition(":")[0])) for name, value in sorted(sums.items()))


_UNITS = {"flops": "FLOP", "elementwise": "FLOP", "bytes": "byte", "parameters": "element", "activations": "element"}
