"""Records that every report file is read into, which parsers, store, analysis and pages share.

Units are nanoseconds, bytes, hertz, watts and counts; one multiply-add is 2 FLOPs. ``None`` means
"the report does not say", and a :class:`Gap` says why; ``0`` means counted, and zero. The fields of
named tuples stand in the order of the store's columns, so that millions of them go into
SQLite unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from perfctl.records.paper import OpShape
from perfctl.records.serving import GraphLaunch, ServedStep


class LayerTime(NamedTuple):
    """Time of one layer in one direction in a step; measured in separate steps after the
    measured ones."""

    layer: str
    """Dotted module path; "(model)" for work of the model itself between its layers."""
    kind: str
    """Class of the module."""
    direction: str
    """forward, backward (one node for both gradients), grad_input, grad_weight, recompute."""
    duration_ns: int
    """Median over the steps, without the layers inside it."""
    low_ns: int
    high_ns: int
    """Of the fastest and of the slowest step."""
    steps: int


class Feature(NamedTuple):
    """One figure of a step calculated from shapes, such as FLOPs: a predictor of its time."""

    name: str
    """ "macs", "macs:Conv2d", "bytes", "layers", "parameters", ..."""
    value: float
    unit: str | None
    """None for a plain count."""


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
    """How the layer was found: 'range', 'operation', 'capture' (of the graph that launched it),
    'origins' (source lines of a fused kernel) or 'guessed'; 'shared' where it belongs to several,
    its ``KernelPart``; None when it was not found."""
    range_number: int | None = None
    """``Range.number`` of the innermost range that enclosed the launch call; None when there
    is none."""
    device_index: int | None = None
    stream: int | None = None
    grid_x: int | None = None
    grid_y: int | None = None
    grid_z: int | None = None
    block_x: int | None = None
    block_y: int | None = None
    block_z: int | None = None
    registers: int | None = None
    """Per thread; shared memory is per block. On AMD GPUs VGPRs and AccVGPRs of a work-item, and
    LDS of a work-group."""
    static_shared_bytes: int | None = None
    dynamic_shared_bytes: int | None = None
    start_ns: int | None = None
    """On the report's own clock."""
    duration_ns: int | float | None = None
    """Under ncu this is time at locked clocks with cold caches: use nsys or torch for time."""
    process: int | None = None
    """Id of the process that launched it."""
    context: int | None = None
    """CUDA context."""
    graph_id: int | None = None
    """CUDA graph that launched it, and its node there; None where no graph did, or the report does
    not say."""
    graph_node_id: int | None = None
    correlation: int | None = None
    """The report's number that joins the launch to its call."""
    cluster_x: int | None = None
    """Blocks of a thread block cluster; None when launched without clusters, or not known. Likewise
    y and z."""
    cluster_y: int | None = None
    cluster_z: int | None = None
    occupancy: float | None = None
    """0..1; share of a multiprocessor's warp slots in use, as the report states it (measured
    or estimated)."""
    source: str | None = None
    """Where its executed instructions come from: "counted" or "derived"; None when neither."""


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
    """Section or body item that printed it, which distinguishes repeated metrics; None if
    not printed."""
    text: str | None = None
    """A value that is not a number, as printed; None otherwise."""


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
    source_memory: str | None = None
    """pageable, pinned, device or managed; None where the report does not say, and for a memset.
    Likewise the other."""
    destination_memory: str | None = None
    peer_device: int | None = None
    """CUDA ordinal of the other GPU; None when the copy is not between two GPUs, or the report does
    not say."""


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
    """forward, backward, optimizer, inference, data or copy, from the enclosing perfctl
    phase range."""
    gpu_ns: int | None = None
    """Time of the kernels, copies and memsets that were launched inside it, added up;
    ``duration_ns`` is time on the host. 0 when it launched none, None when the report does
    not say."""
    gpu_span_ns: int | None = None
    """From the start of the first of these to the end of the last, as nsys projects a range onto
    the GPU; None when there are none."""


