"""Measurements of a bench, one per network and batch size, and the file that holds them (``perfctl bench export``).

::

    {"perfctl_bench": 1,
     "machines": [{"device": "AMD EPYC", "kind": "cpu", "threads": 1, "torch": "2.9.0"}],
     "layers": {"mlp": ["flatten", "fc1", "act1", "fc2", ...]},
     "points": [{"model": "mlp", "batch": 64, "mode": "train", "precision": "fp32", "machine": 0, "steps": 30,
                 "step_ns": [median, first quartile, third quartile], "fastest_ns": shortest,
                 "phase_ns": {"forward": median, "backward": median, "optimizer": median},
                 "memory_bytes": {"before": b, "peak": p},
                 "forward_us": [median of each of the model's layers], "backward_us": [likewise, all directions of it],
                 "features": {"flops:forward": ..., ...}}, ...]}

A layer without work in a direction is null; times of layers are microseconds, to a tenth. 1 multiply-add is 2 FLOPs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfctl.parsers.errors import ReportError
from perfctl.parsers.whole_json import read_whole

KEY = "perfctl_bench"
VERSION = 1


@dataclass(frozen=True, slots=True)
class BenchMachine:
    """The machine and software of a measurement."""

    device: str
    kind: str
    """cpu or gpu."""
    threads: int | None
    """Threads of a CPU run; None for a GPU."""
    torch: str | None


@dataclass(frozen=True, slots=True)
class BenchPoint:
    """One network at one batch size. Times are nanoseconds of one step."""

    model: str
    """Full specification, from which ``perfctl.workloads.plan.plan`` makes the layers."""
    batch: int
    mode: str
    """train or infer."""
    precision: str
    machine: BenchMachine
    steps: int
    """Measured steps, after the warm-up; layers were timed in separate steps after these."""
    step_ns: tuple[int, int, int]
    """Median, first and third quartile, without data loading and copies."""
    fastest_ns: int | None = None
    """The fastest measured step, the one least disturbed. None: the file does not have it."""
    phase_ns: Mapping[str, int] = field(default_factory=dict)
    """Median of each phase: forward, backward, optimizer; inference."""
    memory_bytes: Mapping[str, int] = field(default_factory=dict)
    """ "peak" in the measured steps and "before" them: on a GPU allocated, on a CPU resident in the whole process."""
    forward_ns: Mapping[str, int] = field(default_factory=dict)
    """Median of each layer that ran, by dotted path; empty where layers were not timed."""
    backward_ns: Mapping[str, int] = field(default_factory=dict)
    features: Mapping[str, float] = field(default_factory=dict)
    """Figures of the step calculated from shapes."""

    @property
    def spread(self) -> float:
        """Interquartile range divided by the median: 0 where all steps took equally long."""
        median, low, high = self.step_ns
        return (high - low) / median if median else 0.0

    @property
    def family(self) -> str:
        return self.model.partition(":")[0]


def read_points(path: Path) -> tuple[BenchPoint, ...]:
    """Read the points of a file. Raises ReportError when it is another file, cut off, or from a newer perfctl."""
    content = read_whole(path, "bench", "Export it again")
    if not isinstance(content, dict) or not isinstance(content.get(KEY), int):
        raise ReportError(path, "bench", f"no field {KEY}", "Create it with perfctl bench export")
    if content[KEY] > VERSION:
        raise ReportError(
            path, "bench", f"version {content[KEY]}, this perfctl reads {VERSION}", "Install a newer perfctl"
        )
    try:
        machines = [BenchMachine(**row) for row in content["machines"]]
        return tuple(_point(row, machines, content["layers"]) for row in content["points"])
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise ReportError(path, "bench", f"a field is missing or wrong ({error!r})", "Export it again") from error


def _point(row: dict[str, Any], machines: list[BenchMachine], layers: dict[str, list[str]]) -> BenchPoint:
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
    return {name: round(value * 1000) for name, value in zip(names, values, strict=bool(values)) if value is not None}


def as_json(points: list[BenchPoint]) -> str:
    """Return the text of the file: one point per line."""
    machines = list(dict.fromkeys(point.machine for point in points))
    layers: dict[str, list[str]] = {}
    for point in points:
        names = layers.get(point.model, [])
        layers[point.model] = list(dict.fromkeys((*names, *point.forward_ns, *point.backward_ns)))
    rows = [json.dumps(_row(point, machines, layers[point.model]), separators=(",", ":")) for point in points]
    named = [f"{json.dumps(model)}:{json.dumps(names, separators=(',', ':'))}" for model, names in layers.items()]
    seen = [json.dumps({name: getattr(one, name) for name in BenchMachine.__slots__}) for one in machines]
    lists = ",\n".join(seen), ",\n".join(named), ",\n".join(rows)
    return '{"%s":%d,\n"machines":[\n%s],\n"layers":{\n%s},\n"points":[\n%s]}\n' % (KEY, VERSION, *lists)  # noqa: UP031


def _in_order(times: Mapping[str, int], names: list[str]) -> list[float | None]:
    return [round(times[name] / 1000, 1) if name in times else None for name in names] if times else []


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
        "features": {name: int(value) if value == int(value) else value for name, value in point.features.items()},
    }
