"""A run as the store returns it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

from perfctl.records.paper import LayerCall
from perfctl.records.report import (
    BATCHES_PER_STEP,
    SAMPLES_PER_STEP,
    WORKED_OUT,
    DerivedCount,
    Device,
    Report,
    Step,
    Summary,
)

Point = int | str | None
"""What runs of a sweep are read side by side by: a batch size; "N=256" of a sweep over other
parameters without one; None where no record says either."""
USE_BATCH_SIZE = "Put {batch} in its arguments, or set `batch_env` to the variable that it reads"


class Parameter(NamedTuple):
    """One parameter of a run in a sweep; the batch size is one of them."""

    name: str
    value: str
    """As it was given."""
    number: float | None
    """None if the value is not a number."""


def make_parameter(name: str, value: object) -> Parameter:
    """Return a parameter with its value as a number, if it is a finite one."""
    text = str(value)
    try:
        number = float(text)
    except ValueError:
        return Parameter(name, text, None)
    return Parameter(name, text, number if isfinite(number) else None)


class Expectation(NamedTuple):
    """What a formula of the user's gives for the kernels or ranges of a run."""

    pattern: str
    """Glob of kernel or range names."""
    flops: int | None
    """For one launch or range, like ``bytes``; None: no FLOPs were given."""
    bytes: int | None
    formula: str | None
    """As it was given."""
    source: str
    """option, file or registered."""


def format_sweep_point(point: Point, unknown_text: str = "as recorded") -> str:
    """Return "batch 16" or "N=256"; ``unknown_text`` for a report that does not say."""
    return unknown_text if point is None else f"batch {point}" if isinstance(point, int) else point


def format_sweep_points(points: Iterable[Point]) -> str:
    """Return "batch 16, 32" or "N=256, N=512"."""
    points = list(points)
    listed = ", ".join(map(str, points))
    return f"batch {listed}" if any(isinstance(point, int) for point in points) else listed


