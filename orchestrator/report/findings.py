"""Findings in sentences: only what simple rules prove, each with the section of its evidence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from perfctl.orchestrator.counts.counters.amd import TOOLS, is_amd
from perfctl.orchestrator.counts.counters.sums import PIPE_TENSOR, metric, op
from perfctl.orchestrator.counts.counters.work import KernelFlops, makes_flops
from perfctl.orchestrator.counts.derived.run import coverage
from perfctl.orchestrator.counts.figure import total_of
from perfctl.orchestrator.ledger.analysis import Analysis
from perfctl.orchestrator.ledger.causes.timeline.judge import worst
from perfctl.orchestrator.ledger.ledger import (
    NO_STEPS,
    Ledger,
    LedgerRow,
    at_batch,
    beyond_time,
    explain_unattributed,
)
from perfctl.orchestrator.ledger.prepared import PreparedRun, Study
from perfctl.orchestrator.ledger.sweep import BatchPoint, unused_batch_finding
from perfctl.orchestrator.ledger.usage.readings import BUSY, busy_from, fits
from perfctl.orchestrator.ledger.usage.run_usage import Busy, RunUsage, range_totals
from perfctl.orchestrator.report.ledger.causes import Headline, headlines
from perfctl.orchestrator.report.ledger.keys import row_key, sweep_key
from perfctl.orchestrator.report.ledger.phases import (
    has_repeats,
    largest_parts,
    padding_findings,
    phases_of,
)
from perfctl.orchestrator.report.numbers import percent, si, size, time
from perfctl.orchestrator.report.page.columns import run_label
from perfctl.orchestrator.report.page.kernels import NO_FLOPS, PATHS
from perfctl.orchestrator.report.page.records import Finding
from perfctl.orchestrator.report.studies.inference_findings import inference_findings
from perfctl.orchestrator.report.tables import count
from perfctl.records.report import Kernel
from perfctl.records.run import Run

NAMED = 70
"""Characters of a range's name in a sentence."""
MUCH_IDLE = 0.2
"""Larger shares are explained by their causes: of time without a kernel, and of time that no
layer explains."""
_CAUSES = {
    "loading data": "spent loading data",
    "copy": "spent copying",
    "synchronising": "spent in synchronising calls",
    "launches one by one": "the time from one short kernel to the next",
    "host": "waiting for the host, which launched late or waited",
}
ONE_WAIT = 0.5
"""A wait with this share of the time without a kernel is named."""
MUCH = 0.05
"""A larger share of time that belongs to no layer gets a sentence."""
DERIVED_PARTS = "perfctl has no rule, or only a partial rule, for some kernels"
WORTH = 0.1
"""Share of the time outside of layers from which on a sentence names a cause."""
SHOWN = 6
"""Findings that are shown at once; the rest are listed under "more"."""
EVIDENCE = {
    "wrong window": "charts",
    "time does not follow": "times",
    "FADD alone": "derived",
    "other GPU": "parts",
    "more work in less time": "parts",
}
"""Sections that prove verdicts about the whole sweep, where the page has them; the ledger proves
the others."""

EXACT = 5e-4
"""Errors below this are shown as none."""

LAYER = 40
"""Characters of a layer's name in a sentence; the end says most."""

DEVICE = 34
"""A longer name of a device is left out of a sentence."""