class Operation(NamedTuple):
    """One framework operation, summed over the run for one layer and direction."""

    name: str
    category: str | None
    """The report's category: cpu_op, user_annotation, op type of DLProf, ..."""
    calls: int
    cpu_ns: int | None
    """Time on the host, children included; ``self_cpu_ns`` is without them."""
    self_cpu_ns: int | None
    device_ns: int | None
    """Time of the kernels it launched; None on a CPU-only trace."""
    memory_bytes: int | None
    """Net bytes allocated inside it; None when memory was not profiled."""
    flops: int | None
    """As the report states them; None when it does not."""
    layer: str | None = None
    direction: str | None = None


class ApiCall(NamedTuple):
    """All calls of one function of a runtime, driver or operating system, summed over the run."""

    domain: str
    """cuda, hip, osrt, nvtx, mpi, nccl, cudnn, cublas; python for Python functions, sync for
    waiting on the GPU, by kind."""
    name: str
    calls: int | None
    total_ns: int | None
    """On the host, all calls together; ``min_ns`` and ``max_ns`` are of the shortest and the
    longest one."""
    min_ns: int | None = None
    max_ns: int | None = None


class Thread(NamedTuple):
    """One thread of the host that made calls or ranges."""

    process: int
    thread: int
    """Ids of the operating system."""
    name: str


WAITS = (
    "cudaDeviceSynchronize",
    "cudaStreamSynchronize",
    "cudaEventSynchronize",
    "hipDeviceSynchronize",
    "hipStreamSynchronize",
    "hipEventSynchronize",
    "cuCtxSynchronize",
    "cuStreamSynchronize",
    "cuEventSynchronize",
)
"""Calls of runtime and driver that return when the GPU has done its work: operators without shapes
in ``Report.op_calls``."""
ALLOCATIONS = (
    *("cudaMalloc", "cudaMallocAsync", "cudaMallocManaged", "cudaMallocPitch", "cudaMallocHost"),
    *("cudaHostAlloc", "cudaHostRegister", "cudaHostUnregister"),
    *("cudaFree", "cudaFreeAsync", "cudaFreeHost"),
    *("cuMemAlloc", "cuMemAllocManaged", "cuMemAllocHost", "cuMemHostAlloc", "cuMemHostRegister"),
    *("cuMemFree", "cuMemFreeHost"),
    *("hipMalloc", "hipMallocAsync", "hipMallocManaged", "hipHostMalloc", "hipHostRegister"),
    *("hipFree", "hipFreeAsync", "hipHostFree"),
)
"""Calls that allocate, pin or free memory, without the version of the driver's; also in
``Report.op_calls``."""


class OpCall(NamedTuple):
    """One framework operator that ran once, or one of WAITS or ALLOCATIONS. There may be millions
    of them."""

    name: str
    start_ns: int | None
    """On the report's own clock."""
    duration_ns: int | None
    """On the host, operators inside it included."""
    device_ns: int | None = None
    """Time of the kernels launched inside it; None when not known."""
    shapes: str | None = None
    """Shapes of its inputs as JSON; None when not recorded. Likewise ``dtypes``."""
    dtypes: str | None = None
    layer: str | None = None
    direction: str | None = None
    step: int | None = None
    thread: int | None = None
    stack: str | None = None
    """Call stack, one frame a line; None when not recorded. The store keeps each text once
    (``op_call.stack_id``)."""


class Collective(NamedTuple):
    """One collective of one rank, such as an all-reduce."""

    name: str
    """all_reduce, all_gather, ..., or the report's own word."""
    group: str | None = None
    """Process group; None when not stated."""
    group_size: int | None = None
    """Ranks in the group."""
    bytes: int | None = None
    """Size of this rank's input."""
    dtype: str | None = None
    start_ns: int | None = None
    duration_ns: int | None = None
    """On the device; waiting for other ranks is included."""
    exposed_ns: int | None = None
    """Part of the duration in which this rank's GPU ran no other kernel; None when not known, 0
    when fully hidden."""


