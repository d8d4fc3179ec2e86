"""The basis of a study: its runs, their environment, gaps, messages of the tools, commands to
repeat it."""

from __future__ import annotations

import re
import shlex
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from perfctl.orchestrator.counts.hardware.peaks import seen_gpu
from perfctl.orchestrator.counts.kernels.pairing import match, unmatched_lines
from perfctl.orchestrator.ledger.ledger import Ledger
from perfctl.orchestrator.ledger.prepared import Study, device_label
from perfctl.orchestrator.ledger.usage.phase_layers import phase_parts
from perfctl.orchestrator.report.findings import lacking_flops
from perfctl.orchestrator.report.page.kernels import run_label
from perfctl.orchestrator.report.tables import (
    RUN,
    SHOWN_RUN,
    Cell,
    Column,
    Table,
    count,
    listing,
    nothing,
    text_cell,
)
from perfctl.records.run import Run

ORIGINS = {
    "measured": "measured here",
    "ingested": "ingested: an existing report",
    "recorded": "recorded: replayed from an earlier capture, not measured now",
    "transcribed": "transcribed: copied by hand from a publication, not measured by perfctl",
    "synthetic": "synthetic: generated for tests or a demonstration, not measured",
}

_NUMBER = re.compile(r"_\d+(?= |$)")


def origins(runs: Sequence[Run]) -> tuple[tuple[str, str], ...]:
    """(origin, its meaning) of the runs, each once."""
    return tuple(
        (name, ORIGINS.get(name, name)) for name in dict.fromkeys(run.origin for run in runs)
    )


def began(runs: Sequence[Run]) -> str:
    """The day of the first run, "" where none is known."""
    return min((run.started_at for run in runs if run.started_at), default="")[:10]


def device_text(study: Study) -> str | None:
    """Name of the study's device; of a GPU without a name its memory, where a record says it."""
    if any(device.name for run in study.runs for device in run.devices):
        return study.device
    seen = next((gpu for run in study.runs if (gpu := seen_gpu(run)) is not None), None)
    if seen is None:
        return "GPU without a name" if study.device == "gpu" else study.device
    return f"{seen} without a name".removeprefix("a ")


def runs_table(study: Study) -> Table | None:
    """Every run of the study, failed ones too."""
    columns = [
        Column("run", order="ascending"),
        Column("profiler", style="text"),
        Column("batch"),
        Column("status", style="text"),
        Column("device", style="text"),
        Column("started", style="text"),
        Column("length", base="ns"),
        Column("origin", style="text"),
        Column("host", style="text"),
        Column("report", style="code"),
        Column("sha256", style="code"),
    ]
    rows = [
        [
            text_cell(run.id),
            f"{run.profiler} {run.profiler_version or ''}".strip(),
            count(run.batch_size, "the report does not state it"),
            "ok"
            if run.status == "ok"
            else Cell(
                f"{run.status}: {run.reason or 'no reason was recorded'}",
                style="bad",
                value=run.status,
            ),
            device_label(run),
            (run.started_at or "")[:16].replace("T", " "),
            run.duration_ns,
            Cell(run.origin, ORIGINS.get(run.origin), value=run.origin),
            run.host,
            run.artifact and text_cell(run.artifact),
            Cell(run.artifact_sha256[:12], run.artifact_sha256, value=run.artifact_sha256)
            if run.artifact_sha256
            else nothing("perfctl kept no report"),
        ]
        for run in study.runs
    ]
    return listing("Runs", columns, rows)


def environment(runs: Sequence[Run]) -> tuple[tuple[str, str], ...]:
    """(fact, value) that every run which recorded it agrees on."""
    # in the list of runs
    shown = ("host", "nsys version", "ncu version", "torch version", "dlprof version")
    facts = sorted(_facts(runs).items())
    return tuple(
        (key, next(iter(found))[:500])
        for key, found in facts
        if len(found) == 1 and key not in shown
    )


def differences(runs: Sequence[Run]) -> Table | None:
    """Facts that differ between the runs, a row a value; None when none does."""
    columns = [
        Column("fact", style="text"),
        Column("value", style="text"),
        Column("runs", style="text"),
    ]
    rows = [
        [text_cell(key), text_cell(value[:500]), _list(dict.fromkeys(who), 8)]
        for key, found in sorted(_facts(runs).items())
        if len(found) > 1
        for value, who in found.items()
    ]
    return listing("Differences between the runs", columns, rows)


def _facts(runs: Sequence[Run]) -> dict[str, dict[str, list[str]]]:
    """fact -> value -> the runs that recorded it."""
    values: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        tool = {f"{run.profiler} version": run.profiler_version, "host": run.host}
        for key, value in (tool | run.report.environment).items():
            if value is not None:
                values[key][value].append(run_label(run))
    return values


def missing_values(study: Study, ledger: Ledger) -> Table | None:
    """Return what the runs of a study do not have, a row for each reason; None if nothing is
    missing."""
    by_reason: dict[tuple[str, str, str], dict[str, None]] = defaultdict(dict)
    for what, reason, concerns, runs in (
        *_gaps(study.runs),
        *_missing_in_ledger(study, ledger),
        *_missing_counts(study),
    ):
        by_reason[reason, concerns, runs][what] = None
    columns = [
        Column("what", style="text"),
        Column("reason", style="text"),
        Column("concerns", is_optional=True, style="text"),
        SHOWN_RUN,
    ]
    rows = [
        [_list(names, 8), text_cell(reason), concerns or nothing("the complete run"), runs]
        for (reason, concerns, runs), names in by_reason.items()
    ]
    caption = f"Not in {'this run' if len(study.runs) == 1 else 'these runs'}"
    return listing(caption, columns, rows)


