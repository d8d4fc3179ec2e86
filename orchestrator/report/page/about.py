"""The basis of a study: its runs, their environment, gaps, messages of the tools, commands to
repeat it."""

from __future__ import annotations

import re
import shlex
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from perfctl.orchestrator.counts.hardware.peaks import find_recorded_gpu
from perfctl.orchestrator.counts.kernels.pairing import describe_unpaired, pair_launches
from perfctl.orchestrator.ledger.ledger import Ledger
from perfctl.orchestrator.ledger.prepared import Study, get_device_label
from perfctl.orchestrator.ledger.usage.phase_layers import split_serving_phases_by_model_part
from perfctl.orchestrator.ledger.usage.served import find_constant_sequences_per_step
from perfctl.orchestrator.report.findings import (
    PARTLY_DERIVED,
    SHOWN,
    explain_incomplete_flops,
)
from perfctl.orchestrator.report.page import usage
from perfctl.orchestrator.report.page.records import Finding
from perfctl.orchestrator.report.tables import (
    RUN,
    Cell,
    Column,
    Table,
    build_table_hiding_empty_columns,
    count_cell,
    missing_cell,
    name_column,
    run_label,
    text_cell,
    text_column,
    text_columns,
    time_column,
)
from perfctl.orchestrator.report.view import Section, View
from perfctl.records.report import join_first_names
from perfctl.records.run import Run, format_sweep_point

ORIGINS = {
    "measured": "measured by perfctl",
    "ingested": "an existing report, ingested",
    "recorded": "recorded: replayed from an earlier capture, not measured now",
    "transcribed": "transcribed: copied by hand from a publication, not measured by perfctl",
    "synthetic": "synthetic: generated for tests or a demonstration, not measured",
}

CAUTIONED = ("recorded", "synthetic", "transcribed")
"""Origins about which a run group warns above its numbers."""

_NAMED_PARTS = {
    "flops": "FLOPs",
    "cudnn": "cuDNN version",
    "duration_ns": "duration",
    "power_w": "power",
    "temperature_c": "temperature",
    "sm_clock_hz": "SM clock",
    "memory_clock_hz": "memory clock",
    "gpu_utilisation": "GPU utilization",
    "process_utilisation": "GPU use of the process",
    "self_cpu_ns": "CPU time without children",
}
"""Columns of the database in words, if a reader would stumble over their names."""
_NUMBER = re.compile(r"_\d+(?= |$)")
_COUNT = re.compile(r"(?<![\w.%(])\d[\d,]*(?= (?:rows|values|launches)\b)")
"""Numbers in which reasons may differ that are otherwise one."""
_UNIT = re.compile(r"_(?:w|c|hz)\b")
"""Unit at the end of the name of a quantity."""
QUANTITIES = 3
"""Missing values of the same reason that are named; the others are counted."""
Missing = tuple[str, str, str, str]
"""(quantity, reason, what it concerns, the runs that lack it)."""


def find_first_run_date(runs: Sequence[Run]) -> str:
    """Return the day of the first run; "" if none is known."""
    return min((run.started_at for run in runs if run.started_at), default="")[:10]


def describe_study_device(study: Study) -> str | None:
    """Return the name of the study's device; of a GPU without a name its memory, if a record has
    it."""
    if any(device.name for run in study.runs for device in run.devices):
        return study.device
    observed_gpu = next(
        (gpu for run in study.runs if (gpu := find_recorded_gpu(run)) is not None), None
    )
    if observed_gpu is None:
        return "GPU without a name" if study.device == "gpu" else study.device
    return f"{observed_gpu} without a name".removeprefix("a ")