def busy_findings(runs: Sequence[RunUsage]) -> Iterator[Finding]:
    """From which batch size on the GPU is busy, why it waits, and which batch fits."""
    if (since := busy_from([run.ways for run in runs])) is not None:
        batch, is_busy, share = since
        over = f", mean of {share.gpus} GPUs" if share.gpus > 1 else ""
        much = f"({percent(BUSY)} of the time or more)"
        where = (
            f"{much} from batch {batch} on"
            if is_busy
            else f"at no measured batch size {much}, up to batch {batch}"
        )
        who, verb = gpu_of([run.run for run in runs])
        at_this = f": {percent(share.value or 0)} there{over}"
        yield Finding(f"{who} {verb} busy {where}{at_this}.", "utilization")
    idle = [
        (sum(item.by_cause.values()) / item.window_ns, item)
        for run in runs
        for item in run.idle
        if item.window_ns
    ]
    idle_share, worst = max(idle, key=lambda pair: pair[0], default=(0.0, None))
    if worst is not None and idle_share >= MUCH_IDLE:
        cause, length = max(worst.by_cause.items(), key=lambda pair: pair[1])
        yield Finding(
            f"No kernel runs in {percent(idle_share)} of the {time(worst.window_ns)} {worst.window}"
            f"{at_batch(worst.run.batch_size)}. {time(length)} of these "
            f"{time(sum(worst.by_cause.values()))} is {_CAUSES[cause]}.",
            "utilization",
        )
    if held := fits([run.memory for run in runs]):
        yield Finding(
            f"Batch {held.batch:,} is the largest that fits into {size(held.limit)} (linear fit "
            f"to the reserved peaks of batches {', '.join(map(str, held.batches))}: "
            f"{size(held.fixed)} fixed plus {size(held.per_sample)} per sample).",
            "memory",
        )


def findings(found: Analysis) -> tuple[Finding, ...]:
    """Findings, the largest gaps and their reasons first, then warnings; empty when nothing
    stands out."""
    study, ledger = found.study, found.ledger
    if study.foreign:
        derived = any(batch.derived for batch in found.study.prepared_batches)
        others = without_layers(found.study.prepared_runs, found.names, derived=derived)
        return (
            *sorted((*_of_shapes(found), *others), key=lambda item: item.warning),
            *_failures(study),
        )
    return (
        *(Finding(text, "sweep") for text in unused_batch_finding(study)),
        *_gaps(found),
        *_largest_shares(ledger),
        *(inference_findings(study.runs) or _per_sample(found.points)),
        *_waits(found),
        *busy_findings([item.usage for item in found.study.prepared_runs]),
        *timeline_findings(found.study.prepared_runs),
        *_outside(found.study, ledger),
        *_refused(found),
        *_derived(found),
        *_not_counted(ledger),
        *_fewer_steps(study),
        *_failures(study),
    )


def _of_shapes(found: Analysis) -> Iterator[Finding]:
    """Findings of an existing report whose operators' shapes give estimated FLOPs."""
    if found.ledger.rows and found.study.on_paper:
        gaps, phases = _gaps(found), phases_of(found)
        yield from gaps
        yield from largest_parts(phases) if has_repeats(phases) else _largest_shares(found.ledger)
        lines = headlines(found.judgement, found.ledger)
        if not any("tile padding" in line.rules for line in lines):
            yield from padding_findings(phases)
        yield from _outside(found.study, found.ledger)
        yield from _refused(found)
        yield from _derived(found)
        # where a run's counts are missing as a whole, a warning of its own says so and what to do
        lacking = any(lacking_flops(run) is not None for run in found.study.prepared_runs)
        yield from _not_counted(found.ledger, told=lacking)


def _derived(found: Analysis) -> Iterator[Finding]:
    """That FLOPs are derived, for how much of the time, and how far their rules were verified."""
    run = next(
        (
            batch.derived
            for batch in reversed(found.study.prepared_batches)
            if batch.derived and not batch.counted
        ),
        None,
    )
    known = coverage((kernel for kernel, _ in run.launches), run.derived) if run else None
    if run is None or known is None:
        return
    text = (
        "perfctl derived the FLOPs from kernel names, grids and shapes, for "
        f"{percent(known.share)} of the kernel time"
    )
    if known.verified:
        part = "all" if known.verified > 0.999 else percent(known.verified)
        how = f"verified to {percent(known.within)}" if known.within > EXACT else "exact"
        text += f"; for {part} of it, the rules are {how} on {' and '.join(known.chips)}"
    else:
        text += "; no counter has verified the rules"
    yield Finding(f"{text}. Run 'perfctl ncu' to measure them.", "ledger")


