"""MFU by every convention: its view and its JSON. 1 multiply-add = 2 FLOPs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from perfctl.orchestrator.estimate.decoder import build_decoder_from_recorded_step
from perfctl.orchestrator.estimate.mfu import (
    TERMS,
    ConventionRow,
    DevicePeak,
    MfuAudit,
    MfuExplanation,
    ReportedMfu,
    audit_mfu,
)
from perfctl.orchestrator.ledger.analysis import Analysis
from perfctl.orchestrator.ledger.prepared import format_study_heading
from perfctl.orchestrator.report.numbers import format_si
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    Table,
    build_complete_table,
    build_table,
    count_cell,
    missing_cell,
    text_column,
    text_columns,
)
from perfctl.orchestrator.report.view import View
from perfctl.records.run import format_sweep_point

MFU_BY_FORMULA = "MFU by formula"
TERM_SHARE_MIN = 0.0005
"""Terms below this share of the exact count are not named; --json has them."""
MATCHES_MAX = 6
COLUMNS = (
    text_column("formula"),
    Column("FLOPs/token"),
    Column("MFU"),
    Column("HFU"),
    Column("to exact"),
    text_column("because"),
)
CITED = text_columns("formula", "FLOPs of a token", "terms (FLOP)", "MFU", "HFU", "source")
RECOMPUTED = {
    "selective": "the two GEMMs of attention (selective recomputation)",
    "full": "the forward pass of all layers (full recomputation)",
}
"""What backward recomputes."""


@dataclass(frozen=True, slots=True)
class MfuRow:
    """One formula."""

    JSON_INLINED = ("row",)

    row: ConventionRow
    difference: float | None
    """FLOPs of one token beyond the exact count."""
    difference_by_term: Mapping[str, float] | None
    """Term -> FLOPs of one token."""


@dataclass(frozen=True, slots=True)
class MfuOutput:
    """Shares are of 1; FLOPs are those of training one token."""

    JSON_INLINED = ("audit",)

    audit: MfuAudit
    exact: MfuRow
    exact_causal: MfuRow
    formulas: Mapping[str, MfuRow]
    """Convention -> its figures."""


def audit_fastest_training_step_mfu(analysis: Analysis) -> MfuAudit | None:
    """Return the MFU of the recorded batch size with the most tokens per second; None unless the
    runs train a dense language model, with timed steps, on a device with a known peak."""
    peaks, audits = analysis.roofline.peaks, []
    for point in (
        analysis.roofline.select_points_by_work_level("run")
        if analysis.study.mode != "infer"
        else ()
    ):
        batch = analysis.study.get_batch(point.traffic.batch)
        calls = next((item.run.layer_calls for item in batch.runs if item.run.layer_calls), ())
        step = build_decoder_from_recorded_step(
            format_study_heading(analysis.study), calls, batch.recorded_ops
        )
        if step is None or not point.peak or not point.traffic.seconds:
            continue
        source = f"{point.peak / 1e12:,.1f} TFLOP/s {point.path}, {peaks.source}"
        peak = DevicePeak(point.peak, f"{peaks.device}, {source}")
        decoder, tokens, recompute = step
        rate = tokens / point.traffic.seconds
        step_text = f"{tokens:,} tokens in a step of {format_sweep_point(batch.batch)}"
        basis = f"tokens/s: {step_text}, by the {point.traffic.basis}"
        audits.append(audit_mfu(decoder, rate, 1, peak, recompute=recompute, notes=(basis,)))
    valid = (item for item in audits if item.causal.mfu is not None)
    return max(valid, key=lambda item: item.tokens_per_second, default=None)


def format_mfu_headline(audit: MfuAudit) -> str:
    """Return MFU by the formulas of PaLM and torchtitan and the terms that differ, or by the only
    one that was chosen."""
    rows = {row.convention.key: row for row in audit.rows if row.mfu is not None}
    chosen = [rows[key] for key in ("palm", "torchtitan") if key in rows]
    if len(chosen) < 2:
        shares = (f"{_format_share(row.mfu)} by {key}" for key, row in rows.items())
        return f"MFU {', '.join(shares) or 'refused by every formula'}"
    palm, torchtitan = chosen
    first, second = palm.terms or {}, torchtitan.terms or {}
    least = TERM_SHARE_MIN * (audit.exact.total or 0)
    terms = [
        name for key, name in TERMS.items() if abs(first.get(key, 0) - second.get(key, 0)) >= least
    ]
    difference = f"the difference is {' and '.join(terms)}" if terms else "they agree"
    by_palm, by_torchtitan = _format_share(palm.mfu), _format_share(torchtitan.mfu)
    return f"MFU {by_palm} by PaLM's formula, {by_torchtitan} by torchtitan's; {difference}"


def build_mfu_formula_sources_table(audit: MfuAudit) -> Table:
    """Return every formula with its terms and its source, as a paper needs them."""
    rows = [
        [
            row.convention.key,
            row.convention.formula,
            ", ".join(
                f"{TERMS[term]} {format_si(flops)}"
                for term, flops in (row.terms or {}).items()
                if flops
            ),
            *_build_formula_cells(audit, row)[2:4],
            row.convention.source,
        ]
        for row in (audit.exact, audit.causal, *audit.rows)
    ]
    note = "N: parameters that a token meets; L layers, H heads of depth Q, T tokens, W window."
    return build_complete_table(
        "MFU with formulas and sources", CITED, rows, (note,), is_dense=True
    )


def build_mfu_view(audit: MfuAudit) -> View:
    """Return the run, a row for every convention, what explains a reported figure, and what was
    assumed."""
    model = audit.model
    active = f", {model.active:,} active per token" if model.idle else ""
    devices = f"{audit.devices:,} x " if audit.devices > 1 else ""
    facts = [f"{audit.tokens_per_second:,g} tokens/s on {devices}{audit.peak.source}"]
    if not isinstance(audit.recompute, str):
        facts.append(
            f"HFU: {audit.recompute:.0%} of the forward GEMMs with weights and all of attention "
            "run again in backward"
        )
    elif audit.recompute in RECOMPUTED:
        facts.append(f"HFU: backward recomputes {RECOMPUTED[audit.recompute]}")
    rows = [audit.exact, audit.causal, *audit.rows]
    notes = [
        f"{row.convention.key}: {'refused' if row.terms else 'unknown'}, {row.reason}"
        for row in rows
        if row.reason is not None
    ]
    if len(audit.rows) == 1:
        convention = audit.rows[0].convention
        notes.append(f"{convention.key}: {convention.formula} ({convention.source})")
    formulas = build_table(
        MFU_BY_FORMULA, COLUMNS, [_build_formula_cells(audit, row) for row in rows]
    )
    sizes = f"{model.parameters:,} parameters{active}, {model.seq:,} tokens per sequence"
    answer_view = View(
        format_mfu_headline(audit),
        (f"{model.name}: {sizes}", *facts),
        tuple(filter(None, [formulas])),
        notes=(*_explain_reported_mfu(audit.reported), *notes, *audit.notes),
    )
    tables = (*answer_view.tables, build_mfu_formula_sources_table(audit))
    return replace(answer_view, document=lambda: replace(answer_view, tables=tables))


def _build_formula_cells(audit: MfuAudit, row: ConventionRow) -> list[object]:
    refused, exact = row.reason or "unknown", audit.exact.total or 0
    no_hfu = "nothing is recomputed" if audit.recompute == "none" else refused
    cells = [
        row.convention.key,
        count_cell(None if row.total is None else round(row.total), refused),
        *(
            missing_cell(reason) if share is None else Cell(_format_share(share), value=share)
            for share, reason in ((row.mfu, refused), (row.hfu, no_hfu))
        ),
    ]
    difference = audit.compute_excess_flops_over_exact(row)
    if row is audit.exact:
        return [*cells, missing_cell("the reference itself"), row.convention.formula]
    if difference is None:
        return [*cells, missing_cell(refused), missing_cell(refused)]
    flops, terms = difference
    named_terms = (
        f"{name} {_format_signed_share(amount / exact)}"
        for name, amount in terms
        if abs(amount) >= TERM_SHARE_MIN * exact
    )
    because = ", ".join(named_terms) or "nothing of 0.05% or more"
    return [
        *cells,
        Cell(_format_signed_share(flops / exact), value=flops / exact),
        because,
    ]


def _format_signed_share(share: float) -> str:
    return f"{share:+.1%}" if abs(share) >= TERM_SHARE_MIN else "0.0%"


def _format_share(share: float | None) -> str:
    """Return 0.4618 as "46.2%", and 0.000049 as "0.0049%"."""
    share = share or 0.0
    return f"{share:.1%}" if share >= TERM_SHARE_MIN else f"{100 * share:.2g}%"


def _explain_reported_mfu(reported: ReportedMfu | None) -> Iterator[str]:
    if reported is None:
        return
    percent = f"{reported.value * 100:g}"
    if not reported.matches:
        share = (
            f". The value is in percent: write {reported.value * 10000:g} for a share of {percent}"
            if reported.value < 0.01
            else ""
        )
        nearest = _describe_mfu_explanation(reported.nearest)
        yield f"Reported {percent}%: no known formula gives this value{share}. Closest: {nearest}"
        return
    first, *further = map(_describe_mfu_explanation, reported.matches)
    yield f"Reported {percent}%: {first}"
    if further:
        yield "With this value, these formulas fit equally well:"
        yield from (f"  {match}" for match in further[:MATCHES_MAX])
        if len(further) > MATCHES_MAX:
            yield f"  and {len(further) - MATCHES_MAX} more (--json)"


def _describe_mfu_explanation(match: MfuExplanation) -> str:
    return f"{match.said}, {match.value:.2%} ({match.source})"


def build_mfu_output(audit: MfuAudit) -> MfuOutput:
    """Return every convention, and what explains the reported MFU."""

    def build_mfu_row(row: ConventionRow) -> MfuRow:
        difference, terms = audit.compute_excess_flops_over_exact(row) or (None, None)
        return MfuRow(row, difference, None if terms is None else dict(terms))

    formulas = {row.convention.key: build_mfu_row(row) for row in audit.rows}
    return MfuOutput(audit, build_mfu_row(audit.exact), build_mfu_row(audit.causal), formulas)