class CompiledKernel(NamedTuple):
    """All calls of one kernel that a compiler (Inductor) wrote. One name may be several kernels
    with other hashes."""

    name: str
    file: str | None
    """Source that the compiler wrote, on the machine of the run."""
    hash: str | None
    backend: str | None
    """triton, ..."""
    origins: str | None
    """Operators that were fused, as its name has them: add_mul of triton_poi_fused_add_mul_0; None
    when it names none."""
    calls: int
    device_ns: int | None
    """Of its launches; None when not known."""
    elements: int | None = None
    """Of one call, like all that follows: what its loops run over, the elements of a reduction
    included; of a template (triton_tem) the elements of its output."""
    reduced: int | None = None
    """Elements that are reduced into one result; None where nothing is, or the call does
    not say."""
    argument_bytes: int | None = None
    """Of all tensors that it is given, once each."""
    flops: int | None = None
    """Of the product in a template, by the shapes of its tensors; None for other kernels, and where
    shapes do not say."""
    stated_flops: int | None = None
    """As Inductor states them (kernel_flop): of products and convolutions only, so 0 for a
    kernel without."""
    stated_bytes: int | None = None
    """Read and written, as Inductor states it (kernel_num_gb)."""
    elementwise: int | None = None
    """Operations beside products, an estimate that is in no total: each operator that its name
    lists, once on each element."""


class KernelPart(NamedTuple):
    """What a fused kernel did for one of the layers that it was fused from."""

    launch: int
    """``Kernel.launch`` in the same report."""
    layer: str | None
    """None for what the model itself computes outside of its layers."""
    direction: str | None
    origins: int
    """Operations of the program that were fused into the kernel for this layer."""
    share: float
    """0..1: of the kernel's time and counts, by the operations: one an element, and all FLOPs of a
    product; an estimate. The shares of a launch add up to 1."""


class Advice(NamedTuple):
    """What one rule of a profiler said of a launch or of the whole report."""

    launch: int | None
    """``Kernel.launch`` in the same report; None when it concerns the whole report."""
    rule: str
    kind: str | None = None
    """The profiler's kind of result: OPT, INF, WRN, ..."""
    text: str | None = None
    """In the profiler's words."""
    estimated_speedup: float | None = None
    """0..1; share of the time that following it saves, as the profiler estimates."""
    speedup_scope: str | None = None
    """What it is a share of: "global" (the launch) or "local" (the work of one unit); None when
    not stated."""


class SourceCounter(NamedTuple):
    """What one machine instruction of a launch did."""

    launch: int
    """``Kernel.launch`` in the same report."""
    address: int
    """Bytes from the first instruction of the kernel."""
    opcode: str | None = None
    """With its modifiers, such as ISETP.GE.AND; never the operands."""
    file: str | None = None
    """Source file that it was compiled from; None without line information. Likewise ``line``."""
    line: int | None = None
    inst_executed: int | None = None
    """Times that a warp executed it; ``thread_inst_executed``: that a thread did."""
    thread_inst_executed: int | None = None
    samples: int | None = None
    """Samples of warps that were at it."""
    stall: str | None = None
    """The reason why most of those that stalled did; None where none did, or the report does
    not say."""


class SourceLine(NamedTuple):
    """What a source line did in all launches of one kernel; a machine instruction where the line is
    not known."""

    kernel: str
    short_name: str | None
    file: str | None
    line: int | None
    address: int
    """Bytes from the kernel's first instruction to the line's first one."""
    instructions: int
    """Machine instructions of it."""
    inst_executed: int | None
    """By warps; ``thread_inst_executed``: by threads. Likewise ``samples``: None when
    not collected."""
    thread_inst_executed: int | None
    samples: int | None
    opcode: str | None
    """Of the instruction with the most samples; likewise ``stall``."""
    stall: str | None


CODE = "read from code"
"""Begins the rule of a derived count that perfctl 1.0.0 or an earlier release read from a kernel's
machine code. Later releases write none."""


class DerivedCount(NamedTuple):
    """Executed instructions of one kind in one launch, calculated by a rule because no counter
    measured them."""

    launch: int
    """``Kernel.launch`` in the same run."""
    instruction: str
    """FADD, FMUL, FFMA, HMMA, ..."""
    value: int | float | None
    """FADD, FMUL and FFMA of all threads, tensor instructions of all warps; None when the rule
    gives no number."""
    rule: str
    """The arithmetic with the numbers put in."""
    verified_error: float | None = None
    """Relative error that 95% of counted launches stayed within, 0.01 for 1%; None when
    never compared."""