def _largest_shares(ledger: Ledger) -> Iterator[Finding]:
    """The layer with the most time at both ends of the sweep, all its directions together; then
    which direction."""
    by_batch: dict[int, dict[str, list[LedgerRow]]] = defaultdict(lambda: defaultdict(list))
    for row in ledger.rows:
        if row.share is not None and row.trusted:
            by_batch[row.size][row.place].append(row)
    if not by_batch:
        return
    low, high = (
        max(by_batch[size].values(), key=_shared) for size in (min(by_batch), max(by_batch))
    )
    first, last = low[0], high[0]
    share, at_end, both = percent(_shared(low)), percent(_shared(high)), first.size != last.size
    who, other = (
        _layer("the optimizer" if row.place == "optimizer" else row.place) for row in (first, last)
    )
    if first.place == last.place:
        end = f", {at_end}{last.at}" if both else ""
        most = "is the most expensive layer" if first.layer else "takes the most time"
        text = f"{_upper(who)} {most}: {share} of the {first.whole}{first.at}{end}."
    else:
        text = f"{_upper(who)} takes the most time{first.at}: {share} of the {first.whole}."
        text += f" {_upper(other)} takes the most{last.at}: {at_end}."
    largest = [
        max(rows, key=lambda row: row.share or 0)
        for rows in ((low, high) if both else (low,))
        if len(rows) > 1
    ]
    if largest and first.place == last.place and len({row.direction for row in largest}) == 1:
        shares = " and ".join(percent(row.share or 0) for row in largest)
        at = largest[0].at if both and len(largest) == 1 else ""
        text += f" Its {largest[0].direction} pass takes {shares}{at}."
    elif largest:
        each = (
            f"{row.direction if first.place == last.place else row.name} with "
            f"{percent(row.share or 0)}{row.at}"
            for row in largest
        )
        whose = "Its" if first.place == last.place else "The"
        text += f" {whose} largest pass is {' and '.join(each)}."
    yield Finding(text, "ledger")


def _shared(rows: Iterable[LedgerRow]) -> float:
    """Share of a layer, its directions added up: each is a mean over the same whole."""
    return sum(row.share or 0 for row in rows)


def _layer(name: str) -> str:
    return name if len(name) <= LAYER else f"…{name[1 - LAYER :]}"


def _upper(text: str) -> str:
    """ "The optimizer"; names of layers stay as they are."""
    return f"T{text[1:]}" if text == "the optimizer" else text


def _per_sample(points: Sequence[BatchPoint]) -> Iterator[Finding]:
    timed = [point for point in points if point.per_sample and point.is_complete]
    if len(timed) < 2:
        return
    first, last = timed[0], timed[-1]
    assert (
        first.step
        and last.step
        and first.samples
        and last.samples
        and first.per_sample
        and last.per_sample
    )
    overlap = (
        first.step.low / first.samples <= last.step.high / last.samples
        and last.step.low / last.samples <= first.step.high / first.samples
    )
    factor = first.per_sample / last.per_sample
    between = (
        f"{time(first.per_sample)} at batch {first.batch}, {time(last.per_sample)} at batch "
        f"{last.batch}"
    )
    best = min(timed, key=lambda point: point.per_sample or 0)
    if 0.95 < factor < 1.05 and (best.per_sample or 0) > 0.9 * first.per_sample:
        yield Finding(f"Time per sample hardly changes with the batch size: {between}.", "sweep")
        return
    if best.batch not in (first.batch, last.batch):
        between += f". It is lowest at batch {best.batch} with {time(best.per_sample or 0)}"
    text = (
        f"{'falls' if factor > 1 else 'grows'} with the batch size by a factor of "
        f"{max(factor, 1 / factor):.1f}"
    )
    if overlap:
        text = "is too noisy to compare the smallest and the largest batch size"
    yield Finding(f"Time per sample {text}: {between}.", "sweep")


