"""The ledger as rows of full values with units in their names, for ``--json`` and the DataFrame."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from operator import attrgetter
from typing import Any, NamedTuple

from perfctl.orchestrator.ledger.analysis import Analysis, analyse_study
from perfctl.orchestrator.ledger.expected import FORMULA
from perfctl.orchestrator.ledger.ledger import KernelUse, LedgerRow, UnattributedWork
from perfctl.orchestrator.ledger.prepared import PreparedRun, group_into_studies
from perfctl.orchestrator.ledger.usage.energy import Energy, explain_missing_energy
from perfctl.orchestrator.ledger.usage.training import PassTimes, list_ingested_training_pass_times
from perfctl.orchestrator.outputs import (
    build_column_schema,
    build_object_schema,
    build_type_schema,
    convert_to_json,
)
from perfctl.orchestrator.report.ledger.causes import DescribedCause, describe_cause_with_fix
from perfctl.orchestrator.report.ledger.phases import PhaseRow, list_prefill_decode_phases
from perfctl.orchestrator.report.ledger.ranks import JobOutput, list_multi_rank_job_json
from perfctl.orchestrator.report.ledger.roofline import describe_roofline_bound
from perfctl.orchestrator.report.tables import explain_figure_state
from perfctl.records.paper import LayerCall
from perfctl.records.report import Report
from perfctl.records.run import Run

_JSON_TYPES = {"TEXT": "string", "REAL": "number", "INTEGER": "integer", "BOOLEAN": "boolean"}


EXECUTED_STATES = {"counted": "measured", "estimated": "approximate"}
ESTIMATED_STATES = {"counted": "exact"}
"""State of a figure -> its name in JSON, if that is another."""


class LedgerColumns(dict[str, Any]):
    """A row of the ledger: a layer, direction and batch size, or what no layer explains."""

    @staticmethod
    def json_schema() -> dict[str, Any]:
        """Return the columns that ``ledger.csv`` describes."""
        lists = {
            "causes": build_type_schema(list[DescribedCause]),
            "kernels": build_type_schema(list[KernelUse]),
        }
        return build_object_schema(
            {
                name: lists[name] | {"description": meaning}
                if kind == "JSON"
                else build_column_schema(
                    _JSON_TYPES[kind], meaning, unit, null_meaning="missing value"
                )
                for name, (kind, unit, meaning) in read_ledger_column_definitions().items()
            }
        )


@dataclass(frozen=True, slots=True)
class SweepCause:
    """A cause about a complete sweep, with the run group that it is about."""

    JSON_INLINED = ("cause",)

    workload: str | None
    variant: str | None
    mode: str | None
    precision: str | None
    device: str | None
    cause: DescribedCause


@dataclass(frozen=True, slots=True)
class PassRow:
    """A pass of training: forward, backward for the input, for the weights. Attention, of one call,
    by its kernel's tile and grid; null: no kernel tells."""

    JSON_INLINED = ("use",)

    use: PassTimes
    attention_calls: int | None = None
    tokens_per_call: int | None = None
    """Inferred from the rows of other kernels, too; null also if these do not agree."""
    tokens_per_call_min: int | None = None
    tokens_per_call_max: int | None = None


class LayerEnergy(NamedTuple):
    """A layer's share of the joules of a step."""

    layer: str
    direction: str
    joules_per_step_shared: float
    """The step's joules by time, shared and not measured."""


@dataclass(frozen=True, slots=True)
class EnergyRow:
    """Energy of one GPU whose power was read, or the reason where none was."""

    JSON_INLINED = ("energy",)

    energy: Energy
    layers: list[LayerEnergy]


@dataclass(frozen=True, slots=True)
class LedgerOutput:
    """The ledger of every study."""

    rows: list[LedgerColumns]
    """One object per layer, pass and batch size; then what belongs to no layer."""
    sweep: list[SweepCause]
    """Causes about a complete sweep."""
    phases: list[PhaseRow]
    """Traces of a language model: one object per phase and part of the model."""
    passes: list[PassRow]
    """Traces of training: one object per pass."""
    jobs: list[JobOutput]
    """One object per job of several ranks that were ingested together."""


@dataclass(frozen=True, slots=True)
class ShownRun:
    """Everything that one run holds, in the units of the store."""

    JSON_INLINED = ("run", "report")

    run: Run
    report: Report
    ledger: list[LedgerColumns]
    energy: list[EnergyRow]
    """One object a GPU whose power was read; one with a reason where none was."""
    layer_calls: tuple[LayerCall, ...]


def list_ledger_rows(analyses: Sequence[Analysis]) -> Iterator[LedgerColumns]:
    """Yield a row per layer, pass and batch size, then what belongs to no layer. None is a missing
    value."""
    for analysis in analyses:
        for row in analysis.ledger.rows:
            yield LedgerColumns(_build_layer_row(analysis, row))
        for item in analysis.ledger.unattributed:
            columns = {"layer": "not attributed", "causes": [], "kernels": []}
            yield LedgerColumns(_build_shared_columns(analysis, item) | columns)