class Sample(NamedTuple):
    """One reading of a GPU, or of the run's processes on the host, which has only the
    ``host_`` fields."""

    at_ns: int
    """On the clock of the run's steps where perfctl sampled during the run; else since
    the epoch."""
    gpu_utilisation: float | None
    """0..1"""
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    power_w: float | None
    temperature_c: float | None
    sm_clock_hz: int | None
    device_index: int | None = None
    """Ordinal; None where the file does not say, and for the host."""
    memory_clock_hz: int | None = None
    energy_j: float | None = None
    """Consumed since the driver was loaded: the difference of two readings is the energy of the
    time between."""
    throttle_reasons: str | None = None
    """Why clocks are reduced, names joined by "+"; "none" where they are not."""
    process_memory_bytes: int | None = None
    """On the device, of the run's own processes; likewise ``process_utilisation``, 0..1."""
    process_utilisation: float | None = None
    host_cpu: float | None = None
    """Cores kept busy by the run's processes since the reading before."""
    host_memory_bytes: int | None = None
    """Resident, of the run's processes; pages that several share count once for each."""
    allocated_bytes: int | None = None
    """In tensors, by PyTorch's allocator of the device, at the end of an allocation or a free."""
    reserved_bytes: int | None = None
    """Taken from the device by that allocator."""


class CounterSample(NamedTuple):
    """One reading of a hardware counter of a whole device; it belongs to no kernel."""

    device_index: int | None
    name: str
    """Of the metric: "dram__bytes_read.sum"."""
    at_ns: int
    """Begin of the time that it counts, which the next one ends."""
    value: float | None
    """The amount or mean between these two; None if the report has no number."""
    unit: str | None
    """byte, byte/s or %; None for a plain count or ratio."""


class MemoryFigure(NamedTuple):
    """One memory figure at one moment of a run."""

    moment: str
    """start (before the model is built), before (the model is on its device, no step has run), peak
    (of the measured steps), after (all steps, epochs and tests)."""
    quantity: str
    """allocated, reserved, host_available, host_resident, device_free, device_total."""
    bytes: int


class Step(NamedTuple):
    """One measured iteration, or one phase of it."""

    number: int
    phase: str
    """step (the whole iteration), forward, backward, optimizer, inference, data, copy, rest (of an
    epoch), epoch, test."""
    start_ns: int | None
    duration_ns: int | None
    loss: float | None = None
    accuracy: float | None = None
    """0..1"""


class Summary(NamedTuple):
    """A figure that a report states itself."""

    name: str
    value: float | None
    unit: str | None
    text: str | None = None
    """The value as printed when it is not a number."""


CPU_WAIT, CPU_OTHERS = "cpu_wait", "cpu_others"
"""Summaries, 0..1, of the measured steps: the share of the time that the program's threads wanted
to run in which they waited for a core, and the share of the machine's cores that other processes
kept busy; absent where the system does not count them."""
SAMPLES_PER_STEP = "samples_per_step"
"""Summary with the mean number of samples of a measured step; absent where a step has one batch."""
INPUT_SHAPE = "input_shape"
"""Fact of the environment: the shape of the model's first input, 64x3x32x32, if it does not begin
with the requested batch size."""
COVERS, WHOLE_CAPTURE = "ledger_covers", "whole capture"
"""Fact of the environment: the operators and kernels of a report are not those of a step but of all
that was recorded."""
BATCHES_PER_STEP = "batches_per_step"
"""Summary with the mean number of batches of a measured step: forward and backward passes, or calls
in inference."""


WORKED_OUT = "worked out from cycles and clock rate"
"""In the reason of the gap of kernel.duration_ns: the times are there, and not the tool's own."""


class Gap(NamedTuple):
    """Why a figure is NULL."""

    quantity: str
    """What is missing: a table, column or metric name ("kernel",
    "counter:flop_count_sp.sum", ...)."""
    state: str
    """not_collected, not_available, unreadable or ambiguous."""
    reason: str
    scope: str | None = None
    """Which layer or kernel it concerns; None for the whole run."""


