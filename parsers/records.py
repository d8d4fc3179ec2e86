"""What every report file becomes: small frozen records, one kind a thing that was measured.

These records are the one language that parsers, store, analysis and pages share. Units are
nanoseconds, bytes, hertz, watts and counts; one multiply-add is 2 FLOPs. ``None`` means "the report
does not say"; ``0`` means counted, and zero. Why something is ``None`` is a :class:`Gap`.

The bulk records (:class:`Kernel`, :class:`Counter`, :class:`Copy`, :class:`Range`, :class:`Operation`,
:class:`Sample`) are named tuples whose fields stand in the order of the store's columns, so that
millions of them go into SQLite without being touched again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

DIRECTIONS = ("forward", "grad_input", "grad_weight", "grad_bias", "backward", "optimizer", "recompute")
"""The directions a layer works in. ``backward`` is grad_input and grad_weight together; ``recompute`` is forward
work done again during backward (activation checkpointing, the scores of flash attention)."""

GAP_STATES = ("not_collected", "not_available", "unreadable", "ambiguous")


class Kernel(NamedTuple):
    """One launch of one kernel."""

    launch: int
    """Order in the report, from 0."""
    name: str
    """Demangled, whole, as the report prints it."""
    short_name: str | None = None
    """Without template arguments and parameters; None when the report has no such form."""
    layer: str | None = None
    """Dotted module path; None when no range says so."""
    direction: str | None = None
    """One of DIRECTIONS; None when not attributed."""
    step: int | None = None
    """Number of the measured step it belongs to; None when not known."""
    layer_source: str | None = None
    """How the layer was found: 'range', 'operation' or 'guessed'; None when it was not."""
    range_number: int | None = None
    """``Range.number`` of the innermost range that enclosed the launch call; None when there is none."""
    device_index: int | None = None
    """CUDA ordinal."""
    stream: int | None = None
    grid_x: int | None = None
    grid_y: int | None = None
    grid_z: int | None = None
    block_x: int | None = None
    block_y: int | None = None
    block_z: int | None = None
    registers: int | None = None
    """Per thread."""
    static_shared_bytes: int | None = None
    """Per block."""
    dynamic_shared_bytes: int | None = None
    """Per block."""
    start_ns: int | None = None
    """On the report's own clock."""
    duration_ns: int | float | None = None
    """Under ncu this is time at locked clocks with cold caches: use nsys or torch for time."""


R = TypeVar("R", bound=NamedTuple)


@dataclass(frozen=True, slots=True)
class Columns(Generic[R]):
    """Many records that are made column by column: any reader may iterate, a store may take the columns instead."""

    record: type[R]
    chunks: Callable[[], Iterator[Sequence[Sequence[Any]]]]
    """Some rows at a time, as one sequence a field of ``record``; raises ReportError where the report is damaged."""

    def __iter__(self) -> Iterator[R]:
        make: Callable[[tuple[Any, ...]], R] = partial(tuple.__new__, self.record)
        return chain.from_iterable(map(make, zip(*columns, strict=True)) for columns in self.chunks())


@dataclass(frozen=True, slots=True)
class SqlKernels:
    """Kernels that lie in a table of an SQLite report: any reader may iterate, a store may copy them by SQL instead."""

    path: Path
    """The report. A store attaches it, read-only, as the schema ``report``."""
    select: str
    """One SELECT: launch, a number for the name, a number for the short name, a number for the layer (from 0), step,
    then Kernel's fields from range_number on."""
    parameters: Mapping[str, bytes]
    """What is to be bound to the named parameters in ``select``."""
    layers: Mapping[int, tuple[str | None, str | None, str | None]]
    """Number -> layer, direction and layer_source."""
    texts: Callable[[Iterable[object]], Mapping[object, str | None]]
    """Number of a name -> the text behind it; raises ReportError where the report turns out to be damaged."""
    records: Columns[Kernel]
    """The same as records."""

    def __iter__(self) -> Iterator[Kernel]:
        return iter(self.records)


