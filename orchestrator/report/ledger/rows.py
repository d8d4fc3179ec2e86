"""The ledger as rows of full values with units in their names, for ``--json`` and the DataFrame."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cache
from importlib import resources
from typing import Any

from perfctl.orchestrator.analyse.analysis import Analysis, analyse
from perfctl.orchestrator.analyse.ledger.ledger import KernelUse, LedgerRow, Unattributed
from perfctl.orchestrator.analyse.ledger.prepared import PreparedRun, studies
from perfctl.orchestrator.analyse.roofline import Roofline, RooflinePoint
from perfctl.orchestrator.analyse.usage.energy import why_none
from perfctl.orchestrator.analyse.usage.training import PassUse, passes
from perfctl.orchestrator.analyse.verdicts.rule import Verdict
from perfctl.orchestrator.report.ledger.phases import phase_rows, phases_of
from perfctl.orchestrator.report.ledger.roofline import spoken
from perfctl.orchestrator.report.tables import why
from perfctl.records.run import Run

_ROOFS = (
    "dram_bytes",
    "flops_per_byte",
    "roof",
    "peak_flops_per_s",
    "attainable_flops_per_s",
    "of_attainable",
    "mfu",
    "mfu_refused",
    "hfu",
    "bound",
    "bound_why",
)
BULK = ("kernels", "counters", "copies", "ranges", "operations", "samples")
SMALL = ("steps", "memory", "summaries", "gaps", "diagnostics", "advice")
FACTS = (
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

ENERGY = (
    "device_index",
    "joules",
    "span_ns",
    "mean_watts",
    "source",
    "sampling_error",
    "period_ns",
    "readings",
    "steps",
    "joules_per_step",
    "joules_per_sample",
    "joules_per_token",
    "energy_delay_js",
    "reason",
    "step_reason",
    "token_reason",
)


def ledger_rows(analyses: Sequence[Analysis]) -> Iterator[dict[str, Any]]:
    """One row a layer, direction and batch size, then the rest that no layer explains. None is
    not known."""
    for found in analyses:
        for row in found.ledger.rows:
            yield _row(found, row)
        for rest in found.ledger.unattributed:
            yield _rest(found, rest)


def ledger_json(
    analyses: Sequence[Analysis], phase: str | None = None, *, each: bool = False
) -> dict[str, Any]:
    """What ``perfctl ledger --json`` prints. ``phase``: only this one of a language model's;
    ``each``: every block by itself."""
    parts = [
        one
        for found in analyses
        for one in phases_of(found, each=each)
        if phase in (None, one.phase)
    ]
    made = (
        [one for found in analyses for run in found.study.runs for one in passes(run)]
        if phase is None
        else []
    )
    return {
        "rows": list(ledger_rows(analyses)),
        "sweep": sweep_verdicts(analyses),
        "phases": phase_rows(parts),
        "passes": list(map(_pass, made)),
    }


def _pass(one: PassUse) -> dict[str, Any]:
    told = one.queries
    return {
        "run": one.run.id,
        "direction": one.direction,
        "layers": one.layers,
        "launches": one.launches,
        "kernel_ns": one.kernel_ns,
        "share": one.share,
        "running_ns": one.running_ns,
        "exchange_ns": one.collective_ns,
        "attention_calls": None if told is None else told.calls,
        "tokens_a_call": None if told is None else told.rows,
        "tokens_a_call_least": None if told is None else told.least,
        "tokens_a_call_most": None if told is None else told.most,
    }


def energy_rows(prepared: PreparedRun) -> list[dict[str, Any]]:
    """Energy of each GPU that was read, in joules; one row with the reason where none was. Layers:
    a step's joules by time."""
    found = prepared.usage.energy
    if not found:
        return [
            {**dict.fromkeys(ENERGY), "readings": 0, "reason": why_none(prepared.run), "layers": []}
        ]
    times = (
        {}
        if prepared.layer_times is None
        else {key: row.mean for key, row in prepared.layer_times.rows.items()}
    )
    rows = []
    for item in found:
        layers = [
            {"layer": layer, "direction": direction, "joules_per_step_shared": joules}
            for (layer, direction), joules in item.shared(times).items()
        ]
        figures = (
            item.device,
            item.joules,
            item.span_ns,
            item.watts,
            item.source,
            item.error,
            item.period_ns,
            item.readings,
            item.steps,
            item.per_step,
            item.per_sample,
            item.per_token,
            item.delay_product,
            item.reason,
            item.step_reason,
            item.token_reason,
        )
        rows.append({**dict(zip(ENERGY, figures, strict=True)), "layers": layers})
    return rows


