"""The JSON record of a workload: what ran where, the times of its steps, the operations of
its layers."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from perfctl.records.paper import OpShape
from perfctl.records.report import Device, Gap, LayerTime, MemoryFigure, Step, Summary
from perfctl.workloads.run.options import replace_fields_by_flags
from perfctl.workloads.spec import (
    UNFINISHED,
    WorkloadError,
    WorkloadOptions,
    get_first_error_line,
    write_file_atomically,
)


@dataclass(slots=True)
class WorkloadRecord:
    """Filled in while the workload runs. Rows have the field names of
    ``perfctl.records.report``."""

    workload: str
    batch_size: int | None
    """None, like the next three, when unknown for a user's script; a gap says why."""
    mode: str | None
    precision: str | None
    seed: int | None
    status: str = "failed"
    """ok, partial (some measured steps ended before a failure) or failed."""
    reason: str | None = UNFINISHED
    """Why it is not ok. The initial value remains when the process could not write a better one."""
    variant: str | None = None
    """The workload's own options not at their default ("conv2=32,128,5,1"); None when all are."""
    options: dict[str, Any] = field(default_factory=dict)
    """All options of the workload by name, including defaults."""
    environment: dict[str, str] = field(default_factory=dict)
    device: Device | None = None
    started_at: str = field(
        default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    )
    duration_ns: int | None = None
    """From the start of the first measured step to the end of the last; None when they did
    not end."""
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

    def write(self, path: Path | None) -> None:
        """Write the record as JSON to ``path``, if any; creates its folder. Raises
        WorkloadError."""
        if path is not None:
            record = {"perfctl_workload_record": 1, **_convert_to_json(self)}
            text = json.dumps(record, indent=1, allow_nan=False)
            with write_file_atomically(path, "record") as part:
                part.write_text(text + "\n")

    def set_status(self, failure_reason: str | None) -> None:
        """Set the status; ``failure_reason``: why it is not ok."""
        if failure_reason is None:
            self.status = "ok"
        else:
            is_partial = any(row.phase == "step" for row in self.steps)
            self.status = "partial" if is_partial else "failed"
        self.reason = failure_reason


def _convert_to_json(value: Any) -> Any:
    """``value`` in JSON types: records as objects, paths as text, non-finite numbers as None."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {key: _convert_to_json(item) for key, item in value._asdict().items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            item.name: _convert_to_json(getattr(value, item.name))
            for item in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {str(key): _convert_to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_convert_to_json(item) for item in value]
    if isinstance(value, float) and value - value != 0:
        return None
    return str(value) if isinstance(value, Path) else value


@contextmanager
def write_record_around(record: WorkloadRecord, options: WorkloadOptions) -> Iterator[None]:
    """Write the record at the start, so that a killed process leaves one too, and at the end of
    the block.

    Exceptions pass through. Raises WorkloadError when the record cannot be written.
    """
    record.write(options.record)
    reason = None
    try:
        yield
    except BaseException as error:
        reason = explain_failure(error, options)
        raise
    finally:
        record.set_status(reason)
        record.write(options.record)


def explain_failure(error: BaseException, options: WorkloadOptions) -> str:
    """Return the failure in one line, with advice when memory ran out; fields as options of
    this process."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, WorkloadError):
        return replace_fields_by_flags(str(error))
    text = get_first_error_line(error)
    signs = (
        "out of memory",
        "can't allocate memory",
        "cublas_status_alloc_failed",
        "cudnn_status_alloc_failed",
    )
    lacks_memory = isinstance(error, RuntimeError) and any(
        sign in str(error).lower() for sign in signs
    )
    if lacks_memory or isinstance(error, MemoryError):
        return f"out of memory at batch size {options.batch_size}: {text} Try a smaller --batch."
    return f"{type(error).__name__}: {text}"
