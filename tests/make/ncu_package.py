"""Stands in for NVIDIA's package ``ncu_report``: gives the results that a record states.

Tests copy this file, as ``ncu_report.py``, to where the process that reads a report finds it, with
the records in ``results.json`` beside it; a number there is the code with which the process ends.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class Metric:
    """A metric with one value, and with values by instance."""

    def __init__(self, name: str, unit: str, value: Any, instances: dict[Any, Any]) -> None:
        self._name, self._unit, self._value, self._instances = name, unit, value, instances

    def name(self) -> str:
        return self._name

    def unit(self) -> str:
        return self._unit

    def has_value(self) -> bool:
        return self._value is not None

    def value(self, at: int | None = None) -> Any:
        return self._value if at is None else list(self._instances.values())[at]

    def num_instances(self) -> int:
        return len(self._instances)

    def has_correlation_ids(self) -> bool:
        return bool(self._instances)

    def correlation_ids(self) -> Metric:
        return Metric("", "", None, dict(enumerate(self._instances)))


class Section:
    """A section with metrics in its header and in a chart."""

    def __init__(self, name: str, order: int, header: list[str], body: list[str]) -> None:
        self._name, self._order, self._metrics = name, order, (header, body)

    def name(self) -> str:
        return self._name

    def order(self) -> int:
        return self._order

    def header_metrics(self) -> list[Metric]:
        return [Metric(name, "", None, {}) for name in self._metrics[0]]

    def body_metrics(self) -> list[Metric]:
        return [Metric(name, "", None, {}) for name in self._metrics[1]]


class Line:
    """Where an instruction comes from; also the only domain of NVTX ranges."""

    def __init__(self, ranges: list[str]) -> None:
        self._ranges = ranges

    def file_name(self) -> str:
        return "/src/a.cu"

    def line(self) -> int:
        return 12

    def domains(self) -> tuple[int, ...]:
        return (0,)

    def domain_by_id(self, number: int) -> Line:
        return self

    def push_pop_ranges(self) -> list[str]:
        return self._ranges


class Action:
    """One result: ``names`` (demangled, short), ``metrics`` (name -> unit, value and values by
    instance), ``ranges``, ``workload``, ``sections``, ``sass``, and ``lines`` (addresses whose line
    is known)."""

    NameBase_DEMANGLED, NameBase_FUNCTION, WorkloadType_KERNEL = 0, 1, 0

    def __init__(self, record: dict[str, Any]) -> None:
        self._record = record

    def name(self, base: int) -> str | None:
        names: list[str | None] = self._record.get("names", ["k", None])
        return names[base]

    def workload_type(self) -> int:
        return int(self._record.get("workload", 0))

    def nvtx_state(self) -> Line | None:
        return Line(self._record["ranges"]) if "ranges" in self._record else None

    def metric_names(self) -> tuple[str, ...]:
        return tuple(self._record["metrics"])

    def metric_by_name(self, name: str) -> Metric:
        assert name.isascii(), "the package refuses a name with a lone surrogate"
        unit, value, *instances = self._record["metrics"][name]
        return Metric(name, unit, value, instances[0] if instances else {})

    def sections(self) -> list[Section]:
        return [Section(*section) for section in self._record.get("sections", ())]

    def source_info(self, at: int) -> Line | None:
        return Line([]) if at in self._record.get("lines", ()) else None

    def sass_by_pc(self, at: int) -> str:
        return str(self._record["sass"])


class Results:
    """A report or one of its ranges; parts that the package refuses are None."""

    def __init__(self, parts: list[Any]) -> None:
        self._parts = parts

    def num_ranges(self) -> int:
        return len(self._parts)

    def range_by_idx(self, index: int) -> Results | None:
        return None if self._parts[index] is None else Results(self._parts[index])

    def num_actions(self) -> int:
        return len(self._parts)

    def action_by_idx(self, index: int) -> Action | None:
        return None if self._parts[index] is None else Action(self._parts[index])


def load_report(path: str) -> Results | None:
    """Return the report of ``results.json``."""
    records = json.loads(Path(__file__).with_name("results.json").read_text())
    print("noise of the package on stdout")
    if isinstance(records, int):
        os._exit(records) if records else os.abort()
    return Results([records])