class Counter(NamedTuple):
    """One metric of one launch."""

    launch: int
    """``Kernel.launch`` in the same report."""
    name: str
    value: int | float | None
    """In the base unit. None when the tool printed "n/a" or a text."""
    unit: str | None
    """Base unit: ns, byte, Hz, byte/s, %, inst, ...; None for a plain ratio or count."""
    section: str | None = None
    """Section or body item that printed it, which tells repeated metrics apart; None if not said."""
    text: str | None = None
    """A value that is no number, as printed; None otherwise."""


class Copy(NamedTuple):
    """One memcpy or memset."""

    kind: str
    """HtoD, DtoH, DtoD, HtoH, PtoP, memset, or the tool's own word for rarer ones."""
    bytes: int | None
    start_ns: int | None
    duration_ns: int | None
    layer: str | None = None
    device_index: int | None = None
    stream: int | None = None


class Range(NamedTuple):
    """One NVTX range, record_function span or step annotation."""

    number: int
    """Order in the report, from 0; what ``Kernel.range_number`` and ``parent`` refer to."""
    name: str
    domain: str | None
    """NVTX domain; None for the default domain."""
    start_ns: int
    """May be negative: some reports start ranges before their own time 0."""
    duration_ns: int | None
    """None when the range never ended."""
    thread: int | None
    """Thread id of the operating system where known."""
    depth: int | None
    """How many ranges of the same thread enclose it; None for start/end ranges."""
    parent: int | None
    """``number`` of the range that directly encloses it on its thread; None at the top."""
    kind: str = "push_pop"
    """push_pop, start_end, or mark."""
    layer: str | None = None
    """From perfctl's own range names ("conv2:backward"); None for other people's ranges."""
    direction: str | None = None
    step: int | None = None
    phase: str | None = None
    """forward, backward, optimizer, inference or data, from the enclosing perfctl phase range."""


class Operation(NamedTuple):
    """One framework operation, summed over the run for one layer and direction."""

    name: str
    category: str | None
    """The report's category: cpu_op, user_annotation, op type of DLProf, ..."""
    calls: int
    cpu_ns: int | None
    """Time on the host, children included."""
    self_cpu_ns: int | None
    """Time on the host, children excluded."""
    device_ns: int | None
    """Time of the kernels it launched; None on a CPU-only trace."""
    memory_bytes: int | None
    """Net bytes allocated inside it; None when memory was not profiled."""
    flops: int | None
    """As the report states them; None when it does not."""
    layer: str | None = None
    direction: str | None = None


class Sample(NamedTuple):
    """One reading of a device."""

    at_ns: int
    gpu_utilisation: float | None
    """0..1"""
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    power_w: float | None
    temperature_c: float | None
    sm_clock_hz: int | None
    device_index: int | None = None


class MemoryFigure(NamedTuple):
    """One memory figure at one moment of a run."""

    moment: str
    """before, after, peak."""
    quantity: str
    """allocated, reserved, host_available, host_resident, device_free, device_total."""
    bytes: int


class Step(NamedTuple):
    """One measured iteration, or one phase of it."""

    number: int
    phase: str
    """step (the whole iteration), forward, backward, optimizer, inference, data, epoch, test."""
    start_ns: int | None
    duration_ns: int | None
    loss: float | None = None
    accuracy: float | None = None
    """0..1"""


class Summary(NamedTuple):
    """A figure that a report gives ready-made."""

    name: str
    value: float | None
    unit: str | None
    text: str | None = None
    """The value as printed when it is no number."""


class Gap(NamedTuple):
    """Why a figure is NULL."""

    quantity: str
    """What is missing: a table, column or metric name ("kernel", "counter:flop_count_sp.sum", ...)."""
    state: str
    """One of GAP_STATES."""
    reason: str
    scope: str | None = None
    """Which layer or kernel it concerns; None for the whole run."""