def _gaps(found: Analysis) -> list[Finding]:
    told = headlines(found.judgement, found.ledger)
    said = [
        Finding(
            item.sentence,
            next(
                (EVIDENCE[rule] for rule in item.rules if rule in EVIDENCE and item.place is None),
                "ledger",
            ),
            trail=_trail(item, found.ledger),
        )
        for item in told
    ]
    if not said and any(row.ratio for row in found.ledger.rows):
        derived = any(row.counted.state == "derived" for row in found.ledger.rows)
        what = "Derived FLOPs" if derived else "Executed FLOPs"
        text = (
            f"{what} are within 10% of the estimated FLOPs in every layer and pass where both are "
            "known."
        )
        return [Finding(text, "ledger")]
    return said


def _trail(item: Headline, ledger: Ledger) -> str | None:
    """Key of the trail that proves a headline."""
    if item.place is None:
        return sweep_key(item.rules[0]) if item.rules else None
    size, layer, direction = item.place
    row = next(
        row
        for row in ledger.rows
        if (row.size, row.layer, row.direction) == (size, layer, direction)
    )
    return row_key(row.place, row.direction, row.batch)


def _waits(found: Analysis) -> Iterator[Finding]:
    waiting = [
        point.traffic
        for point in found.roofline.at("run")
        if point.bound == "launch" and point.traffic.busy
    ]
    if waiting:
        worst = min(waiting, key=lambda work: work.busy or 0)
        who, verb = gpu_of([item.run for item in found.study.prepared_runs])
        waits = "It waits" if verb == "is" else "They wait"
        share = percent(worst.busy or 0)
        text = (
            f"{who} {verb} busy for only {share} of a step at batch {worst.batch} (median). "
            f"{waits} for kernel launches."
        )
        if len(waiting) > 1:
            text += f" The share is below half of the step at {len(waiting)} batch sizes."
        yield Finding(text, "roofline")


def _refused(found: Analysis) -> Iterator[Finding]:
    over = [point for point in found.roofline.above_kernels if point.over == "peak"]
    if over:
        more = f" The same applies to {len(over) - 1} more rows." if len(over) > 1 else ""
        yield Finding(
            f"perfctl refuses {over[0].traffic.name}: {over[0].refused}.{more}",
            "roofline",
            warning=True,
        )


def _outside(study: Study, ledger: Ledger) -> Iterator[Finding]:
    worst = max(ledger.unattributed, key=lambda item: item.share, default=None)
    if worst is None or worst.share <= MUCH:
        return
    run, said = study.at(worst.batch).timing, []
    for cause in explain_unattributed(run) if run else ():
        if cause.share >= WORTH:
            often = (
                f", {cause.launches:,} {'launch' if cause.launches == 1 else 'launches'}"
                if cause.launches
                else ""
            )
            said.append(f"{cause.text} ({percent(cause.share * worst.share)}{often})")
    mostly = (
        f": mostly {' and '.join(filter(None, (', '.join(said[:-1]), said[-1])))}" if said else ""
    )
    beyond = "".join(
        f" This time does not include all kernels: {reason}."
        for reason in (beyond_time(run.run) if run else ())
    )
    text = (
        f"{percent(worst.share)} of the {worst.whole}{at_batch(worst.batch)} is not attributed to "
        f"a layer{mostly}.{beyond}"
    )
    yield Finding(text, "ledger")


