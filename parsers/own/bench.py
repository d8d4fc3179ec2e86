"""Bench files: what `perfctl bench export` writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfctl.parsers.text.json import read_whole
from perfctl.records.bench import BenchMachine, BenchPoint
from perfctl.records.errors import ReportError

KEY, VERSION = "perfctl_bench", 1


def read_points(path: Path) -> tuple[BenchPoint, ...]:
    """Read the points of a file. Raises ReportError when it is another file, cut off, or from a
    newer perfctl."""
    content = read_whole(path, "bench", "Export it again")
    if not isinstance(content, dict) or not isinstance(content.get(KEY), int):
        raise ReportError(path, "bench", f"no field {KEY}", "Create it with perfctl bench export")
    if content[KEY] > VERSION:
        reason = f"version {content[KEY]}, this perfctl reads {VERSION}"
        raise ReportError(path, "bench", reason, "Install a newer perfctl")
    try:
        machines = [BenchMachine(**row) for row in content["machines"]]
        return tuple(_point(row, machines, content["layers"]) for row in content["points"])
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise ReportError(
            path, "bench", f"a field is missing or wrong ({error!r})", "Export it again"
        ) from error


def _point(
    row: dict[str, Any], machines: list[BenchMachine], layers: dict[str, list[str]]
) -> BenchPoint:
    names = layers[row["model"]]
    median, low, high = row["step_ns"]
    return BenchPoint(
        model=row["model"],
        batch=int(row["batch"]),
        mode=row["mode"],
        precision=row["precision"],
        machine=machines[row["machine"]],
        steps=row["steps"],
        step_ns=(median, low, high),
        fastest_ns=row.get("fastest_ns"),
        phase_ns=row["phase_ns"],
        memory_bytes=row["memory_bytes"],
        forward_ns=_by_name(names, row["forward_us"]),
        backward_ns=_by_name(names, row["backward_us"]),
        features=row["features"],
    )


def _by_name(names: list[str], values: list[float | None]) -> dict[str, int]:
    return {
        name: round(value * 1000)
        for name, value in zip(names, values, strict=bool(values))
        if value is not None
    }


def as_json(points: list[BenchPoint]) -> str:
    """Return the text of the file: one point per line."""
    machines = list(dict.fromkeys(point.machine for point in points))
    layers: dict[str, list[str]] = {}
    for point in points:
        names = layers.get(point.model, [])
        layers[point.model] = list(dict.fromkeys((*names, *point.forward_ns, *point.backward_ns)))
    rows = [
        json.dumps(_row(point, machines, layers[point.model]), separators=(",", ":"))
        for point in points
    ]
    named = [
        f"{json.dumps(model)}:{json.dumps(names, separators=(',', ':'))}"
        for model, names in layers.items()
    ]
    seen = [
        json.dumps({name: getattr(one, name) for name in BenchMachine.__slots__})
        for one in machines
    ]
    lists = ",\n".join(seen), ",\n".join(named), ",\n".join(rows)
    return '{"%s":%d,\n"machines":[\n%s],\n"layers":{\n%s},\n"points":[\n%s]}\n' % (  # noqa: UP031
        KEY,
        VERSION,
        *lists,
    )


def _in_order(times: Mapping[str, int], names: list[str]) -> list[float | None]:
    return (
        [round(times[name] / 1000, 1) if name in times else None for name in names] if times else []
    )


def _row(point: BenchPoint, machines: list[BenchMachine], names: list[str]) -> dict[str, Any]:
    return {
        "model": point.model,
        "batch": point.batch,
        "mode": point.mode,
        "precision": point.precision,
        "machine": machines.index(point.machine),
        "steps": point.steps,
        "step_ns": point.step_ns,
        "fastest_ns": point.fastest_ns,
        "phase_ns": dict(point.phase_ns),
        "memory_bytes": dict(point.memory_bytes),
        "forward_us": _in_order(point.forward_ns, names),
        "backward_us": _in_order(point.backward_ns, names),
        "features": {
            name: int(value) if value == int(value) else value
            for name, value in point.features.items()
        },
    }