def _gaps(runs: Sequence[Run]) -> Iterator[tuple[str, str, str, str]]:
    """Yield (what, reason, what it concerns, the runs that lack it), as the reports state it."""
    labels: dict[tuple[str, str, str], dict[str, None]] = defaultdict(dict)
    for run in runs:
        for gap in run.report.gaps:
            labels[gap.quantity, gap.reason, gap.scope or ""][run_label(run)] = None
    for (quantity, reason, scope), names in labels.items():
        group, _, part = quantity.replace("_ns", "_time").partition(".")
        words = f"{part} of {group}" if part else " ".join(reversed(group.split(":")))
        if quantity.islower():
            words = words.replace("_", " ").replace("gpu", "GPU").replace("flops", "FLOPs")
        yield words, reason, scope, _list(names, 6)


def _missing_in_ledger(study: Study, ledger: Ledger) -> Iterator[tuple[str, str, str, str]]:
    """Yield the figures that rows of the ledger lack, in the form of :func:`_gaps`."""
    layers: dict[tuple[str, bool, str], dict[str, None]] = defaultdict(dict)
    by_phase = _on_paper_by_phase(study.runs)
    for row in ledger.rows:
        for what, figure in (("executed FLOPs", row.counted), ("estimated FLOPs", row.paper)):
            if what == "estimated FLOPs" and figure.value is None and row.layer in by_phase:
                continue  # the table of its phase shows them
            if figure.value is None or figure.missing:
                is_bound = figure.value is not None
                layers[what, is_bound, figure.reason or "not collected"][row.name] = None
        if row.time is None:
            layers["time", False, row.time_reason or "not timed"][row.name] = None
    everything = len({(row.layer, row.direction) for row in ledger.rows})
    for (what, is_bound, reason), names in layers.items():
        if what == "estimated FLOPs" and len(names) != everything:  # the others have them
            kinds = dict.fromkeys(_NUMBER.sub("", name.rpartition(".")[2]) for name in names)
            reason = f"{len(names):,} of {everything:,} rows ({_list(kinds, 3)}): {reason}"
        concerns = "all rows of the ledger" if len(names) == everything else _list(names, 6)
        yield f"{what} (lower bound)" if is_bound else what, reason, concerns, ""


def _missing_counts(study: Study) -> Iterator[tuple[str, str, str, str]]:
    """Yield the FLOPs that kernels lack, and launches that two profilers do not share, in the form
    of :func:`_gaps`."""
    for prepared in study.prepared_runs if study.foreign else ():
        if (lacking := lacking_flops(prepared)) is not None:
            part = " (lower bound)" if lacking[0] == "lower bound" else ""
            yield f"executed FLOPs{part}", lacking[1], "", run_label(prepared.run)
    for batch in study.prepared_batches:
        runs = [item.run for item in batch.runs]
        timing = next(
            (run for run in runs if run.profiler in ("nsys", "torch") and run.report.kernels), None
        )
        if batch.counting is not None and timing is not None:
            counting = batch.counting.run
            at = "the complete capture" if batch.batch is None else f"batch {batch.batch}"
            for line in unmatched_lines(match(counting, timing)):
                pair = f"{counting.profiler} and {timing.profiler}"
                yield "partner of a launch", line, at, pair


def _on_paper_by_phase(runs: Iterable[Run]) -> set[str]:
    """Return the layers whose estimated FLOPs the steps of a server give: attention, whose operator
    has no shapes of its keys."""
    return {
        part.part
        for run in runs
        if run.report.served_steps
        for phase in phase_parts(run, each=True)
        for part in phase.parts
        if part.flops is not None
    }


def diagnostics(runs: Sequence[Run]) -> Table | None:
    """Messages of the tools about the captures."""
    said = Tally(
        (run_label(run), item.severity, item.source, item.text[:2000])
        for run in runs
        for item in run.report.diagnostics
    )
    columns = [
        RUN,
        *(Column(name, style="text") for name in ("severity", "source", "message")),
        Column("times"),
    ]
    return listing(
        "Messages of the tools", columns, [[*map(text_cell, key), n] for key, n in said.items()]
    )


def commands(study: Study) -> tuple[tuple[str, str], ...]:
    """(what, command line) to repeat the study: the sweeps first, then the profiled processes."""
    sweeps = dict.fromkeys(run.sweep_command for run in study.runs if run.sweep_command)
    found = [("sweep", command) for command in sweeps if command]
    found += [(run_label(run), shlex.join(run.command)) for run in study.runs if run.command]
    return tuple(found)


def _list(names: Iterable[str], most: int) -> str:
    every = list(names)
    return ", ".join(every[:most]) + (f" and {len(every) - most} more" if len(every) > most else "")


def tools(runs: Sequence[Run]) -> str:
    """ "ncu 2025.3 + nsys 2025.1". A tool of unknown version is named only where no run has
    its version."""
    versions: dict[str, dict[str, None]] = {}
    for run in runs:
        versions.setdefault(run.profiler, {})[run.profiler_version or ""] = None
    named = (
        "no profiler" if profiler == "none" else f"{profiler} {version}".strip()
        for profiler, known in versions.items()
        for version in known
        if version or len(known) == 1
    )
    return " + ".join(dict.fromkeys(named))