def build_ledger_json(
    analyses: Sequence[Analysis], phase: str | None, *, by_block: bool
) -> dict[str, Any]:
    """Return what ``perfctl ledger --json`` prints. ``phase``: only this one of a language model;
    ``by_block``: every block in a separate row."""
    runs = [run for analysis in analyses for run in analysis.study.runs]
    phases = [
        item
        for analysis in analyses
        for item in list_prefill_decode_phases(analysis, by_block=by_block)
    ]
    read = attrgetter("calls", "rows", "least", "most")
    uses = (
        [use for run in runs for use in list_ingested_training_pass_times(run)]
        if phase is None
        else []
    )
    return {
        "rows": list(list_ledger_rows(analyses)),
        "sweep": list_sweep_causes(analyses),
        "phases": [
            PhaseRow(item, part)
            for item in phases
            if phase in (None, item.phase)
            for part in item.parts
        ],
        "passes": [PassRow(use, *(read(use.queries) if use.queries else ())) for use in uses],
        "jobs": list_multi_rank_job_json(runs),
    }


def list_energy_rows(prepared: PreparedRun) -> list[EnergyRow]:
    """Return the energy of each GPU that was read, in joules, with its layers; one row with the
    reason where none was."""
    energies = prepared.usage.device_energies
    if not energies:
        none = Energy(
            run=prepared.run,
            device=None,
            joules=None,
            span_ns=None,
            span="",
            source=None,
            error=None,
            period_ns=None,
            readings=0,
            steps=None,
            tokens=None,
            reason=explain_missing_energy(prepared.run),
            step_reason=None,
        )
        return [EnergyRow(none, [])]
    times = prepared.layer_times.rows.items() if prepared.layer_times is not None else ()
    means = {key: row.mean for key, row in times}
    rows = []
    for energy in energies:
        shares = energy.split_step_joules_by_layer_time(means).items()
        rows.append(EnergyRow(energy, [LayerEnergy(*key, joules) for key, joules in shares]))
    return rows


def list_sweep_causes(analyses: Sequence[Analysis]) -> list[SweepCause]:
    """Return the causes about complete sweeps, with the run group that they are about."""
    return [
        SweepCause(
            **_collect_study_identity_columns(analysis), cause=describe_cause_with_fix(cause)
        )
        for analysis in analyses
        for cause in analysis.judgement.sweep
    ]


def _collect_study_identity_columns(analysis: Analysis) -> dict[str, Any]:
    study = analysis.study
    return {
        name: getattr(study, name)
        for name in ("workload", "variant", "mode", "precision", "device")
    }


def _build_shared_columns(analysis: Analysis, row: LedgerRow | UnattributedWork) -> dict[str, Any]:
    """Return all columns in order, with the values that both kinds of rows have."""
    executed, time = row.executed, row.time
    return {
        **dict.fromkeys(read_ledger_column_definitions()),
        **_collect_study_identity_columns(analysis),
        "batch": row.batch if isinstance(row.batch, int) else None,
        "parameters": row.batch if isinstance(row.batch, str) else None,
        "executed_flops": executed.value,
        "executed_state": EXECUTED_STATES.get(executed.state, executed.state),
        "executed_reason": explain_figure_state(executed) or None,
        "executed_rule": executed.rule,
        "executed_is_lower_bound": executed.lower_bound,
        "time_ns": time.median if time else None,
        "time_low_ns": time.low if time else None,
        "time_high_ns": time.high if time else None,
        "clock": row.basis,
        "share": row.share,
        "share_of": row.whole,
    }


def _build_layer_row(analysis: Analysis, row: LedgerRow) -> dict[str, Any]:
    judged = analysis.judgement.get_row_causes(*row.key)
    point = analysis.roofline.get_ledger_row_point(row.batch, row.layer, row.direction)
    bounds = (
        {}
        if point is None
        else {
            "dram_bytes": point.traffic.dram.value,
            "flops_per_byte": point.intensity,
            "peak": point.path,
            "peak_flops_per_s": point.peak,
            "attainable_flops_per_s": point.attainable,
            "attainable_fraction": point.reached,
            "mfu": point.mfu,
            "mfu_reason": point.mfu_reason,
            "hfu": point.hfu,
            "bound": None if point.refused else point.bound,
            "bound_reason": describe_roofline_bound(point, analysis.roofline),
        }
    )
    return {
        **_build_shared_columns(analysis, row),
        "layer": row.layer_label,
        "kind": row.kind,
        "direction": None if row.kind == FORMULA else row.direction,
        "estimated_flops": row.estimated.value,
        "estimated_state": ESTIMATED_STATES.get(row.estimated.state, row.estimated.state),
        "estimated_reason": explain_figure_state(row.estimated) or None,
        "estimated_is_lower_bound": row.estimated.lower_bound,
        "ratio": row.ratio,
        "ratio_at_most": row.ratio_at_most,
        "causes": convert_to_json(map(describe_cause_with_fix, judged.causes)),
        "unexplained": judged.unexplained,
        "time_reason": row.time_reason,
        "clock_trusted": row.trusted if row.time else None,
        "estimated_flops_per_s": row.achieved,
        **bounds,
        "guessed": row.guessed,
        "shared": row.shared,
        "kernels": convert_to_json(row.kernels),
    }


@cache
def read_ledger_column_definitions() -> dict[str, tuple[str, str, str]]:
    """Return the name of each column -> (type as in a store, JSON for lists; unit, "-" where there
    is none; meaning)."""
    text = resources.files("perfctl.templates").joinpath("ledger.csv").read_text(encoding="utf-8")
    return {
        name: (kind, unit, meaning) for name, kind, unit, meaning in csv.reader(text.splitlines())
    }


def collect_run_details(run: Run) -> ShownRun:
    """Return everything that a run holds."""
    (study,) = group_into_studies([run])
    analysed = analyse_study(study)
    return ShownRun(
        run,
        run.report,
        list(list_ledger_rows([analysed])),
        list_energy_rows(analysed.study.prepared_runs[0]),
        run.layer_calls,
    )