def list_study_facts(study: Study) -> dict[str, str | None]:
    """Return what a run group is; None or "" for what its runs do not state."""
    runs = study.runs
    capability = next((device.compute_capability for device in runs[0].devices[:1]), None)
    chip = f" ({'' if capability.startswith('gfx') else 'CC '}{capability})" if capability else ""
    sequences = {find_constant_sequences_per_step(run) for run in runs}
    in_each_step = sequences.pop() if len(sequences) == 1 else None
    return {
        "report": runs[0].report.form if study.is_foreign else None,
        "modules": next(filter(None, map(usage.describe_kernel_time_module_coverage, runs)), None),
        "phases": next(filter(None, map(usage.explain_unknown_prefill_decode, runs)), None),
        "device": f"{describe_study_device(study) or 'not recorded'}{chip}",
        "batch": " ".join(map(str, study.batches)),
        "sequences": f"{in_each_step:,} in each step" if in_each_step is not None else None,
        "parameters": "; ".join(
            dict.fromkeys(run.other_parameters_text for run in runs if run.other_parameters_text)
        ),
        "tools": describe_profiler_versions(runs),
    }


def build_runs_table(study: Study) -> Table | None:
    """Every run of the study, failed ones too."""
    columns = [
        Column("run", order="ascending"),
        text_column("profiler"),
        Column("batch"),
        text_column("status"),
        text_column("device"),
        text_column("started"),
        time_column("duration"),
        text_column("origin"),
        text_column("host"),
        name_column("report"),
        name_column("sha256"),
    ]
    rows = [
        [
            text_cell(run.id),
            f"{run.profiler} {run.profiler_version or ''}".strip(),
            count_cell(run.batch_size, "the report does not state it"),
            "ok"
            if run.status == "ok"
            else Cell(
                f"{run.status}: {run.reason or 'no reason was recorded'}",
                style="bad",
                value=run.status,
            ),
            get_device_label(run),
            (run.started_at or "")[:16].replace("T", " "),
            run.duration_ns,
            text_cell(run.origin, ORIGINS.get(run.origin)),
            run.host,
            run.artifact and text_cell(run.artifact),
            Cell(run.artifact_sha256[:12], run.artifact_sha256, value=run.artifact_sha256)
            if run.artifact_sha256
            else missing_cell("perfctl kept no report"),
        ]
        for run in study.runs
    ]
    return build_table_hiding_empty_columns("Runs", columns, rows)


def list_shared_environment_facts(runs: Sequence[Run]) -> tuple[tuple[str, str], ...]:
    """Return (fact, value) on which every run that recorded it agrees."""
    facts = _collect_environment_values(
        runs, ("host", "nsys version", "ncu version", "torch version", "dlprof version")
    )
    return tuple((fact, next(iter(values))[:500]) for fact, values in facts if len(values) == 1)


def build_environment_differences_table(runs: Sequence[Run]) -> Table | None:
    """Facts that differ between the runs, a row a value; None when none does."""
    rows = [
        [fact, value[:500], join_first_names(labels, 8)]
        for fact, values in _collect_environment_values(runs)
        if len(values) > 1
        for value, labels in values.items()
    ]
    return build_table_hiding_empty_columns(
        "Differences between the runs", text_columns("fact", "value", "runs"), rows
    )


def _collect_environment_values(
    runs: Sequence[Run], omitted_facts: Collection[str] = ()
) -> list[tuple[str, dict[str, dict[str, None]]]]:
    """Return (fact, value -> the runs that recorded it), without those that the list of runs has
    if they are ``omitted_facts``."""
    values: dict[str, dict[str, dict[str, None]]] = defaultdict(lambda: defaultdict(dict))
    for run in runs:
        tool = {f"{run.profiler} version": run.profiler_version, "host": run.host}
        for fact, value in (tool | run.report.environment).items():
            if value is not None and fact not in omitted_facts:
                values[fact][value][run_label(run)] = None
    return sorted(values.items())