class Diagnostic(NamedTuple):
    """Something the tool itself said about the capture."""

    severity: str
    """info, warning or error."""
    source: str
    text: str


class LayerCall(NamedTuple):
    """Pen and paper: one layer (or functional operation) in one direction, for one step."""

    layer: str
    kind: str
    direction: str
    macs: int | None
    """Multiply-adds. None when there is no formula; 0 when the operation has none."""
    flops: int | None
    """2 x macs, plus nothing: elementwise work is not in here."""
    parameters: int | None
    read_bytes: int | None
    write_bytes: int | None
    output_elements: int | None
    formula: str | None
    """The worked text, numbers put in."""
    elementwise_flops: int | None = None
    """Under its own heading: bias adds, activations, normalisation, pooling, softmax, reductions."""
    calls: int = 1
    """How often the layer ran in this direction in the step; the figures are for all of them."""
    position: int | None = None
    """Order of first call in the network, from 0."""


@dataclass(frozen=True, slots=True)
class OpShape:
    """What one operation saw when a step ran: all that a formula needs, and no numbers of time.

    Recorded inside the profiled process by ``perfctl.workloads.shapes``, carried in the workload's
    JSON record, turned into :class:`LayerCall` by ``perfctl.orchestrator.analyse.estimate``.
    """

    layer: str
    """Dotted module path; "" when no module was running."""
    kind: str
    """Class of that module (Conv2d, Linear, ...) or "" outside of modules."""
    op: str
    """Dispatcher name without overload: aten.convolution, aten.addmm, aten.convolution_backward, ..."""
    direction: str
    """forward, backward or optimizer: in which phase of the step the dispatcher saw it."""
    inputs: tuple[tuple[int, ...] | None, ...]
    """Shape of each positional argument that is a tensor, None in the place of one that is not."""
    outputs: tuple[tuple[int, ...] | None, ...]
    dtypes: tuple[str, ...] = ()
    """Of the tensors among the inputs, then of the outputs: float32, bfloat16, ..."""
    attributes: dict[str, object] = field(default_factory=dict)
    """What the formula needs beyond shapes, JSON types only: stride, padding, groups, output_mask, ..."""
    parameters: int = 0
    """Elements of the module's own parameters (not its children's), each counted once per model."""
    calls: int = 1
    """Identical calls in the step."""
    position: int = 0
    """Order of the first of them."""