def sweep_verdicts(analyses: Sequence[Analysis]) -> list[dict[str, Any]]:
    """Verdicts about sweeps as a whole, with the study they are about."""
    return [
        {**_study(found), **_fields_of(verdict)}
        for found in analyses
        for verdict in found.judgement.sweep
    ]


def _fields_of(record: Verdict | KernelUse) -> dict[str, Any]:
    """Its fields, none of which is a record itself: ``asdict`` would copy each."""
    return {name: getattr(record, name) for name in record.__slots__}


def _study(found: Analysis) -> dict[str, Any]:
    study = found.study
    return {
        name: getattr(study, name)
        for name in ("workload", "variant", "mode", "precision", "device")
    }


def _row(found: Analysis, row: LedgerRow) -> dict[str, Any]:
    judged = found.judgement.at(row.batch, row.layer, row.direction)
    point = found.roofline.of(row.batch, row.layer, row.direction)
    time = row.time
    return {
        **_study(found),
        "batch": row.batch,
        "layer": row.place,
        "kind": row.kind,
        "direction": row.direction,
        "paper_flops": row.paper.value,
        "paper_state": row.paper.state,
        "paper_why": why(row.paper) or None,
        "paper_is_lower_bound": row.paper.lower_bound,
        **_counted(row),
        "ratio": row.ratio,
        "ratio_at_most": row.ratio_at_most,
        "verdicts": list(map(_fields_of, judged.verdicts)),
        "unexplained": judged.unexplained,
        "time_ns": time.median if time else None,
        "time_low_ns": time.low if time else None,
        "time_high_ns": time.high if time else None,
        "time_why": row.time_reason,
        "clock": row.basis,
        "clock_trusted": row.trusted if time else None,
        "share": row.share,
        "share_of": row.whole,
        "paper_flops_per_s": row.achieved,
        **_roofs(point, found.roofline),
        "guessed": row.guessed,
        "shared": row.shared,
        "kernels": list(map(_fields_of, row.kernels)),
    }


def _counted(row: LedgerRow | Unattributed) -> dict[str, Any]:
    counted = row.counted
    return {
        "counted_flops": counted.value,
        "counted_state": counted.state,
        "counted_why": why(counted) or None,
        "counted_rule": counted.rule,
        "counted_is_lower_bound": counted.lower_bound,
    }


def _roofs(point: RooflinePoint | None, roofline: Roofline) -> dict[str, Any]:
    """A row below the roofs; None throughout where the roofline has no point for it."""
    if point is None:
        return dict.fromkeys(_ROOFS)
    values = (
        point.traffic.dram.value,
        point.intensity,
        point.path,
        point.peak,
        point.attainable,
        point.reached,
        point.mfu,
        point.mfu_refused,
        point.hfu,
        None if point.refused else point.bound,
        spoken(point, roofline),
    )
    return dict(zip(_ROOFS, values, strict=True))


def _rest(found: Analysis, rest: Unattributed) -> dict[str, Any]:
    """With the columns of the other rows, None in most."""
    columns = _row(found, found.ledger.rows[0]) if found.ledger.rows else column_facts()
    return {
        **dict.fromkeys(columns),
        **_study(found),
        "batch": rest.batch,
        "layer": "not attributed",
        **_counted(rest),
        "time_ns": rest.time.median,
        "time_low_ns": rest.time.low,
        "time_high_ns": rest.time.high,
        "clock": rest.basis,
        "share": rest.share,
        "share_of": rest.whole,
        "verdicts": [],
        "kernels": [],
    }


@cache
def column_facts() -> dict[str, tuple[str, str]]:
    """Name of each column -> (unit, "-" where there is none; meaning)."""
    text = resources.files("perfctl.templates").joinpath("ledger.csv").read_text(encoding="utf-8")
    return {name: (unit, meaning) for name, unit, meaning in csv.reader(text.splitlines())}


def run_json(run: Run) -> dict[str, Any]:
    """Everything a run holds; NULL is null. FLOPs count 1 multiply-add as 2. Units are those of
    the store."""
    (study,) = studies([run])
    analysed = analyse(study)
    return {
        **{name: getattr(run, name) for name in FACTS},
        "form": run.report.form,
        "devices": [asdict(device) for device in run.report.devices],
        "environment": run.report.environment,
        "ledger": list(ledger_rows([analysed])),
        "energy": energy_rows(analysed.prepared.runs[0]),
        "layer_calls": [call._asdict() for call in run.layer_calls],
        **{name: [row._asdict() for row in getattr(run.report, name)] for name in (*SMALL, *BULK)},
    }