def build_missing_values_table(study: Study, ledger: Ledger) -> Table | None:
    """Return what the runs of a study do not have, a row for each reason; None if nothing is
    missing."""
    by_reason = defaultdict(list)
    for quantity, reason, concerns, label in (
        *_list_reported_missing_values(study.runs),
        *_list_missing_ledger_figures(study, ledger),
        *_list_missing_busy_flops_and_pairs(study),
    ):
        stated = reason.removeprefix(f"{quantity.removesuffix(' table')}: ")
        kind = _COUNT.sub("#", stated), label
        by_reason[kind].append((quantity, stated, concerns, label))
    run_column = [text_column("run")] if len(study.runs) > 1 else []
    columns = [
        *text_columns("missing", "reason"),
        text_column("concerns", is_optional=True),
        *run_column,
    ]
    rows = [
        [
            join_first_names(dict.fromkeys(quantity for quantity, *_ in same), QUANTITIES),
            _merge_reasons_differing_in_numbers([reason for _, reason, *_ in same]),
            "; ".join(dict.fromkeys(filter(None, (concerns for _, _, concerns, _ in same))))
            or missing_cell("the complete run"),
            *(label for _ in run_column),
        ]
        for (_, label), same in by_reason.items()
    ]
    caption = f"Not in {'this run' if len(study.runs) == 1 else 'these runs'}"
    return build_table_hiding_empty_columns(caption, columns, rows)


def _merge_reasons_differing_in_numbers(reasons: Sequence[str]) -> str:
    """Return reasons that differ in their numbers as one, with the range of each number."""
    columns = zip(*(_COUNT.findall(reason) for reason in reasons), strict=True)
    ranges = [
        sorted(set(column), key=lambda text: int(text.replace(",", ""))) for column in columns
    ]
    texts = iter(" to ".join(dict.fromkeys((every[0], every[-1]))) for every in ranges)
    return _COUNT.sub(lambda _: next(texts), reasons[0])


def _list_reported_missing_values(runs: Sequence[Run]) -> Iterator[Missing]:
    """Yield what the reports themselves state."""
    labels: dict[tuple[str, str, str], dict[str, None]] = defaultdict(dict)
    for run in runs:
        for gap in run.report.gaps:
            if gap.quantity == "batch_size" and run.other_parameters_text:
                continue
            labels[gap.quantity, gap.reason, gap.scope or ""][run_label(run)] = None
    for (quantity, reason, scope), names in labels.items():
        group, _, part = quantity.partition(".")
        if quantity.islower():
            readable = _UNIT.sub("", part.replace("_ns", "_time")).replace("_", " ")
            readable = readable.replace("gpu", "GPU").replace("flops", "FLOPs")
            part = _NAMED_PARTS.get(part, readable)
            group = group.replace("_", " ").replace("gpu", "GPU")
        name = f"{part} of {group}" if part else " ".join(reversed(group.split(":")))
        yield name, reason, scope, join_first_names(names, 6)


def _list_missing_ledger_figures(study: Study, ledger: Ledger) -> Iterator[Missing]:
    """Yield the figures that rows of the ledger lack, or have in part."""
    layers: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    # attention, whose operator has no shapes of its keys: the steps of a server give its estimate
    by_phase = {
        part.part
        for run in study.runs
        if run.report.served_steps
        for phase in split_serving_phases_by_model_part(run, separates_blocks=True)
        for part in phase.parts
        if part.flops is not None
    }
    for row in ledger.rows:
        figures = [("executed FLOPs", row.executed)]
        if row.estimated.value is not None or row.layer not in by_phase:
            figures.append(("estimated FLOPs", row.estimated))
        for quantity, figure in figures:
            if figure.value is None:
                layers[quantity, figure.reason or "not collected"][row.name] = None
            elif figure.lower_bound:
                part = PARTLY_DERIVED if figure.state == "derived" else figure.reason
                reason = "; ".join(figure.lacking) or part or "not collected"
                layers[f"{quantity} (lower bound)", reason][row.name] = None
        if row.time is None:
            layers["time", row.time_reason or "not timed"][row.name] = None
    everything = len({(row.layer, row.direction) for row in ledger.rows})
    for (quantity, reason), names in layers.items():
        concerns = "all rows of the ledger"
        if len(names) < everything:
            concerns = join_first_names(names, 3)
            if len(names) > 3:
                kinds = dict.fromkeys(_NUMBER.sub("", name.rpartition(".")[2]) for name in names)
                concerns = f"{len(names):,} of {everything:,} rows: {join_first_names(kinds, 3)}"
        yield quantity, reason, concerns, ""


