"""The ledger as rows of full values with units in their names, for ``--json`` and the DataFrame."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from perfctl.orchestrator.ledger.analysis import Analysis, analyse
from perfctl.orchestrator.ledger.ledger import KernelUse, LedgerRow, Unattributed
from perfctl.orchestrator.ledger.prepared import PreparedRun, studies
from perfctl.orchestrator.ledger.roofline import Roofline, RooflinePoint
from perfctl.orchestrator.ledger.usage.energy import Energy, why_none
from perfctl.orchestrator.ledger.usage.training import PassUse, passes
from perfctl.orchestrator.outputs import column_schema, object_schema, to_json, type_schema
from perfctl.orchestrator.report.ledger.causes import CauseOutput, cause_output
from perfctl.orchestrator.report.ledger.phases import PhaseRow, phase_rows, phases_of
from perfctl.orchestrator.report.ledger.roofline import spoken
from perfctl.orchestrator.report.studies.ranks import JobOutput
from perfctl.orchestrator.report.tables import why
from perfctl.records.paper import LayerCall
from perfctl.records.report import Report
from perfctl.records.run import Run

_JSON_TYPES = {"TEXT": "string", "REAL": "number", "INTEGER": "integer", "BOOLEAN": "boolean"}


class LedgerColumns(dict[str, Any]):
    """A row of the ledger: a layer, direction and batch size, or what no layer explains."""

    @staticmethod
    def json_schema() -> dict[str, Any]:
        """Return the columns that ``ledger.csv`` describes."""
        lists = {
            "verdicts": type_schema(list[CauseOutput]),
            "kernels": type_schema(list[KernelUse]),
        }
        return object_schema(
            {
                name: lists[name] | {"description": meaning}
                if kind == "JSON"
                else column_schema(_JSON_TYPES[kind], meaning, unit, null="not known")
                for name, (kind, unit, meaning) in column_facts().items()
            }
        )


@dataclass(frozen=True, slots=True)
class SweepVerdict:
    """A verdict about a sweep as a whole, with the study that it is about."""

    JSON_INLINED = ("verdict",)

    workload: str | None
    variant: str | None
    mode: str | None
    precision: str | None
    device: str | None
    verdict: CauseOutput


@dataclass(frozen=True, slots=True)
class PassRow:
    """A pass of training: forward, backward for the input, for the weights. Attention, of one call,
    by its kernel's tile and grid; null: no kernel tells."""

    JSON_INLINED = ("use",)

    use: PassUse
    attention_calls: int | None = None
    tokens_a_call: int | None = None
    """By the rows of other kernels, too: inferred; null also where these do not agree."""
    tokens_a_call_least: int | None = None
    tokens_a_call_most: int | None = None


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
    """One object a layer, direction and batch size; then what no layer explains."""
    sweep: list[SweepVerdict]
    """Verdicts about a sweep as a whole."""
    phases: list[PhaseRow]
    """Of a language model's traces: one object a phase and part of the model."""
    passes: list[PassRow]
    """Of traces of training: one object a pass."""
    jobs: list[JobOutput]
    """One object a job of several ranks that came in together."""


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


def ledger_rows(analyses: Sequence[Analysis]) -> Iterator[LedgerColumns]:
    """One row a layer, direction and batch size, then the rest that no layer explains. None is
    not known."""
    for found in analyses:
        for row in found.ledger.rows:
            yield LedgerColumns(_row(found, row))
        for rest in found.ledger.unattributed:
            yield LedgerColumns(_rest(found, rest))


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


def _pass(use: PassUse) -> PassRow:
    queries = use.queries
    if queries is None:
        return PassRow(use)
    return PassRow(use, queries.calls, queries.rows, queries.least, queries.most)


def energy_rows(prepared: PreparedRun) -> list[EnergyRow]:
    """Return the energy of each GPU that was read, in joules, with its layers; one row with the
    reason where none was."""
    found = prepared.usage.energy
    if not found:
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
            reason=why_none(prepared.run),
            step_reason=None,
        )
        return [EnergyRow(none, [])]
    times = prepared.layer_times.rows.items() if prepared.layer_times is not None else ()
    means = {key: row.mean for key, row in times}
    rows = []
    for energy in found:
        shares = energy.shared(means).items()
        rows.append(EnergyRow(energy, [LayerEnergy(*key, joules) for key, joules in shares]))
    return rows


