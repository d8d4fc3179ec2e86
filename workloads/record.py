"""The JSON record of a workload: what ran where, the times of its steps, the operations of its layers."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from perfctl.parsers.layer_times import LayerTime
from perfctl.parsers.paper import OpShape
from perfctl.parsers.records import Device, Gap, MemoryFigure, Step, Summary

FORMAT = 1


@dataclass(slots=True)
class Record:
    """Filled in while the workload runs. Rows have the field names of ``perfctl.parsers.records``."""

    workload: str
    batch_size: int | None
    """None, like the next three, when unknown for a user's script; a gap says why."""
    mode: str | None
    precision: str | None
    seed: int | None
    status: str = "failed"
    """ok, partial (some measured steps ended before a failure) or failed."""
    reason: str | None = "the process was killed or crashed before its steps ended"
    """Why it is not ok. The initial value remains when the process could not write a better one."""
    variant: str | None = None
    """The workload's own options not at their default ("conv2=32,128,5,1"); None when all are."""
    options: dict[str, Any] = field(default_factory=dict)
    """All options of the workload by name, including defaults."""
    environment: dict[str, str] = field(default_factory=dict)
    device: Device | None = None
    started_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))
    """UTC, ISO 8601."""
    duration_ns: int | None = None
    """From the start of the first measured step to the end of the last; None when they did not end."""
    clock: str | None = None
    """device_events or monotonic; None without timed steps."""
    steps: list[Step] = field(default_factory=list)
    memory: list[MemoryFigure] = field(default_factory=list)
    summaries: list[Summary] = field(default_factory=list)
    """Figures of the whole run: top1, top5, loss, images_per_second, ..."""
    ops: list[OpShape] = field(default_factory=list)
    layer_times: list[LayerTime] = field(default_factory=list)
    """From extra steps after the measured ones; empty unless requested."""
    parameters: dict[str, int] = field(default_factory=dict)
    """Elements of each layer's own parameters; a shared parameter counts once."""
    gaps: list[Gap] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """The record in JSON types."""
        whole: dict[str, Any] = {"perfctl_workload_record": FORMAT}
        for item in dataclasses.fields(self):
            whole[item.name] = _json_value(getattr(self, item.name))
        return whole

    def write(self, path: Path) -> None:
        """Write the record to ``path`` atomically; creates its folder. Raises OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            part.write_text(json.dumps(self.as_json(), indent=1, allow_nan=False) + "\n")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


def _json_value(value: Any) -> Any:
    """``value`` in JSON types: records as objects, paths as text, non-finite numbers as None."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {key: _json_value(item) for key, item in value._asdict().items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: _json_value(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_value(item) for item in value]
    if isinstance(value, float) and value - value != 0:
        return None
    return str(value) if isinstance(value, Path) else value