def read_op_shape(row: dict[str, Any]) -> OpShape:
    """An OpShape from its JSON form (``dataclasses.asdict``), lists turned back into tuples.

    Raises KeyError or TypeError when the row is not one.
    """
    shapes = {
        key: tuple(None if shape is None else tuple(shape) for shape in row[key]) for key in ("inputs", "outputs")
    }
    return OpShape(**{**row, **shapes, "dtypes": tuple(row.get("dtypes", ()))})


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU or CPU as a run saw it."""

    name: str | None
    kind: str
    """gpu or cpu."""
    index: int = 0
    """CUDA ordinal."""
    compute_capability: str | None = None
    """"7.0", "9.0", ..."""
    sm_count: int | None = None
    memory_bytes: int | None = None
    memory_bandwidth_bps: int | None = None
    """Bytes per second, as the report states it."""
    clock_hz: int | None = None
    driver_version: str | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """One report file (or one DLProf folder), whole.

    The bulk fields are iterables and may be one-pass iterators over an open file: read each once,
    in any order but one at a time. What is wrong with the file as a whole is raised by ``parse``;
    what is wrong further in is raised while iterating, as the same ReportError.
    """

    tool: str
    """nsys, ncu, dlprof, torch, nvidia-smi, dcgm, nvprof, or workload for perfctl's own record."""
    path: Path
    form: str
    """The format that was recognised, in words: "ncu CSV, long, 15 columns"."""
    tool_version: str | None = None
    devices: tuple[Device, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    """Facts about software and settings. Never the process environment."""
    kernels: Iterable[Kernel] = ()
    counters: Iterable[Counter] = ()
    copies: Iterable[Copy] = ()
    ranges: Iterable[Range] = ()
    operations: Iterable[Operation] = ()
    samples: Iterable[Sample] = ()
    steps: tuple[Step, ...] = ()
    memory: tuple[MemoryFigure, ...] = ()
    summaries: tuple[Summary, ...] = ()
    ops: tuple[OpShape, ...] = ()
    gaps: tuple[Gap, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    workload: str | None = None
    """None when the file cannot say; likewise the next four."""
    batch_size: int | None = None
    mode: str | None = None
    """train or infer."""
    precision: str | None = None
    """fp32, tf32, bf16, fp16."""
    started_at: str | None = None
    """UTC, ISO 8601."""
    duration_ns: int | None = None
    """Length of the capture."""
    variant: str | None = None
    """The workload's own options that are not at their default; None when all are, or the file cannot say."""


RANGE_PREFIX = "perfctl:"
"""Ranges of the loop itself: perfctl:window, perfctl:step:3, perfctl:phase:forward. Layer ranges are "<layer>:<direction>"."""


class RangeName(NamedTuple):
    """What a range that perfctl itself put down says; all None for other people's ranges."""

    layer: str | None = None
    direction: str | None = None
    step: int | None = None
    phase: str | None = None


def read_range_name(name: str) -> RangeName:
    """ "conv2:backward" -> layer and direction; "perfctl:step:3" -> step; "perfctl:phase:forward" -> phase."""
    if name.startswith(RANGE_PREFIX):
        key, _, value = name[len(RANGE_PREFIX) :].partition(":")
        if key == "step" and value.isdecimal() and len(value) < 19:
            return RangeName(step=int(value))
        if key == "phase" and value:
            return RangeName(phase=value)
        return RangeName()
    layer, colon, direction = name.rpartition(":")
    if colon and layer and direction in DIRECTIONS and not layer.endswith(":"):  # "Conv2d::forward" is a C++ name
        return RangeName(layer=layer, direction=direction)
    return RangeName()


@dataclass(frozen=True, slots=True)
class Run:
    """One run as the store keeps it: what was asked, how it ended, and everything that was read."""

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
    """measured (by this store's own sweep), ingested (a file made elsewhere), recorded (replayed), synthetic."""
    exit_code: int | None
    reason: str | None
    """Why it is not ok; None when it is."""
    started_at: str | None
    duration_ns: int | None
    artifact: str | None
    artifact_sha256: str | None
    report: Report
    """All bulk fields are lists here; ``Report.path`` is the artifact."""
    layer_calls: tuple[LayerCall, ...] = ()
    """Pen and paper for one step at this batch size; empty when the shapes are not known."""
    families: tuple[str | None, ...] = ()
    """Algorithm family of each kernel, in the order of ``report.kernels``."""
    command: tuple[str, ...] = ()
    """The argument list of the profiled process; empty when not known."""
    variant: str | None = None
    """The workload's own options that are not at their default; runs that differ here are never compared."""


class Allocation(NamedTuple):
    """One tensor storage of a traced step, from its first to its last moment. Moments count operations."""

    bytes: int
    category: str
    """parameter, buffer, input, activation (kept for backward), gradient, optimizer, temporary."""
    born: int
    """0: it was there before the step."""
    died: int | None
    """None: it outlived the trace."""
    layer: str
    """Dotted module path of the operation that made it; "" outside of modules."""
    direction: str
    """forward, backward or optimizer; "" when it was there before."""
    op: str
    """Dispatcher name of the operation that made it; "" when it was there before."""


@dataclass(frozen=True, slots=True)
class MemoryTrace:
    """The storages of one step (after a first one that made the optimizer's state)."""

    allocations: tuple[Allocation, ...]
    forward_ends: int
    """Moment at which backward (or, without it, nothing more) began."""
    backward_ends: int
    ends: int
    whole: bool = True
    """False when the step was cut off by an error."""
