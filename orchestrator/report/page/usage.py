"""Utilisation and memory for the page: running kernels, readings of devices, recorded
memory figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import floor

from perfctl.orchestrator.ledger.causes.timeline.judge import run_verdicts
from perfctl.orchestrator.ledger.usage.readings import UsageShare, seconds
from perfctl.orchestrator.ledger.usage.run_usage import CAUSES, COMMUNICATION, RunUsage
from perfctl.orchestrator.ledger.usage.served import inferred, is_guessed, phases, placed
from perfctl.orchestrator.ledger.usage.training import PassUse, Queries, attends, passes
from perfctl.orchestrator.report.numbers import percent, significant
from perfctl.orchestrator.report.page.kernels import run_label
from perfctl.orchestrator.report.tables import (
    RUN,
    SHOWN_RUN,
    Cell,
    Column,
    Table,
    amount,
    count,
    estimated,
    listing,
    nothing,
    rate,
    share_cell,
    size_cell,
    text_cell,
    time_cell,
)
from perfctl.records.report import Kernel
from perfctl.records.run import Run

_MEANING = {
    "loading data": "at least half of the gap is in a range of the data phase",
    "copy": "copies and memsets cover at least half of the gap",
    "synchronising": "at least half of the gap is in a range named after a synchronizing call",
    "launches one by one": "gap of 10 µs or less between two kernels (cost of one launch)",
    "host": (
        "longer gaps with none of these causes: the host launched late, or waited; the report "
        "has no times of calls"
    ),
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

PASSES = "Forward and backward"

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


def busy_table(runs: Sequence[RunUsage]) -> Table | None:
    """Share of time with a kernel running, a row a device, and a row a stream where there
    are several."""
    found = [item for run in runs for item in (*run.busy, *run.steady)]
    windows = "; ".join(dict.fromkeys(item.window for item in found))
    columns = [
        SHOWN_RUN,
        Column("device"),
        Column("stream", style="text"),
        Column("launches"),
        Column(
            "a kernel runs",
            base="ns",
            note="time in which at least one kernel ran; overlapping kernels count once",
        ),
        Column("of", base="ns", note=windows),
        Column("share", note=windows),
        Column("longest idle gap", base="ns", note="longest time without a kernel"),
    ]
    rows = [
        [
            run_label(item.run),
            text_cell(item.device),
            "all" if item.stream is None else item.stream,
            item.launches,
            item.running_ns,
            item.window_ns,
            share_cell(item.share),
            item.longest_wait_ns,
        ]
        for item in found
    ]
    return listing("Share of time with a kernel running", columns, rows)


def phases_table(runs: Sequence[Run]) -> Table | None:
    """Prefill, decode and mixed steps of a server: time, launches and tokens; mixed steps split by
    work, an estimate."""
    columns = [
        RUN,
        Column("phase", style="text"),
        Column("steps"),
        Column("sequences", note="of all its steps"),
        Column("tokens", note="that the steps computed"),
        Column("launches"),
        Column(
            "a kernel runs", base="ns", note="time in which at least one kernel of these steps ran"
        ),
        Column("kernel time", is_optional=True, base="ns", note="sum over its kernels"),
        Column("time per token", base="ns", note="time in which a kernel ran, over the tokens"),
        Column("tokens/s", note="while a kernel ran, without the time in between"),
    ]
    rows = []
    for item in (one for run in runs for one in phases(run)):
        tokens = _UNSAID if item.tokens is None else "no kernel has a time"
        a_token = PARTIAL if item.partial else tokens
        cells = [
            text_cell(item.phase if item.part is None else f"its {item.part}"),
            count(item.steps),
            count(item.sequences, _UNSAID),
            count(item.tokens, _UNSAID),
            count(item.launches, _BOTH),
            time_cell(item.running_ns, tokens),
            time_cell(item.kernel_ns, tokens),
            *(
                (
                    time_cell(item.token_ns, a_token),
                    rate(item.tokens_per_second, "tokens/s", a_token),
                )
                if item.part is None
                else (nothing(_SPLIT), nothing(_SPLIT))
            ),
        ]
        known = {0, 1, 2, 3} if item.part else set(range(len(cells)))
        rows.append(
            [
                run_label(item.run),
                *(
                    cell if at in known else estimated(cell, BY_WORK)
                    for at, cell in enumerate(cells)
                ),
            ]
        )
    made = listing("Prefill and decode", columns, rows)
    partial = any(step.partial for run in runs for step in run.report.served_steps)
    return (
        replace(made, notes=(*made.notes, f"Time per token and tokens/s: unknown; {PARTIAL}."))
        if made and partial
        else made
    )


def passes_table(runs: Sequence[Run]) -> Table | None:
    """Forward and backward of training traces that were made elsewhere, with what is communication
    and the tokens of a call."""
    columns = [
        RUN,
        Column("pass", style="text"),
        Column("layers", is_optional=True),
        Column("launches", is_optional=True),
        Column(
            "a kernel runs",
            base="ns",
            note="time in which at least one of its kernels ran; passes may overlap",
        ),
        Column("kernel time", base="ns", note="sum over its kernels, all recorded steps"),
        Column("share", note="of the kernel time"),
        Column(
            "exchanges",
            base="ns",
            note=(
                "kernel time of communication between GPUs: collectives, dispatch and combine of "
                "experts"
            ),
        ),
        Column(
            "tokens per call", note="from the tile and grid of the attention kernel (approximate)"
        ),
    ]
    found = [one for run in runs for one in passes(run)]
    rows = [
        [
            run_label(one.run),
            text_cell(_PASSES[one.direction]),
            one.layers or nothing("no layer is known"),
            one.launches,
            time_cell(one.running_ns, "not timed"),
            time_cell(one.kernel_ns, "not timed"),
            share_cell(one.share),
            time_cell(one.collective_ns, "none") if one.collective_ns else nothing("none"),
            _tokens(one.queries),
        ]
        for one in found
    ]
    made = listing(PASSES, columns, rows)
    return None if made is None else replace(made, notes=(*made.notes, *_said(found)))


def _tokens(told: Queries | None) -> Cell:
    if told is None:
        return nothing(
            "no attention kernel has a name and grid that contain it, or its calls differ"
        )
    cell = count(told.most if told.rows is None else told.rows)
    return estimated(
        cell,
        "upper bound: complete tiles"
        if told.rows is None
        else "rows of other kernels, within attention's tiles",
    )


def _said(found: Sequence[PassUse]) -> Iterator[str]:
    """What of the exchanges is exposed; how the tokens were found, or why they are not known."""
    of_runs = {id(one.run): one.run for one in found if one.collective_ns}
    for spent in (RunUsage(run).breakdown for run in of_runs.values()):
        if spent is None:
            continue
        yield (f"Exposed communication: {percent(spent.shares[COMMUNICATION])} of the time.")
    told = [(one, one.queries) for one in found if one.queries is not None]
    for one, how in told:
        of = (
            f"{how.sequences:,} {'sequence' if how.sequences == 1 else 'sequences'} and "
            f"{how.heads:,} heads"
        )
        rows = (
            f"; {how.kernels:,} other kernels have one block for each of {how.rows:,} rows"
            if how.rows
            else ""
        )
        yield (
            f"Tokens ({_PASSES[one.direction]}): {how.calls:,} calls of attention, each with "
            f"{how.blocks:,} blocks of {how.tile} queries for {of}, so {how.least:,} to "
            f"{how.most:,} tokens according to name and grid{rows} (~)."
        )
    if not told and any(attends(run) for run in {id(one.run): one.run for one in found}.values()):
        yield (
            "Tokens: unknown; no attention kernel has a name and grid that contain its queries, "
            "and no annotation of the trace states them."
        )


def phase_text(run: Run) -> str | None:
    """Why prefill and decode of a model of language are not told apart; None where they are, or
    where that is no question."""
    why = next((gap.reason for gap in run.report.gaps if gap.quantity == "served_step"), None)
    return None if why is None or run.report.served_steps else f"prefill or decode: unknown; {why}"


def placed_text(run: Run) -> str | None:
    """How much of the kernel time has a module, and how graphs' kernels got theirs; None where that
    is no question."""
    share, found = placed(run.report), inferred(run.report)
    if share is None:
        return None
    said = f"{floor(share * 1000) / 10:.1f}% of the kernel time has a module"
    if found is None:
        return said
    matched, kernels, least = found
    how = "a run without graphs (guessed" if is_guessed(run.report) else "the capture (inferred"
    return f"{said}; {matched:,} of {kernels:,} kernels of graphs by {how}, confidence {least:.2f})"


def absent(runs: Sequence[Run]) -> str | None:
    """Why no share of time is known although kernels ran; None where none ran."""
    counted = [run for run in runs if run.report.kernels]
    kernels = [kernel for run in counted if run.profiler != "ncu" for kernel in run.report.kernels]
    if not kernels:
        said = (
            "ncu runs kernels one by one, so its reports do not show how busy the device was; "
            "nsys and torch record this"
        )
        return said if counted else None
    without = sum(kernel.start_ns is None or kernel.duration_ns is None for kernel in kernels)
    return (
        f"{without:,} of {len(kernels):,} kernels have no start or no duration, so the share "
        "would be wrong"
    )


def readings_table(runs: Sequence[RunUsage]) -> Table | None:
    """Readings of nvidia-smi, DCGM or NVML during a run."""
    columns = [
        SHOWN_RUN,
        Column("device"),
        Column("samples"),
        Column(
            "utilisation",
            note=(
                "mean over time of the device's own value: share of time with any kernel, sampled"
            ),
        ),
        Column("memory used", base="B", note="largest"),
        Column("memory", base="B"),
        Column("power", "W", note="mean over time, like utilization"),
        Column("temperature", "°C", note="highest"),
        Column("SM clock", "Hz", note="lowest"),
    ]
    none = "not sampled"
    rows = []
    for item in (item for run in runs for item in run.readings):
        power, heat = (
            nothing(none)
            if value is None
            else Cell(significant(float(value)), value=round(value, 3))
            for value in (item.power, item.temperature)
        )
        rows.append(
            [
                run_label(item.run),
                count(item.device, "the samples do not state it"),
                item.count,
                usage_cell(UsageShare(item.utilisation, item.span)),
                size_cell(item.memory_used, none),
                size_cell(item.memory_total, none),
                power,
                heat,
                amount(item.clock, "Hz", none),
            ]
        )
    return listing("Device samples", columns, rows)


def verdicts_table(runs: Sequence[Run]) -> Table | None:
    """What the timeline of each run says could be faster, the largest share of a run first."""
    columns = [
        SHOWN_RUN,
        Column("verdict", style="text"),
        Column("share"),
        Column("of", style="text"),
        Column("evidence", style="text"),
        Column("what to do", style="text"),
        Column("confidence", style="text"),
    ]
    rows = [
        [
            run_label(run),
            text_cell(said.rule),
            share_cell(said.share),
            *map(text_cell, (said.of, said.sentence, said.todo, said.confidence)),
        ]
        for run in runs
        for said in run_verdicts(run)
    ]
    return listing("Possible improvements, from the timeline", columns, rows)


def energy_table(runs: Sequence[RunUsage]) -> Table | None:
    """Joules of the GPUs whose power was read; a figure that is not known says why."""
    columns = [
        SHOWN_RUN,
        Column("device"),
        Column(
            "energy",
            "J",
            note="of the GPU over the measured steps, or over all samples if there are no steps",
        ),
        Column("over", base="ns"),
        Column("mean power", "W"),
        Column(
            "error",
            note=("sampling error of the energy; excludes the sensor accuracy (5%)"),
        ),
        Column("J a step", note="mean of all steps, including the time between them"),
        Column("J a sample"),
        Column("J a token"),
        Column("J·s a step", note="energy-delay product: joules per step x mean step time"),
        Column("from", style="text"),
    ]
    rows = []
    sources: set[str] = set()
    for item in (item for run in runs for item in run.energy):
        step = item.step_reason or item.reason or "not known"
        sample = step if item.per_step is None else "the samples per step are unknown"
        token = step if item.per_step is None else item.token_reason or "not known"
        figures = (
            (item.joules, item.reason or "not known"),
            (item.watts, item.reason or "not known"),
            (item.per_step, step),
            (item.per_sample, sample),
            (item.per_token, token),
            (item.delay_product, step),
        )
        joules, watts, *each = (
            nothing(why) if value is None else Cell(f"{value:.3g}", value=value)
            for value, why in figures
        )
        error = (
            nothing(item.reason or "the energy is 0")
            if item.error is None
            else share_cell(item.error)
        )
        source = (
            f"{item.source}, every {seconds(item.period_ns or 0)}"
            if item.reason is None
            else item.reason
        )
        sources.add("" if item.reason else source)
        rows.append(
            [
                run_label(item.run),
                count(item.device, "the samples do not state it"),
                joules,
                time_cell(item.span_ns, item.reason or "not known"),
                watts,
                error,
                *each,
                text_cell(source),
            ]
        )
    if len(sources) != 1 or "" in sources:
        return listing("Energy", columns, rows)
    # below the table, which is wide
    made = listing("Energy", columns[:-1], [row[:-1] for row in rows])
    said = f"From {sources.pop()}. Error: sampling error, excluding the sensor accuracy (5%)."
    return None if made is None else replace(made, notes=(*made.notes, said))


def memory_table(runs: Sequence[Run]) -> Table | None:
    """Every memory figure that runs recorded: a row a run, a column a moment and quantity."""
    recorded = [
        (run, {(item.moment, item.quantity): item.bytes for item in run.report.memory})
        for run in runs
    ]
    named = dict.fromkeys(name for _, known in recorded for name in known)
    columns = [
        SHOWN_RUN,
        *(Column(f"{moment} {quantity.replace('_', ' ')}", base="B") for moment, quantity in named),
    ]
    rows = [
        [
            run_label(run),
            *(size_cell(known.get(name), "this run did not record it") for name in named),
        ]
        for run, known in recorded
        if known
    ]
    return listing("Memory that the runs recorded about themselves", columns, rows)


def memory_list(run: Run) -> Table | None:
    """The same figures of one run for a terminal, a row a moment and quantity."""
    columns = [Column("figure", style="text"), Column("bytes", base="B")]
    rows = [
        (f"{item.moment} {item.quantity.replace('_', ' ')}", item.bytes)
        for item in run.report.memory
    ]
    return listing("Memory that the run recorded about itself", columns, rows)


def ways_table(runs: Sequence[RunUsage]) -> Table | None:
    """A row a run: busy shares of three tools, use of the GPU's parts, then the host."""
    columns = [
        SHOWN_RUN,
        Column(
            "kernels",
            note=(
                "share of time with at least one kernel running, from the start and duration of "
                "every kernel"
            ),
        ),
        Column(
            "NVML",
            note=(
                "driver value: share of its sampling period (1/6 s to 1 s) with a kernel running"
            ),
        ),
        Column("DLProf", note="its line GPU Utilization"),
        Column(
            "tensor cores, DLProf", note="share of kernel time in kernels that use tensor cores"
        ),
        Column(
            "occupancy",
            note="warps per SM / maximum warps, time-weighted mean over kernels (ncu)",
        ),
        Column(
            "tensor pipe",
            note="cycles with an active tensor pipe, time-weighted mean over kernels (ncu)",
        ),
        Column("host cores busy", note="cores that the run's processes kept busy in its steps"),
    ]
    rows = []
    for item in (run.ways for run in runs if run.ways.anything):
        shares = (
            item.kernels,
            item.nvml,
            item.dlprof,
            item.dlprof_tensor,
            item.occupancy,
            item.tensor_pipe,
        )
        cores = nothing(item.host_reason)
        if item.host_cores is not None:
            cores = Cell(
                significant(item.host_cores), item.host_reason, value=round(item.host_cores, 4)
            )
        rows.append([run_label(item.run), *map(usage_cell, shares), cores])
    return listing("GPU and CPU utilization", columns, rows)