def sweep_verdicts(analyses: Sequence[Analysis]) -> list[SweepVerdict]:
    """Return the verdicts about sweeps as a whole, with the study they are about."""
    return [
        SweepVerdict(**_study(found), verdict=cause_output(cause))
        for found in analyses
        for cause in found.judgement.sweep
    ]


def _study(found: Analysis) -> dict[str, Any]:
    study = found.study
    return {
        name: getattr(study, name)
        for name in ("workload", "variant", "mode", "precision", "device")
    }


def _shared_columns(found: Analysis, row: LedgerRow | Unattributed) -> dict[str, Any]:
    """Return all columns in order, with the values that both kinds of rows have."""
    counted, time = row.counted, row.time
    return {
        **dict.fromkeys(column_facts()),
        **_study(found),
        "batch": row.batch,
        "counted_flops": counted.value,
        "counted_state": counted.state,
        "counted_why": why(counted) or None,
        "counted_rule": counted.rule,
        "counted_is_lower_bound": counted.lower_bound,
        "time_ns": time.median if time else None,
        "time_low_ns": time.low if time else None,
        "time_high_ns": time.high if time else None,
        "clock": row.basis,
        "share": row.share,
        "share_of": row.whole,
    }


def _row(found: Analysis, row: LedgerRow) -> dict[str, Any]:
    judged = found.judgement.at(row.batch, row.layer, row.direction)
    point = found.roofline.of(row.batch, row.layer, row.direction)
    return {
        **_shared_columns(found, row),
        "layer": row.place,
        "kind": row.kind,
        "direction": row.direction,
        "paper_flops": row.paper.value,
        "paper_state": row.paper.state,
        "paper_why": why(row.paper) or None,
        "paper_is_lower_bound": row.paper.lower_bound,
        "ratio": row.ratio,
        "ratio_at_most": row.ratio_at_most,
        "verdicts": to_json(map(cause_output, judged.causes)),
        "unexplained": judged.unexplained,
        "time_why": row.time_reason,
        "clock_trusted": row.trusted if row.time else None,
        "paper_flops_per_s": row.achieved,
        **(_roofs(point, found.roofline) if point is not None else {}),
        "guessed": row.guessed,
        "shared": row.shared,
        "kernels": to_json(row.kernels),
    }


def _roofs(point: RooflinePoint, roofline: Roofline) -> dict[str, Any]:
    return {
        "dram_bytes": point.traffic.dram.value,
        "flops_per_byte": point.intensity,
        "roof": point.path,
        "peak_flops_per_s": point.peak,
        "attainable_flops_per_s": point.attainable,
        "of_attainable": point.reached,
        "mfu": point.mfu,
        "mfu_refused": point.mfu_refused,
        "hfu": point.hfu,
        "bound": None if point.refused else point.bound,
        "bound_why": spoken(point, roofline),
    }


def _rest(found: Analysis, rest: Unattributed) -> dict[str, Any]:
    return {
        **_shared_columns(found, rest),
        "layer": "not attributed",
        "verdicts": [],
        "kernels": [],
    }


@cache
def column_facts() -> dict[str, tuple[str, str, str]]:
    """Return the name of each column -> (type as in a store, JSON for lists; unit, "-" where there
    is none; meaning)."""
    text = resources.files("perfctl.templates").joinpath("ledger.csv").read_text(encoding="utf-8")
    return {
        name: (kind, unit, meaning) for name, kind, unit, meaning in csv.reader(text.splitlines())
    }


def shown_run(run: Run) -> ShownRun:
    """Return everything that a run holds."""
    (study,) = studies([run])
    analysed = analyse(study)
    return ShownRun(
        run,
        run.report,
        list(ledger_rows([analysed])),
        energy_rows(analysed.study.prepared_runs[0]),
        run.layer_calls,
    )
