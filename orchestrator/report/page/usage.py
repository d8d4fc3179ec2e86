"""Utilization and memory of runs as tables: running kernels, samples of devices, recorded memory
figures."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor

from perfctl.orchestrator.ledger.causes.timeline.judge import RunVerdicts
from perfctl.orchestrator.ledger.usage.counters import (
    ACTIVITIES,
    SEVERAL,
    CounterMean,
    compute_counter_means_by_run_part,
)
from perfctl.orchestrator.ledger.usage.readings import UsageShare, format_ns_as_s_or_ms
from perfctl.orchestrator.ledger.usage.run_usage import CAUSES, COMMUNICATION, RunUsage
from perfctl.orchestrator.ledger.usage.served import (
    compute_kernel_time_share_with_layer,
    count_layer_matched_graph_kernels,
    has_layers_matched_to_eager_run,
    measure_serving_phase_times,
    select_graph_kernels,
)
from perfctl.orchestrator.ledger.usage.training import (
    AttentionQueries,
    has_attention_kernels,
    list_ingested_training_pass_times,
)
from perfctl.orchestrator.report.numbers import format_percent
from perfctl.orchestrator.report.page.timeline import find_time_origin
from perfctl.orchestrator.report.tables import (
    RUN,
    Cell,
    Column,
    ShortNames,
    Table,
    amount_with_unit_cell,
    build_table_hiding_empty_columns,
    count_cell,
    join_notes,
    mark_cell_estimated,
    missing_cell,
    name_column,
    rate_cell,
    run_label,
    share_cell,
    size_cell,
    size_column,
    text_cell,
    text_column,
    text_columns,
    time_cell,
    time_column,
)
from perfctl.orchestrator.statistics import group_by
from perfctl.records.report import Kernel
from perfctl.records.run import Run

_MEANING = {
    "loading data": "at least half of the gap is in a range of the data phase",
    "copy": "copies, memsets or ranges of their name fill half of the gap; or their part of it",
    "start-up": "at least half of the gap is in a range that loads code, compiles or warms up",
    "communication": "at least half of the gap is in a range named after a collective or NCCL",
    "memory management": "at least half of the gap is in calls that allocate, pin or free memory",
    "synchronising": "at least half of the gap is in a synchronizing call, or a range of its name",
    "launches one by one": "gap of 10 µs or less between two kernels (cost of one launch)",
    "host": "longer gaps with none of these causes: the host launched late, or waited",
}

_PASSES = {
    "forward": "forward",
    "grad_input": "backward, input",
    "grad_weight": "backward, weights",
    "grad_bias": "backward, bias",
    "backward": "backward",
    "optimizer": "optimizer",
    "recompute": "forward again",
    None: "of no layer",
}

_BOTH = "the same kernels compute both parts of a mixed step, so perfctl does not divide launches"
_SPLIT = (
    "perfctl divides most kernels of a mixed step by tokens, so a token of both parts takes "
    "about the same time"
)
BY_WORK = (
    "share of the step, divided by work: attention by pairs of queries and keys, work per "
    "sequence by sequences, the rest by tokens"
)
PARTIAL = "the trace does not show where the step begins, so some of its layers may be missing"
_UNSAID = "the step names do not contain it"
_NO_QUERIES = "no attention kernel has a name and grid that contain them, or its calls differ"
_PEAKS = {("peak", "allocated"), ("peak", "reserved")}
"""Memory figures that :func:`build_memory_use_table` has."""
_NO_DEVICE = "the samples do not state it"


def build_gpu_busy_table(runs: Sequence[RunUsage]) -> Table | None:
    """Share of time with a kernel running: a row a device, and a row a stream if there are
    several."""
    busy = [
        item
        for run in runs
        for item in (*run.device_and_stream_busy_times, *run.busy_times_in_shortest_active_span)
    ]
    windows = "; ".join(dict.fromkeys(item.window for item in busy))
    columns = [
        RUN,
        Column("device"),
        text_column("stream"),
        Column("launches"),
        time_column(
            "a kernel runs", "time in which at least one kernel ran; overlapping kernels count once"
        ),
        time_column("of", windows),
        Column("share", note=windows),
        time_column("longest idle gap", "longest time without a kernel"),
    ]
    rows = [
        [
            item.run,
            text_cell(item.device),
            "all" if item.stream is None else item.stream,
            item.launches,
            item.running_ns,
            item.window_ns,
            share_cell(item.busy_share),
            item.longest_wait_ns,
        ]
        for item in busy
    ]
    return build_table_hiding_empty_columns("Share of time with a kernel running", columns, rows)


def build_prefill_decode_table(runs: Sequence[Run]) -> Table | None:
    """Prefill, decode and mixed steps of a server: time, launches and tokens; mixed steps split by
    work, an estimate."""
    columns = [
        RUN,
        text_column("phase"),
        Column("steps"),
        Column("sequences", note="of all its steps"),
        Column("tokens", note="that the steps computed"),
        Column("launches", is_optional=True),
        time_column("a kernel runs", "time in which at least one kernel of these steps ran"),
        time_column("kernel time", "sum over its kernels", is_optional=True),
        time_column("GPU time per token", "time in which a kernel ran, over the tokens"),
        Column("tokens/busy s", note="while a kernel ran, without the time in between"),
    ]
    rows = []
    for item in (phase for run in runs for phase in measure_serving_phase_times(run)):
        no_time = _UNSAID if item.tokens is None else "no kernel has a time"
        per_token = PARTIAL if item.partial else no_time
        exact = [
            item.steps,
            count_cell(item.sequences, _UNSAID),
            count_cell(item.tokens, _UNSAID),
        ]
        times = [
            count_cell(item.launches, _BOTH),
            time_cell(item.running_ns, no_time),
            time_cell(item.kernel_ns, no_time),
            time_cell(item.running_ns_per_token, per_token),
            rate_cell(item.tokens_per_second, "tokens/s", per_token),
        ]
        if item.part is not None:
            times = [
                *(mark_cell_estimated(cell, BY_WORK) for cell in times[:3]),
                *[missing_cell(_SPLIT)] * 2,
            ]
        name = item.phase if item.part is None else f"its {item.part}"
        rows.append([item.run, name, *exact, *times])
    notes = []
    if any(step.may_be_partial for run in runs for step in run.report.served_steps):
        notes.append(f"GPU time per token and tokens/s: unknown; {PARTIAL}.")
    return build_table_hiding_empty_columns("Prefill and decode", columns, rows, notes)


def build_training_passes_table(runs: Sequence[Run]) -> Table | None:
    """Forward and backward of training traces that were made elsewhere, with what is communication
    and the tokens of a call."""
    columns = [
        RUN,
        text_column("pass"),
        Column("layers", is_optional=True),
        Column("launches", is_optional=True),
        time_column(
            "a kernel runs", "time in which at least one of its kernels ran; passes may overlap"
        ),
        time_column("kernel time", "sum over its kernels, all recorded steps"),
        Column("share", note="of the kernel time"),
        time_column(
            "communication", "kernel time of collectives, and of dispatch and combine of experts"
        ),
        Column(
            "tokens per call", note="from the tile and grid of the attention kernel (approximate)"
        ),
    ]
    uses = [use for run in runs for use in list_ingested_training_pass_times(run)]
    rows = [
        [
            use.run,
            _PASSES[use.direction],
            use.layers or missing_cell("no layer is known"),
            use.launches,
            time_cell(use.running_ns, "not timed"),
            time_cell(use.kernel_ns, "not timed"),
            share_cell(use.share),
            time_cell(use.collective_ns or None, "none"),
            _tokens_per_call_cell(use.queries),
        ]
        for use in uses
    ]
    communicating = {id(use.run): use.run for use in uses if use.collective_ns}
    breakdowns = [RunUsage(run).time_breakdown for run in communicating.values()]
    notes = [
        f"Exposed communication: {format_percent(breakdown.shares[COMMUNICATION])} of the time."
        for breakdown in breakdowns
        if breakdown is not None
    ]
    if not any(use.queries for use in uses) and any(has_attention_kernels(use.run) for use in uses):
        notes.append(f"Tokens per call: unknown; {_NO_QUERIES}.")
    return build_table_hiding_empty_columns("Forward and backward", columns, rows, notes)


def _tokens_per_call_cell(queries: AttentionQueries | None) -> Cell:
    if queries is None:
        return missing_cell(_NO_QUERIES)
    rows, how = queries.rows, "upper bound: complete tiles"
    if rows is not None:
        how = f"{queries.kernels:,} other kernels have one block for each row"
    return mark_cell_estimated(
        count_cell(queries.max_tokens if rows is None else rows),
        f"{queries.calls:,} calls, each with {queries.blocks:,} blocks of {queries.tile} queries "
        f"for {queries.sequences:,} sequences and {queries.heads:,} heads: "
        f"{queries.min_tokens:,} to "
        f"{queries.max_tokens:,} tokens; {how}",
    )


def explain_unknown_prefill_decode(run: Run) -> str | None:
    """Return why prefill and decode of a language model are not told apart; None if they are, or
    if the run has no such model."""
    reason = next((gap.reason for gap in run.report.gaps if gap.quantity == "served_step"), None)
    return (
        None
        if reason is None or run.report.served_steps
        else f"prefill or decode: unknown; {reason}"
    )


def describe_kernel_time_module_coverage(run: Run) -> str | None:
    """Return how much of the kernel time has a module, and how kernels of graphs got theirs; None
    if no module is expected."""
    share = compute_kernel_time_share_with_layer(run.report)
    of_graphs = count_layer_matched_graph_kernels(run.report)
    text = ""
    if share is not None:
        text = f"{floor(share * 1000) / 10:.1f}% of the kernel time has a module or operator"
    if of_graphs is None:
        replayed = select_graph_kernels(list(run.report.kernels)) if run.profiler != "ncu" else []
        bare = sum(kernel.layer is None for kernel in replayed)
        part = f"graphs launched {len(replayed):,} kernels, {bare:,} of them without a layer"
        return join_notes(text, part if replayed else "") or None
    matched, kernels, least = of_graphs
    how = "a run without graphs" if has_layers_matched_to_eager_run(run.report) else "the capture"
    part = f"{matched:,} of {kernels:,} kernels of graphs by {how}"
    return f"{text}; {part} (inferred, confidence {least:.2f})"


def explain_missing_busy_share(runs: Sequence[Run]) -> str | None:
    """Return why no share of time is known although kernels ran; None if none ran."""
    with_kernels = [run for run in runs if run.report.kernels]
    kernels = [
        kernel
        for run in with_kernels
        if run.profiler != "ncu" and not run.report.counters
        for kernel in run.report.kernels
    ]
    if not kernels:
        text = "kernels ran one by one, because counters were collected"
        if any(run.profiler == "ncu" for run in with_kernels):
            text = "ncu runs kernels one by one, without start times; nsys and torch record them"
        return text if with_kernels else None
    without = sum(kernel.start_ns is None or kernel.duration_ns is None for kernel in kernels)
    return f"{without:,} of {len(kernels):,} kernels have no start or no duration"


def build_device_samples_table(runs: Sequence[RunUsage]) -> Table | None:
    """Samples of nvidia-smi, DCGM or NVML during a run."""
    columns = [
        RUN,
        Column("device"),
        Column("samples"),
        Column(
            "utilization",
            note="mean over time of the device's own value: share of time with any kernel, sampled",
        ),
        size_column("memory used", "largest"),
        size_column("memory", "all of it, as the driver counts; CUDA states less"),
        Column("power", base="W", note="mean over time, like utilization"),
        Column("temperature", base="°C", note="highest"),
        Column("SM clock", base="Hz", note="lowest"),
    ]
    none = "not sampled"
    rows = [
        [
            item.run,
            count_cell(item.device, _NO_DEVICE),
            item.count,
            usage_share_cell(UsageShare(item.utilisation, item.span)),
            size_cell(item.memory_used, none),
            size_cell(item.memory_total, none),
            amount_with_unit_cell(item.power, "W", none),
            amount_with_unit_cell(item.temperature, "°C", none),
            amount_with_unit_cell(item.clock, "Hz", none),
        ]
        for run in runs
        for item in run.device_readings
    ]
    return build_table_hiding_empty_columns("Device samples", columns, rows)


def build_counter_means_table(runs: Sequence[Run]) -> Table | None:
    """Means of the hardware counters that were sampled over time."""
    means = [mean for run in runs for mean in compute_counter_means_by_run_part(run)]
    names = dict.fromkeys(mean.counter for mean in means)
    columns = [
        RUN,
        Column("device"),
        text_column("part", "a step is its time on the host; its kernels may run later"),
        Column("samples", note="a profiler with a full buffer drops the oldest samples"),
        *(Column(name, note="mean of the samples inside") for name in names),
    ]
    rows = []
    for (_, device, part), of_part in group_by(
        means, lambda mean: (mean.run.id, mean.device, mean.part)
    ).items():
        cells = {mean.counter: _counter_mean_cell(mean) for mean in of_part}
        samples = max(mean.samples for mean in of_part)
        head = [of_part[0].run, count_cell(device, _NO_DEVICE), part, samples]
        rows.append([*head, *(cells.get(name, missing_cell("no sample inside")) for name in names)])
    notes = [
        "The samples are of the whole GPU, with every process on it. A layer or kernel has a row "
        f"only where it runs alone for {SEVERAL} samples or longer."
    ]
    absent = [part for part, begin in ACTIVITIES.items() if not any(map(begin.match, names))]
    if absent:
        notes.append(
            f"Not measured: activity of {', '.join(absent)}, which no sampled counter has."
        )
    return build_table_hiding_empty_columns("Hardware counters over time", columns, rows, notes)


def _counter_mean_cell(mean: CounterMean) -> Cell:
    if mean.unit == "%" and mean.value is not None:
        return share_cell(mean.value / 100)
    return amount_with_unit_cell(mean.value, mean.unit, "no sample inside")


def build_timeline_improvements_table(runs: RunVerdicts) -> Table | None:
    """What the timeline of each run shows could be faster, the largest share of a run first."""
    columns = [
        RUN,
        text_column("cause"),
        Column("share"),
        *text_columns("of", "evidence", "fix", "confidence"),
    ]
    rows = [
        [
            run,
            cause.rule,
            share_cell(cause.share),
            *(cause.of, cause.sentence, cause.todo, cause.confidence),
        ]
        for run, verdicts in runs
        for cause in verdicts
    ]
    return build_table_hiding_empty_columns(
        "Possible improvements, from the timeline", columns, rows
    )


def build_energy_table(runs: Sequence[RunUsage]) -> Table | None:
    """Joules of the GPUs whose power was sampled; a figure that is not known has its reason."""
    columns = [
        RUN,
        Column("device"),
        Column(
            "energy",
            base="J",
            note="of the GPU over the measured steps, or over all samples if there are no steps",
        ),
        time_column("over"),
        Column("mean power", base="W"),
        Column("error", note="sampling error of the energy; excludes the sensor accuracy (5%)"),
        Column("per step", base="J", note="mean of all steps, including the time between them"),
        Column("per sample", base="J"),
        Column("per token", base="J"),
        Column("energy-delay", base="J·s", note="joules per step x mean step time"),
        text_column("from"),
    ]
    rows = []
    for item in (item for run in runs for item in run.device_energies):
        none = item.reason or "unknown"
        no_step = item.step_reason or none
        has_steps = item.per_step is not None
        no_sample = "the samples per step are unknown" if has_steps else no_step
        source = f"{item.source}, every {format_ns_as_s_or_ms(item.period_ns or 0)}"
        rows.append(
            [
                item.run,
                count_cell(item.device, _NO_DEVICE),
                amount_with_unit_cell(item.joules, "J", none),
                time_cell(item.span_ns, none),
                amount_with_unit_cell(item.watts, "W", none),
                share_cell(item.error, item.reason or "the energy is 0"),
                amount_with_unit_cell(item.per_step, "J", no_step),
                amount_with_unit_cell(item.per_sample, "J", no_sample),
                amount_with_unit_cell(
                    item.per_token, "J", (item.token_reason or none) if has_steps else no_step
                ),
                amount_with_unit_cell(item.delay_product, "J·s", no_step),
                source if item.reason is None else item.reason,
            ]
        )
    return build_table_hiding_empty_columns("Energy", columns, rows)


def build_recorded_memory_table(runs: Sequence[Run]) -> Table | None:
    """Every further memory figure that runs recorded: a row a timestamp and quantity, a column a
    run."""
    figures = [
        (run, {(item.moment, item.quantity): item.bytes for item in run.report.memory})
        for run in runs
        if run.report.memory
    ]
    names = dict.fromkeys(name for _, of_run in figures for name in of_run if name not in _PEAKS)
    columns = [
        text_column("figure"),
        *(size_column(run_label(run)) for run, _ in figures),
    ]
    rows = [
        [
            f"{moment} {quantity.replace('_', ' ')}",
            *(
                size_cell(of_run.get((moment, quantity)), "this run did not record it")
                for _, of_run in figures
            ),
        ]
        for moment, quantity in names
    ]
    return build_table_hiding_empty_columns(
        "Memory that the runs recorded about themselves", columns, rows
    )


def build_utilization_table(runs: Sequence[RunUsage]) -> Table | None:
    """A row a run: busy shares of three tools, use of the GPU's parts, then the host."""
    columns = [
        RUN,
        Column(
            "GPU busy (kernels)",
            note="share of time with at least one kernel running, from the start and duration of "
            "every kernel",
        ),
        Column(
            "GPU busy (sampled)",
            note="driver value: share of its sampling period (1/6 s to 1 s) with a kernel running",
        ),
        Column(
            "GPU busy (DLProf)",
            note="its line GPU Utilization: of the wall clock time of its iterations",
        ),
        Column(
            "tensor cores, DLProf", note="share of kernel time in kernels that use tensor cores"
        ),
        Column(
            "occupancy", note="warps per SM / maximum warps, time-weighted mean over kernels (ncu)"
        ),
        Column(
            "tensor pipe",
            note="cycles with an active tensor pipe, time-weighted mean over kernels (ncu)",
        ),
        Column("host cores busy", note="cores that the run's processes kept busy in its steps"),
    ]
    rows = []
    for item in (
        run.utilization_by_source for run in runs if run.utilization_by_source.has_any_share
    ):
        shares = (
            item.kernels,
            item.nvml,
            item.dlprof,
            item.dlprof_tensor,
            item.occupancy,
            item.tensor_pipe,
        )
        cores = rate_cell(item.host_cores, "", item.host_reason)
        rows.append([item.run, *map(usage_share_cell, shares), cores])
    return build_table_hiding_empty_columns("GPU and CPU utilization", columns, rows)