def _not_counted(ledger: Ledger, *, told: bool = False) -> Iterator[Finding]:
    """``told``: another warning says that nothing was counted."""
    if not ledger.rows:
        return
    yield from _not_on_paper(ledger)
    bounds = [row for row in ledger.rows if row.counted.lower_bound and row.paper.value]
    if not ledger.any_counted and told:
        return
    if not ledger.any_counted:
        reasons = sorted({row.counted.reason for row in ledger.rows if row.counted.reason})
        said = "; ".join(reasons[:2])
        text = (
            f"{said}. perfctl therefore cannot compute FLOPs per step or a ratio."
            if said.endswith(NO_STEPS)
            else f"There are no executed FLOPs: {said}."
        )
        yield Finding(text, "gaps", warning=True)
    elif any(row.counted.state == "derived" for row in ledger.rows):
        if bounds:
            names = _few(sorted({row.name for row in bounds}))
            text = f"The derived FLOPs of {names} are lower bounds: {DERIVED_PARTS}."
            yield Finding(text, "gaps", warning=True)
    else:
        names_by_reason: defaultdict[str, set[str]] = defaultdict(set)
        for row in bounds:
            for reason in row.counted.lacking or ("some launches have no counters",):
                names_by_reason[reason].add(row.name)
        for reason, named in names_by_reason.items():
            text = f"The executed FLOPs of {_few(sorted(named))} are lower bounds: {reason}."
            yield Finding(text, "gaps", warning=True)


def _fewer_steps(study: Study) -> Iterator[Finding]:
    for run in study.runs:
        for gap in run.report.gaps if run.status == "ok" else ():
            if gap.quantity == "step" and gap.state == "not_collected":
                yield Finding(f"{run_label(run)}: {gap.reason.rstrip('.')}.", "gaps", warning=True)


def _not_on_paper(ledger: Ledger) -> Iterator[Finding]:
    """Rows that run an operation without a formula, with the operations' names."""
    rows = [row for row in ledger.rows if any(call.flops is None for call in row.calls)]
    names = dict.fromkeys(
        call.kind or "an operation" for row in rows for call in row.calls if call.flops is None
    )
    if rows:
        what, where = (
            _few(list(found)) for found in (names, dict.fromkeys(row.name for row in rows))
        )
        states = {"lower bounds" if row.paper.lower_bound else "unknown" for row in rows}
        said = f"they do not include {what}"
        yield Finding(
            f"The estimated FLOPs of {where} are {' or '.join(sorted(states))}: {said}.",
            "gaps",
            warning=True,
        )


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _failures(study: Study) -> Iterator[Finding]:
    same: dict[tuple[str, str, str], list[int | None]] = defaultdict(list)
    for run in study.runs:
        if run.status != "ok":
            reason = (run.reason or "no reason was recorded").rstrip(".")
            same[run.profiler, run.status, reason].append(run.batch_size)
    for (profiler, status, reason), batches in same.items():
        known = [str(batch) for batch in batches if batch is not None]
        at = f" at batch {', '.join(known)}" if known else ""
        verb = "failed" if status == "failed" else f"{'are' if len(batches) > 1 else 'is'} {status}"
        runs = "runs" if len(batches) > 1 else "run"
        who = f"{runs} without a profiler" if profiler == "none" else f"{profiler} {runs}"
        yield Finding(f"The {who}{at} {verb}: {reason}.", "runs", warning=True)


def without_layers(
    runs: Sequence[PreparedRun], names: Mapping[str, str], *, derived: bool = False
) -> tuple[Finding, ...]:
    """Findings, then warnings, of runs without layers. ``derived``: their FLOPs are known without
    counters; ``names``: short kernel names."""
    found: list[Finding] = []
    for prepared in runs:
        run = prepared.run
        if not run.report.kernels:
            gap = next(
                (gap for gap in run.report.gaps if gap.quantity in ("kernel", "kernels")), None
            )
            if gap:
                text = f"{run_label(run)} has no kernels: {gap.reason.rstrip('.')}."
                found.append(Finding(text, "gaps", warning=True))
            continue
        found += [*_largest(run, names), *_executed(run, prepared.flops, names), *_moved(prepared)]
        found += [
            *_busy(prepared, names),
            *timeline_findings([prepared]),
            *_ranges(run),
            *_copies(run),
            *_missing(prepared, derived=derived),
        ]
    return tuple(sorted(found, key=lambda item: item.warning))


