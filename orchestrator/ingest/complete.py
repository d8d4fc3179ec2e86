"""Complete a report by all that is known besides its file; nothing else adds to it between its
parser and the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from perfctl import parsers
from perfctl.orchestrator.counts.kernels.repeats import read_first_pass, with_repeats
from perfctl.orchestrator.estimate.flops import engine
from perfctl.orchestrator.ingest.context import Context, Estimate, OwnRun
from perfctl.orchestrator.launch.sweep.folders import read_json
from perfctl.orchestrator.ledger.usage.ranks import with_exposed
from perfctl.parsers import ReportError
from perfctl.records.paper import LayerCall
from perfctl.records.report import Device, Diagnostic, Gap, Report

_INT64 = 1 << 63


def complete(report: Report, context: Context) -> Report:
    """Return the report with what its run left beside it, or else with what the user and its name
    say; and with what of each collective's time nothing covers.

    Needs torch where layers are to be guessed. Raises PerfctlError for a workload that is not
    known.
    """
    if context.run is not None:
        return _add_exposed_time(_add_run(report, context.run))
    report = _add_exposed_time(report)
    report = _add_name_and_hints(report, context)
    if context.estimate is not None:
        report = _add_guessed_layers(report, context.estimate)
    return report


def mark_rank(variant: str | None, rank: int, world_size: int | None) -> str:
    """Return the variant with "rank 0 of 8" in it, which keeps ranks apart from each other and from
    runs of one process."""
    mark = f"rank {rank}" if world_size is None else f"rank {rank} of {world_size}"
    return f"{variant}, {mark}" if variant else mark


def _add_name_and_hints(report: Report, context: Context) -> Report:
    """Return the report with facts that the user gave, else its name; each is noted."""
    hints, name = context.hints, context.name
    changes: dict[str, Any] = {
        field: value
        for field in ("batch_size", "workload", "mode", "precision")
        if (value := getattr(hints, field)) is not None
    }
    notes = [f"{field} was given by the user" for field in changes]
    gaps = []
    if report.batch_size is None and hints.batch_size is None:
        if name.batch_size is not None:
            changes["batch_size"] = name.batch_size
            notes.append(f"batch_size {name.batch_size} was read from the name {context.path.name}")
        else:
            gaps.append(Gap("batch_size", "not_available", _why_no_batch_size(report)))
    if report.rank is None and name.rank is not None:
        changes |= {"rank": name.rank, "world_size": report.world_size or name.world_size}
    rank = changes.get("rank", report.rank)
    if rank is not None:
        world_size = changes.get("world_size", report.world_size)
        changes["variant"] = mark_rank(report.variant, rank, world_size)
    # Where there is a GPU it did the work, wherever the report lists it.
    devices = sorted(report.devices, key=lambda device: device.kind != "gpu")
    if hints.device_name is not None:
        first, *rest = devices or [Device(None, "gpu")]
        devices = [replace(first, name=hints.device_name), *rest]
        notes.append("device name was given by the user")
    is_told = any(gap.quantity == "source_counter" for gap in report.gaps)
    lacks_source = hints.source and report.tool != "workload" and not report.source_counters
    if lacks_source and not is_told:
        why = "only .ncu-rep files hold counters of each instruction"
        gaps.append(Gap("source_counter", "not_available", why))
    noted = [Diagnostic("info", "perfctl ingest", note) for note in notes]
    return replace(
        report,
        devices=tuple(devices),
        diagnostics=(*report.diagnostics, *noted),
        gaps=(*report.gaps, *gaps),
        **changes,
    )


def _why_no_batch_size(report: Report) -> str:
    steps = list(report.served_steps)
    if steps and all(step.prompts is not None and step.decodes is not None for step in steps):
        return (
            "the steps state their sequences (table served_step), and the file no batch size of "
            "the whole run"
        )
    return "the file does not say; give it with perfctl ingest --batch"


def _add_exposed_time(report: Report) -> Report:
    """Return the report with what of each collective's time no other kernel covers, where its
    kernels can be read again."""
    collectives = list(report.collectives)
    if collectives and isinstance(report.kernels, Sequence):
        collectives = with_exposed(collectives, report.kernels)
    return replace(report, collectives=collectives)


def _add_guessed_layers(report: Report, estimate: Estimate) -> Report:
    """Return the report with layers, directions and steps guessed, and the shapes they were guessed
    from; else with a gap."""
    if report.workload is None or report.batch_size is None:
        reason = (
            "no layers were guessed: workload or batch size unknown; use perfctl ingest --workload "
            "NAME --batch N"
        )
        return replace(report, gaps=(*report.gaps, Gap("kernel.layer", "not_available", reason)))
    from perfctl.orchestrator.counts.kernels.guess_layers import guess

    mode = report.mode or "train"
    ops, calls = estimate(report.workload, mode, report.batch_size)
    made = guess(report.kernels, calls)
    report = replace(report, kernels=made.kernels, gaps=(*report.gaps, *made.gaps))
    return replace(report, ops=report.ops or tuple(ops), mode=mode) if made.guessed else report


def _add_run(report: Report, run: OwnRun) -> Report:
    """Return the report with what perfctl's own run left beside it, and with gaps for what it was
    told to leave out."""
    if run.record is not None:
        report = _merge(report, run.record)
    gaps = []
    if run.samples is not None:
        try:
            samples = parsers.parse(run.samples)
        except ReportError as error:
            gaps.append(Gap("sample", "unreadable", str(error)))
        else:
            report = replace(
                report,
                samples=samples.samples,
                summaries=(*report.summaries, *samples.summaries),
                gaps=(*report.gaps, *samples.gaps),
                diagnostics=(*report.diagnostics, *samples.diagnostics),
            )
    if run.launches is not None:
        try:
            report = with_repeats(report, read_first_pass(read_json(run.launches) or {}))
        except (KeyError, TypeError, ValueError):
            why = (
                f"{run.launches.name} cannot be read: the launches that repeat another are left out"
            )
            gaps.append(Gap("counter", "unreadable", why))
    environment = {**report.environment, **run.environment}
    if environment.get("ncu:not_replayed"):
        why = (
            "kernels that wait for other GPUs (NCCL and the like) were left out: a replay of one "
            "would never end"
        )
        gaps.append(Gap("collective", "not_collected", why))
    return replace(report, environment=environment, gaps=(*report.gaps, *gaps, *run.gaps))


def _merge(report: Report, record: Report) -> Report:
    """Return a profiler's report completed by what the profiled process itself recorded."""
    version = record.environment.get("torch") if report.tool == "torch" else None
    facts = ("workload", "variant", "batch_size", "mode", "precision")
    known = ("rank", "world_size", "host", "phase", "effective_batch")
    return replace(
        report,
        tool_version=report.tool_version or version,
        devices=_merge_devices(report.devices, record.devices),
        environment={**report.environment, **record.environment},
        steps=record.steps or report.steps,
        memory=(*report.memory, *record.memory),
        summaries=(*report.summaries, *record.summaries),
        ops=record.ops,
        gaps=(*report.gaps, *record.gaps),
        **{name: getattr(record, name) for name in facts},
        **{name: value for name in known if (value := getattr(record, name)) is not None},
    )