def _list_missing_busy_flops_and_pairs(study: Study) -> Iterator[Missing]:
    """Yield why no share of time is known although kernels ran, the FLOPs that kernels lack, and
    launches that two profilers do not share."""
    is_timed = any(prepared.usage.device_and_stream_busy_times for prepared in study.prepared_runs)
    if not is_timed and (reason := usage.explain_missing_busy_share(study.runs)):
        yield "share of time with a kernel", reason, "", describe_profiler_versions(study.runs)
    has_derived = any(batch.derived_run for batch in study.prepared_batches)
    for prepared in study.prepared_runs if study.is_foreign and not has_derived else ():
        if (lacking := explain_incomplete_flops(prepared)) is not None:
            part = " (lower bound)" if lacking[0] == "lower bound" else ""
            yield f"executed FLOPs{part}", lacking[1], "", run_label(prepared.run)
    for batch in study.prepared_batches:
        runs = [item.run for item in batch.runs]
        timing = next(
            (run for run in runs if run.profiler in ("nsys", "torch") and run.report.kernels), None
        )
        counting = batch.counted_or_derived_run.run if batch.counted_or_derived_run else None
        if counting is not None and timing is not None and counting is not timing:
            concerns = format_sweep_point(batch.batch, "the complete capture")
            for line in describe_unpaired(pair_launches(counting, timing)):
                yield (
                    "partner of a launch",
                    line,
                    concerns,
                    f"{counting.profiler} and {timing.profiler}",
                )


def build_profiler_messages_table(runs: Sequence[Run]) -> Table | None:
    """Events of the tools about the captures, without those that are reasons of missing
    values."""
    reasons = {gap.reason for run in runs for gap in run.report.gaps}
    often = Tally(
        (run_label(run), item.severity, item.source, item.text[:2000])
        for run in runs
        for item in run.report.diagnostics
        if item.text not in reasons
    )
    rows = [[*map(text_cell, message), times] for message, times in often.items()]
    columns = [RUN, *text_columns("severity", "source", "message"), Column("times")]
    return build_table_hiding_empty_columns("Events of the tools", columns, rows)


def list_reproduction_commands(study: Study) -> tuple[tuple[str, str], ...]:
    """Return (name, command line) to repeat the study: the sweeps, then the first profiled process
    of each profiler, whose batch size is a gap to fill if there are several."""
    sweeps = dict.fromkeys(run.sweep_command for run in study.runs if run.sweep_command)
    gap = "{batch}" if len(study.batches) > 1 else None
    processes = {
        run.profiler: shlex.join(run.command).replace(
            f"--batch {run.batch_size} ", f"--batch {gap or run.batch_size} "
        )
        for run in reversed(study.runs)
        if run.command
    }
    return (*(("sweep", command) for command in sweeps), *processes.items())


def describe_profiler_versions(runs: Sequence[Run]) -> str:
    """ "ncu 2025.3 + nsys 2025.1". A tool of unknown version is named only where no run has
    its version."""
    versions: dict[str, dict[str, None]] = {}
    for run in runs:
        versions.setdefault(run.profiler, {})[run.profiler_version or ""] = None
    names = (
        "no profiler" if profiler == "none" else f"{profiler} {version}".strip()
        for profiler, of_profiler in versions.items()
        for version in of_profiler
        if version or len(of_profiler) == 1
    )
    return " + ".join(dict.fromkeys(names))


def build_run_group_view(
    key: str,
    title: str,
    runs: Sequence[Run],
    facts: Mapping[str, str | None],
    findings: Iterable[Finding],
    sections: Iterable[Section],
) -> View:
    """Return a run group as a part of the report. ``facts`` without a value are left out."""
    origins = dict.fromkeys(run.origin for run in runs)
    names = (name if name in CAUTIONED else ORIGINS.get(name, name) for name in origins)
    properties = {**facts, "origin": ", ".join(names)}
    cautions = [f"The numbers below are {ORIGINS[name]}." for name in origins if name in CAUTIONED]
    return View(
        title,
        findings=tuple(findings),
        key=key,
        properties=tuple((name, value) for name, value in properties.items() if value),
        caution=" ".join(cautions) or None,
        open_findings=SHOWN,
        chapters=tuple(sections),
    )