def usage_cell(share: UsageShare) -> Cell:
    """With its span in the title. Below 0.1% it keeps five digits: one decimal of a percentage
    would be 0."""
    if share.value is None:
        return nothing(share.reason)
    value = round(share.value, 10)
    text = f"{value * 100:.5g}%" if 0 < value < 0.001 else percent(value)
    return Cell(
        text + (f", mean of {share.gpus} GPUs" if share.gpus > 1 else ""), share.reason, value=value
    )


def waits_tables(runs: Sequence[RunUsage], names: Mapping[str, str]) -> tuple[Table, ...]:
    """Causes of the time without a kernel, and the longest waits with the kernels around them."""
    found = [item for run in runs for item in run.idle if item.count]
    several = len({item.device for item in found}) > 1
    columns = [
        SHOWN_RUN,
        *([Column("device")] if several else []),
        Column("waits"),
        *(Column(cause, base="ns", note=_MEANING[cause]) for cause in CAUSES),
        Column("of", base="ns"),
    ]
    rows = [
        [
            run_label(item.run),
            *([text_cell(item.device)] if several else []),
            item.count,
            *(item.by_cause.get(cause, 0) for cause in CAUSES),
            item.window_ns,
        ]
        for item in found
    ]
    longest = [
        RUN,
        Column("wait", base="ns", order="descending"),
        Column("starts at", base="ns", note="on the clock of the report"),
        Column("cause", style="text"),
        Column("after", style="code"),
        Column("before", style="code"),
        Column(
            "range around the gap",
            style="code",
            note="innermost host range at the middle of the gap",
        ),
    ]
    waits = [
        [
            run_label(item.run),
            wait.length_ns,
            wait.start_ns,
            wait.cause,
            _kernel(wait.after, "the capture range begins here", names),
            _kernel(wait.before, "the capture range ends here", names),
            text_cell(wait.around) if wait.around else nothing("no open range"),
        ]
        for item in found
        for wait in item.largest
    ]
    tables = (
        listing("Time without a kernel, by cause", columns, rows),
        listing("The longest idle gaps of each run, ten at most", longest, waits),
    )
    return tuple(table for table in tables if table is not None)


