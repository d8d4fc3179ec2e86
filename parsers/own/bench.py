"""Bench files: what `perfctl bench export` writes."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from perfctl.parsers.own.json import read_versioned_json
from perfctl.records.bench import BenchMachine, BenchPoint
from perfctl.records.errors import ReportError

KEY, VERSION = "perfctl_bench", 1
_AS_STATED = ("model", "mode", "precision", "steps", "phase_ns", "memory_bytes", "features")


def read_bench_points(path: Path) -> tuple[BenchPoint, ...]:
    """Read the points of a file. Raises ReportError when it is another file, cut off, or from a
    newer perfctl."""
    remedies = ("Export it again", "Create it with perfctl bench export")
    content = read_versioned_json(path, "bench", KEY, VERSION, remedies)
    try:
        machines = [BenchMachine(**row) for row in content["machines"]]
        return tuple(
            _parse_bench_point(row, machines, content["layers"]) for row in content["points"]
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        reason = f"a field is missing or wrong ({error!r})"
        raise ReportError(path, "bench", reason, "Export it again") from error


def _parse_bench_point(
    row: dict[str, Any], machines: list[BenchMachine], layers: dict[str, list[str]]
) -> BenchPoint:
    names = layers[row["model"]]
    median, low, high = row["step_ns"]
    forward, backward = (
        {
            name: round(time * 1000)
            for name, time in zip(names, times, strict=bool(times))
            if time is not None
        }
        for times in (row["forward_us"], row["backward_us"])
    )
    return BenchPoint(
        **{name: row[name] for name in _AS_STATED},
        batch=int(row["batch"]),
        machine=machines[row["machine"]],
        step_ns=(median, low, high),
        fastest_ns=row.get("fastest_ns"),
        forward_ns=forward,
        backward_ns=backward,
    )


def format_bench_file(points: list[BenchPoint]) -> str:
    """Return the text of the file: one point per line."""
    machines = list(dict.fromkeys(point.machine for point in points))
    layers: dict[str, list[str]] = {}
    for point in points:
        names = layers.get(point.model, [])
        layers[point.model] = list(dict.fromkeys((*names, *point.forward_ns, *point.backward_ns)))
    head = _dump_compact_json(
        {KEY: VERSION, "machines": [*map(asdict, machines)], "layers": layers}
    )
    rows = (
        _dump_compact_json(_make_json_row_of_point(point, machines, layers[point.model]))
        for point in points
    )
    return head[:-1] + ',\n"points":[\n' + ",\n".join(rows) + "]}\n"


def _make_json_row_of_point(
    point: BenchPoint, machines: list[BenchMachine], layer_names: list[str]
) -> dict[str, Any]:
    row = asdict(point)
    for passed in ("forward", "backward"):
        times = row.pop(f"{passed}_ns")
        layer_times = [
            round(times[name] / 1000, 1) if name in times else None for name in layer_names
        ]
        row[f"{passed}_us"] = layer_times if times else []
    features = {
        name: int(value) if value == int(value) else value for name, value in point.features.items()
    }
    return row | {"machine": machines.index(point.machine), "features": features}


def _dump_compact_json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