def _merge_devices(seen: tuple[Device, ...], used: tuple[Device, ...]) -> tuple[Device, ...]:
    """Return the device that the workload used, with facts that only the profiler knew, and the
    others behind it."""
    if not used or not seen:
        return used or seen
    first = used[0]
    same = next(
        (device for device in seen if (device.kind, device.index) == (first.kind, first.index)),
        None,
    )
    if same is None:
        return used
    missing = {
        field: value for field, value in asdict(same).items() if getattr(first, field) is None
    }
    return (replace(first, **missing), *(device for device in seen if device is not same))


def estimate_calls(path: Path, report: Report) -> tuple[LayerCall, ...]:
    """Return the FLOPs on paper of the shapes in a report. Raises ReportError where the shapes make
    no sense."""
    try:
        calls = engine.estimate(report.ops)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        reason = f"the shapes in it make no sense ({type(error).__name__}: {error})"
        raise ReportError(path, report.tool, reason, "Run this batch size again") from error
    for call in calls:
        if call.flops is not None and call.flops >= _INT64:
            reason = (
                f"{call.layer} {call.direction}: its shapes give more FLOPs than any program runs"
            )
            remedy = "The file is damaged, or no trace of a program"
            raise ReportError(path, report.tool, reason, remedy)
    return calls