class Diagnostic(NamedTuple):
    """A message of the tool about the capture."""

    severity: str
    """info, warning or error."""
    source: str
    text: str


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU or CPU as a run saw it."""

    name: str | None
    kind: str
    """gpu or cpu."""
    index: int = 0
    """CUDA ordinal."""
    compute_capability: str | None = None
    """ "8.6"; of an AMD GPU the name of its instruction set: "gfx942"."""
    sm_count: int | None = None
    """Streaming multiprocessors; of an AMD GPU its compute units."""
    memory_bytes: int | None = None
    memory_bandwidth_bps: int | None = None
    """Bytes per second."""
    clock_hz: int | None = None
    driver_version: str | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """One report file (or one DLProf folder), whole.

    The iterables may be one-pass iterators over an open file: read each once, in any order but one
    at a time. They raise ReportError for what is wrong further in; ``parse`` raises it for the file
    as a whole.
    """

    JSON_KEYS = (
        "form",
        "devices",
        "environment",
        "steps",
        "memory",
        "summaries",
        "gaps",
        "diagnostics",
        "advice",
        "kernels",
        "counters",
        "copies",
        "ranges",
        "operations",
        "samples",
    )

    tool: str
    """nsys, ncu, dlprof, torch, nvidia-smi, dcgm, nvprof, rocprofv3, proton, or workload for
    perfctl's own record."""
    path: Path
    form: str
    """The format that was recognised, in words: "ncu CSV, long, 15 columns"."""
    tool_version: str | None = None
    devices: tuple[Device, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    """Facts about software and settings, never the process environment; the store keeps keys that
    ``redact.FACTS`` names, and ``option:NAME``."""
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
    layer_times: tuple[LayerTime, ...] = ()
    features: tuple[Feature, ...] = ()
    gaps: tuple[Gap, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    workload: str | None = None
    """None when the file cannot say; likewise all that follow."""
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
    """The workload's own options that are not at their default; None when all are."""
    api_calls: Iterable[ApiCall] = ()
    op_calls: Iterable[OpCall] = ()
    """In a run that was read from the store, the longest, as far as asked for:
    ``store.read.op_calls`` reads all of them one by one."""
    collectives: Iterable[Collective] = ()
    advice: Iterable[Advice] = ()
    threads: tuple[Thread, ...] = ()
    source_counters: Iterable[SourceCounter] = ()
    """Empty in a run that was read from the store: ``store.read.source_lines`` sums them by
    source line."""
    compiled_kernels: Iterable[CompiledKernel] = ()
    kernel_parts: Iterable[KernelPart] = ()
    """Of fused kernels that belong to several layers: ``Kernel.layer_source`` is then "shared" and
    its layer None."""
    rank: int | None = None
    """Of the process among ``world_size`` that worked together, from 0; None when the file
    cannot say."""
    world_size: int | None = None
    host: str | None = None
    """Name of the machine that the process ran on."""
    phase: str | None = None
    """train, prefill, decode or infer; None when not known, or when the report holds more
    than one."""
    effective_batch: int | None = None
    """Samples a step, all batches of gradient accumulation included."""
    served_steps: Iterable[ServedStep] = ()
    graph_launches: Iterable[GraphLaunch] = ()
    counter_samples: Iterable[CounterSample] = ()
    waiting_calls: tuple[OpCall, ...] = ()
    """Of the operators, those that may copy, convert or wait for the GPU; only in a run that was
    read from the store."""


def join_first_names(names: Iterable[str], max_names: int) -> str:
    """Return "a, b and 2 more"."""
    every = list(names)
    left_out = f" and {len(every) - max_names} more" if len(every) > max_names else ""
    return ", ".join(every[:max_names]) + left_out


def pluralize_count(number: int, noun: str, singular: str = "", plural: str = "") -> str:
    """Return "1 launch", "2,000 launches", with the verb in the form that suits."""
    ending = "" if number == 1 else "es" if noun.endswith(("ch", "ss")) else "s"
    return f"{number:,} {noun}{ending} {singular if number == 1 else plural}".rstrip()