def get_batch_size_sort_key(point: Point) -> int:
    """Return what batch sizes are sorted by; other points keep their order."""
    return point if isinstance(point, int) else 0


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the store: its request, its outcome, and everything that was read."""

    JSON_KEYS = (
        "id",
        "sweep_id",
        "sweep_name",
        "sweep_command",
        "host",
        "profiler",
        "profiler_version",
        "workload",
        "batch_size",
        "mode",
        "precision",
        "status",
        "origin",
        "exit_code",
        "reason",
        "started_at",
        "duration_ns",
        "artifact",
        "artifact_sha256",
        "command",
    )

    id: int
    sweep_id: int
    sweep_name: str
    sweep_command: str | None
    host: str | None
    profiler: str
    profiler_version: str | None
    workload: str | None
    batch_size: int | None
    mode: str | None
    precision: str | None
    device: Device | None
    status: str
    """ok, failed or partial."""
    origin: str
    """measured (by this store's own sweep), ingested (a file made elsewhere), recorded
    (replayed), synthetic."""
    exit_code: int | None
    reason: str | None
    """Why the status is not ok; None when it is ok."""
    started_at: str | None
    duration_ns: int | None
    artifact: str | None
    artifact_sha256: str | None
    report: Report
    """All bulk fields are lists here; ``Report.path`` is the artifact."""
    layer_calls: tuple[LayerCall, ...] = ()
    """Calculated work of one step at this batch size; empty when the shapes are unknown."""
    command: tuple[str, ...] = ()
    """The argument list of the profiled process; empty when not known."""
    variant: str | None = None
    """The workload's own options that are not at their default; runs that differ here are
    never compared."""
    code_counts: tuple[DerivedCount, ...] = ()
    """Instructions of launches that perfctl 1.0.0 or an earlier release read from the machine code
    of their kernels."""
    repeats: tuple[tuple[Step, ...], ...] = ()
    """Steps of the other whole runs of the same request in the same sweep (``--repeat``),
    oldest first."""
    parameters: tuple[Parameter, ...] = ()
    """The batch size is among them, if it is known."""
    expectations: tuple[Expectation, ...] = ()

    @property
    def time_derivation(self) -> str | None:
        """How the times of kernels were derived; None if they were measured."""
        reasons = (gap.reason for gap in self.report.gaps if gap.quantity == "kernel.duration_ns")
        return next((text.partition("; ")[2] for text in reasons if WORKED_OUT in text), None)

    @property
    def other_parameters_text(self) -> str:
        """The parameters other than the batch size: "N=256, precision=tf32"."""
        other_parameters = (
            f"{name}={value}" for name, value, _ in self.parameters if name != "batch"
        )
        return ", ".join(other_parameters)

    @property
    def point(self) -> Point:
        """Where it stands in its study."""
        return self.batch_size or self.other_parameters_text or None

    @property
    def samples_per_step(self) -> float | None:
        """The batch size, or the samples of all batches that make a step (gradient accumulation);
        None when unknown."""
        stated = self._find_summary(SAMPLES_PER_STEP)
        return self.batch_size if stated is None else stated.value

    @property
    def batches_per_step(self) -> float:
        """Mean number of batches that make a step; 1 without gradient accumulation."""
        stated = self._find_summary(BATCHES_PER_STEP)
        return 1.0 if stated is None or stated.value is None else stated.value

    def _find_summary(self, name: str) -> Summary | None:
        return next((summary for summary in self.report.summaries if summary.name == name), None)

    @property
    def devices(self) -> tuple[Device, ...]:
        """The device that the run used, where it is known, then every device that its
        report names."""
        return ((self.device,) if self.device else ()) + tuple(self.report.devices)

    @property
    def device_kind(self) -> str | None:
        """gpu or cpu; None when no record says."""
        if self.report.kernels:
            return "gpu"
        if self.device is not None:
            return self.device.kind
        kinds = [device.kind for device in self.report.devices]
        return "gpu" if "gpu" in kinds else next(iter(kinds), None)


@dataclass(frozen=True, slots=True)
class UnusedBatchSizes:
    """Requested batch sizes that a program did not use, or may not have used."""

    requested: tuple[int, ...]
    samples: int
    """Samples that its model received instead."""
    is_proven: bool = True
    """False where several batches in a step would explain the samples, too."""

    def __str__(self) -> str:
        """Return what happened; the caller names the program."""
        sizes = f"{'s' * (len(self.requested) > 1)} {', '.join(map(str, self.requested))}"
        verb = "did not use" if self.is_proven else "may not have used"
        return f"{verb} the batch size{sizes}: its model received {self.samples} samples"


def find_ignored_batch_sizes(
    requested_sizes_and_input_shapes: Iterable[tuple[int | None, str | None]],
) -> UnusedBatchSizes | None:
    """Return the batch sizes that a program did not use; None if it used all, as far as is known.

    ``requested_sizes_and_input_shapes``: (requested batch size, INPUT_SHAPE) of each run; no shape:
    the input begins with the batch size. The same shape at two batch sizes proves it, and so does
    one whose first dimension is neither a multiple nor a part of the batch size. A single shape
    whose first dimension is a multiple or a part leaves it open.
    """
    used: set[int] = set()
    requested: dict[tuple[int, ...], set[int]] = defaultdict(set)
    for batch, text in requested_sizes_and_input_shapes:
        if batch is not None and text is None:
            used.add(batch)
        elif batch is not None and text is not None:
            requested[tuple(map(int, text.split("x")))].add(batch)
    for shape, batches in requested.items():
        samples = shape[0]
        odd = {batch for batch in batches if batch not in shape[:2]}
        is_apart = any(samples % batch and batch % samples for batch in odd)
        if len(batches) > 1 or is_apart or (odd and samples in used):
            return UnusedBatchSizes(tuple(sorted(batches)), samples)
        if odd and len(requested) == 1 and not used:
            return UnusedBatchSizes(tuple(batches), samples, is_proven=False)
    return None