def _launches(number: int) -> str:
    return "1 launch" if number == 1 else f"{count(number).text} launches"


def _largest(run: Run, names: Mapping[str, str]) -> Iterator[Finding]:
    groups: dict[str, list[Kernel]] = defaultdict(list)
    for kernel in run.report.kernels:
        if kernel.duration_ns is not None:
            groups[kernel.name].append(kernel)
    times = {name: sum(kernel.duration_ns or 0 for kernel in same) for name, same in groups.items()}
    total = sum(times.values())
    if not total:
        return
    name = max(times, key=lambda name: times[name])
    took, often, spoken = time(times[name]), _launches(len(groups[name])), names.get(name, name)
    clock = " This time is under ncu, at locked clocks." if run.profiler == "ncu" else ""
    if len(times) == 1:
        yield Finding(f"{spoken} is the only kernel: {often}, {took}.{clock}", "kernels")
    else:
        share = percent(times[name] / total)
        yield Finding(
            f"{spoken} takes {share} of the kernel time ({took}, {often}).{clock}", "kernels"
        )


def _executed(
    run: Run, flops: dict[int, KernelFlops], names: Mapping[str, str]
) -> Iterator[Finding]:
    groups: dict[str, list[KernelFlops]] = defaultdict(list)
    for kernel in run.report.kernels:
        groups[kernel.name].append(flops.get(kernel.launch, NO_FLOPS))
    sums = {name: total_of(item.total for item in same) for name, same in groups.items()}
    known = {name: figure for name, figure in sums.items() if figure.value}
    if not known:
        if all(figure.value == 0 and not figure.lower_bound for figure in sums.values()):
            yield Finding("The counters recorded no floating-point operations.", "kernels")
        return
    name, figure = max(known.items(), key=lambda item: item[1].value or 0)
    paths = {path: total_of(getattr(item, path) for item in groups[name]) for path in PATHS}
    path, part = max(paths.items(), key=lambda item: item[1].value or 0)
    share = (part.value or 0) / (figure.value or 1)
    most = "" if len(groups) == 1 else ", the most of all kernels"
    which = f"All of it is {path}" if share == 1 else f"{percent(share)} of it is {path}"
    about = ("at least " if figure.lower_bound else "") + {
        "estimated": "about ",
        "derived": "by its rule ",
    }.get(figure.state, "")
    amount, often = f"{about}{si(figure.value or 0)}FLOP", _launches(len(groups[name]))
    rule = f" (approximate: {part.reason})" if part.state == "estimated" and part.reason else ""
    yield Finding(
        f"{names.get(name, name)} executed {amount} in {often}{most}. {which}{rule}.", "kernels"
    )


def _moved(run: PreparedRun) -> Iterator[Finding]:
    """HFMA and tensor instructions that only move constants, and are in no count."""
    launches = [
        launch
        for launch, item in run.flops.items()
        if item.fp16.value is not None and item.fp16.only_moves_constants
    ]
    if launches:
        halves = sum(int(metric(run.values[launch], op("hfma")) or 0) for launch in launches)
        pipe = sum(int(metric(run.values[launch], PIPE_TENSOR) or 0) for launch in launches)
        yield Finding(
            f"{count(halves).text} HFMA and {count(pipe).text} tensor instructions in "
            f"{_launches(len(launches))} only moved constants. They are no arithmetic, and the "
            "executed FLOPs do not include them.",
            "kernels",
        )