def _kernel(kernel: Kernel | None, why: str, names: Mapping[str, str]) -> Cell:
    if kernel is None:
        return nothing(why)
    layer = f" ({kernel.layer} {kernel.direction or ''}".rstrip() + ")" if kernel.layer else ""
    return text_cell(names.get(kernel.name, kernel.name) + layer, kernel.name)


def memory_use_table(runs: Sequence[RunUsage]) -> Table | None:
    """A row a run: paper, torch's allocator, NVML, host."""
    columns = [
        SHOWN_RUN,
        Column("weights, estimated", base="B", note="elements of all parameters, 4 bytes each"),
        Column(
            "layer outputs, estimated",
            base="B",
            note="outputs of one forward pass: an upper bound of what is stored at the same time",
        ),
        Column("peak allocated", base="B", note="torch's allocator, in the measured steps"),
        Column(
            "peak reserved",
            base="B",
            note="the memory that the allocator reserved on the device for it",
        ),
        Column("process, NVML", base="B", note="with CUDA's context and the memory of libraries"),
        Column("device in use", base="B", note="used by all processes, highest sample"),
        Column("device", base="B"),
        Column(
            "host resident",
            base="B",
            note="of the computing process, as it recorded it; highest",
        ),
        Column(
            "host, all processes",
            base="B",
            note="resident memory of all the run's processes, sampled; highest",
        ),
    ]
    rows = []
    for item in (run.memory for run in runs):
        measured = (item.allocated, item.reserved, item.process, item.device)
        host = (item.host, item.host_all)
        if any(value is not None for value in (*measured, *host)):
            rows.append(
                (
                    run_label(item.run),
                    item.weights,
                    item.outputs,
                    *measured,
                    item.device_total,
                    *host,
                )
            )
    return listing("Memory: estimate, allocator and device", columns, rows)