def usage_share_cell(share: UsageShare) -> Cell:
    """With its span in the title. Below 0.1% it has three digits: one decimal of a percentage
    would be 0."""
    if share.value is None:
        return missing_cell(share.reason)
    value = round(share.value, 10)
    text = f"{value * 100:.3g}%" if 0 < value < 0.001 else format_percent(value)
    return Cell(
        text + (f", mean of {share.gpus} GPUs" if share.gpus > 1 else ""), share.reason, value=value
    )


def build_idle_gap_tables(runs: Sequence[RunUsage], names: ShortNames) -> tuple[Table | None, ...]:
    """Causes of the time without a kernel, and the longest waits with the kernels around them."""
    idle = [item for run in runs for item in run.idle_times if item.count]
    device = [Column("device")] if len({item.device for item in idle}) > 1 else []
    causes = [cause for cause in CAUSES if any(item.by_cause.get(cause) for item in idle)]
    columns = [
        RUN,
        *device,
        Column("waits"),
        *(time_column(cause, _MEANING[cause]) for cause in causes),
        time_column("of"),
    ]
    rows = [
        [
            item.run,
            *(text_cell(item.device) for _ in device),
            item.count,
            *(
                time_cell(
                    item.by_cause.get(cause, 0),
                    note=f"{format_percent(item.by_cause.get(cause, 0) / item.window_ns)} of the "
                    "time",
                )
                for cause in causes
            ),
            item.window_ns,
        ]
        for item in idle
    ]
    wait_columns = [
        RUN,
        time_column("wait", order="descending"),
        time_column("begins at", "from the first event of the run, as in the timeline"),
        text_column("cause"),
        name_column("after"),
        name_column("before"),
        name_column("range around the gap", "innermost host range at the middle of the gap"),
    ]
    origins = {item.run.id: find_time_origin(item.run) for item in idle}
    waits = [
        [
            item.run,
            wait.length_ns,
            wait.start_ns - origins[item.run.id],
            wait.cause,
            _kernel_name_cell(wait.after, "the capture range begins here", names),
            _kernel_name_cell(wait.before, "the capture range ends here", names),
            wait.around or missing_cell("no open range"),
        ]
        for item in idle
        for wait in item.largest
    ]
    return (
        build_table_hiding_empty_columns("Time without a kernel, by cause", columns, rows),
        build_table_hiding_empty_columns(
            "The longest idle gaps of each run, ten at most", wait_columns, waits
        ),
    )