def _busy(prepared: PreparedRun, names: Mapping[str, str]) -> Iterator[Finding]:
    """How much of the time the GPU ran kernels, over the span of the table it leads to."""
    found = [item for item in prepared.usage.busy if item.stream is None and item.share is not None]
    if not found:
        return
    low, high = (pick(found, key=lambda item: item.running_ns) for pick in (min, max))
    length, span = time(low.window_ns), low.window
    if len(found) == 1:
        who, _ = gpu_of([prepared.run], low.device)
        text = (
            f"{who} ran kernels for {percent(low.share or 0)} of the time {span}: "
            f"{time(low.running_ns)} of {length}.{_one_wait(prepared, low, names)}"
        )
    else:
        text = (
            f"{len(found)} GPUs ran kernels for {percent(low.share or 0)} (GPU {low.device}) to "
            f"{percent(high.share or 0)} (GPU {high.device}) of the {length} {span}."
        )
    yield Finding(text, "utilization")


def _one_wait(prepared: PreparedRun, busy: Busy, names: Mapping[str, str]) -> str:
    """What lies between the kernels where one wait is most of the time without any;
    "" elsewhere."""
    idle = next(
        (item for item in prepared.usage.idle if item.device == busy.device and item.largest), None
    )
    longest = idle.largest[0] if idle is not None else None
    without = busy.window_ns - busy.running_ns
    if (
        longest is None
        or without < MUCH_IDLE * busy.window_ns
        or longest.length_ns < ONE_WAIT * without
    ):
        return ""
    rest = busy.window_ns - longest.length_ns
    after, before = (
        f"{names.get(kernel.name, kernel.name)}" if kernel else None
        for kernel in (longest.after, longest.before)
    )
    ends = f" from {after} to {before}" if after and before else ""
    around = f", while the host was in {_middle(longest.around)}" if longest.around else ""
    return (
        f" One idle gap takes {time(longest.length_ns)}{ends}{around}; without it, kernels ran "
        f"for {percent(busy.running_ns / rest)} of {time(rest)}."
    )


def gpu_of(runs: Iterable[Run], index: int | None = None) -> tuple[str, str]:
    """("The NVIDIA A100-SXM4-80GB", "is"): the GPU of these runs as a sentence begins; "The GPU"
    where none names it, "The GPUs" where there are several. ``index``: of the one that is meant."""
    gpus = [device for run in runs for device in run.devices if device.kind == "gpu"]
    meant = [device for device in gpus if index is not None and device.index == index]
    named = {device.name or "" for device in meant or gpus}
    if len(named) > 1:
        return "The GPUs", "are"
    name = next(iter(named), "")
    return (f"The {name}" if 0 < len(name) <= DEVICE else "The GPU"), "is"


def timeline_findings(runs: Sequence[PreparedRun]) -> Iterator[Finding]:
    """What could be faster by the timeline of the run where it costs most, and what to do."""
    for said, run in worst([prepared.run for prepared in runs]):
        at = f" ({run_label(run)})" if len(runs) > 1 else ""
        yield Finding(f"{said.sentence.removesuffix('.')}{at}. {said.todo}", "utilization")


def _ranges(run: Run) -> Iterator[Finding]:
    """The range that launched most GPU time, beside the time that the host was in it."""
    timed = [item for item in range_totals(run) if item.gpu_ns]
    if timed:
        top = max(timed, key=lambda item: item.gpu_ns or 0)
        often = "" if top.times == 1 else f" in {count(top.times).text} times"
        yield Finding(
            f"Range {_middle(top.name)} launched the most GPU time: "
            f"{time(top.gpu_ns or 0)}{often}. The host spent {time(top.host_ns)} in it.",
            "ranges",
        )


def _middle(name: str) -> str:
    return name if len(name) <= NAMED else f"{name[: NAMED // 2]}…{name[1 - NAMED // 2 :]}"


def _copies(run: Run) -> Iterator[Finding]:
    """Copies and memsets against kernels; both are sums, so overlapping time is in both."""
    timed = [item for item in run.report.copies if item.duration_ns is not None]
    kernels = sum(kernel.duration_ns or 0 for kernel in run.report.kernels)
    if timed and kernels:
        took = sum(item.duration_ns or 0 for item in timed)
        moved = [item.bytes for item in timed if item.bytes is not None]
        bytes_ = f" for {size(sum(moved))}" if len(moved) == len(timed) else ""
        often = (
            "1 copy or memset"
            if len(timed) == 1
            else f"{count(len(timed)).text} copies and memsets"
        )
        share = percent(took / (took + kernels))
        text = (
            f"{often} took {time(took)}{bytes_}: {share} of the summed time of copies and kernels."
        )
        yield Finding(f"{text}{_before_kernels(run, took)}", "ranges")