def _kernel_name_cell(kernel: Kernel | None, reason: str, names: ShortNames) -> Cell:
    if kernel is None:
        return missing_cell(reason)
    layer = f" ({kernel.layer} {kernel.direction or ''}".rstrip() + ")" if kernel.layer else ""
    return text_cell(names.get(kernel.name, kernel.name) + layer, kernel.name)


def build_memory_use_table(runs: Sequence[RunUsage]) -> Table | None:
    """A row a run: paper, torch's allocator, NVML, host."""
    columns = [
        RUN,
        size_column("weights, estimated", "4 bytes for each parameter", is_optional=True),
        size_column(
            "layer outputs, estimated",
            "outputs of one forward pass: an upper bound of what is stored at the same time",
            is_optional=True,
        ),
        size_column("peak allocated", "torch's allocator, in the measured steps"),
        size_column("peak reserved", "the memory that the allocator reserved on the device for it"),
        size_column(
            "process, NVML", "with CUDA's context and the memory of libraries", is_optional=True
        ),
        size_column("device in use", "used by all processes, highest sample", is_optional=True),
        size_column("device memory", "as CUDA states it; else as the driver counts, which is more"),
        size_column(
            "host resident",
            "of the computing process, as it recorded it; highest",
            is_optional=True,
        ),
        size_column(
            "host, all processes",
            "resident memory of all the run's processes, sampled; highest",
            is_optional=True,
        ),
    ]
    rows = []
    for item in (run.memory_use for run in runs):
        of_device = (item.allocated, item.reserved, item.process, item.device)
        of_host = (item.host, item.host_all)
        if any(value is not None for value in (*of_device, *of_host)):
            estimates = (item.weights, item.outputs)
            rows.append([item.run, *estimates, *of_device, item.device_total, *of_host])
    return build_table_hiding_empty_columns("Memory: estimate, allocator and device", columns, rows)