def _before_kernels(run: Run, took: int) -> str:
    """How much of the copies' time is outside of the span of kernels, which what the GPU did with
    the time is of."""
    starts = [kernel.start_ns for kernel in run.report.kernels if kernel.start_ns is not None]
    if not starts or any(copy.start_ns is None for copy in run.report.copies):
        return ""
    first = min(starts)
    before = sum(
        copy.duration_ns or 0 for copy in run.report.copies if (copy.start_ns or 0) < first
    )
    if before < took / 10:
        return ""
    much = "All" if before == took else "Most" if before > took / 2 else "Part"
    return f" {much} of this time is before the first kernel."


def _missing(prepared: PreparedRun, *, derived: bool) -> Iterator[Finding]:
    report, kernels = prepared.run.report, list(prepared.run.report.kernels)
    timed = sum(kernel.duration_ns is not None for kernel in kernels)
    if timed < len(kernels):
        gap = next((gap for gap in report.gaps if gap.quantity == "kernel.duration_ns"), None)
        which = (
            "No launch has"
            if timed == 0
            else f"Only {count(timed).text} of {_launches(len(kernels))} have"
        )
        why = f": {gap.reason.rstrip('.')}" if gap else ""
        yield Finding(f"{which} a duration{why}.", "gaps", warning=True)
    lacking = lacking_flops(prepared)
    if lacking is not None and not derived:
        state, why = lacking
        what = {
            "lower bound": "Executed FLOPs are lower bounds",
            "not collected": "No FLOP counts",
        }.get(state)
        yield Finding(f"{what or f'Executed FLOPs are {state}'}: {why}.", "gaps", warning=True)


def lacking_flops(prepared: PreparedRun) -> tuple[str, str] | None:
    """(state in words, why) of FLOP counts that are not whole; None when they are, or when there is
    no kernel."""
    run = prepared.run
    if not run.report.kernels:
        return None
    counts = any(makes_flops(counter.name) for counter in run.report.counters)
    if is_amd(run) and not counts:
        what = (
            "the run collected no counter for FLOPs"
            if run.profiler in TOOLS
            else f"{run.profiler} does not record them"
        )
        return (
            "not collected",
            f"{what}. Run rocprofv3 --pmc with the SQ_INSTS_VALU counters",
        )
    if run.profiler != "ncu" and not (is_amd(run) and counts):
        return "not collected", f"{run.profiler} does not record them. Run perfctl ncu"
    each = [prepared.flops.get(kernel.launch, NO_FLOPS) for kernel in run.report.kernels]
    whole = total_of(item.total for item in each)
    if whole.value is None:
        return whole.state.replace("_", " "), whole.reason or "no reason was recorded"
    parts = []
    if whole.launches < whole.of_launches:
        parts.append(
            f"{whole.of_launches - whole.launches} of {_launches(whole.of_launches)} have no count"
        )
    if whole.missing:
        parts.append(_lacking(each))
    return ("lower bound", "; ".join(parts)) if parts else None


def _lacking(flops: Sequence[KernelFlops]) -> str:
    """ "tensor counters were not collected; ...": the first reason of each path that some total
    is without."""
    reasons: dict[str, str] = {}
    for item in flops:
        for path in item.total.missing if item.total.value is not None else ():
            reason = (
                getattr(getattr(item, path, None), "reason", None) or f"{path} was not collected"
            )
            reasons.setdefault(path, reason if reason.startswith(path) else f"{path}: {reason}")
    return "; ".join(reasons.values())
