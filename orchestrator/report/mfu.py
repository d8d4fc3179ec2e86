"""MFU by every convention: its view and its JSON. 1 multiply-add = 2 FLOPs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from perfctl.orchestrator.estimate.mfu import Audit, Match, Reported, Row
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    count,
    nothing,
    table,
    text_cell,
    text_column,
)
from perfctl.orchestrator.report.view import View

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
RECOMPUTED = {
    "selective": "the two GEMMs of attention (selective recomputation)",
    "full": "the forward pass of all layers (full recomputation)",
}
"""What backward recomputes."""


@dataclass(frozen=True, slots=True)
class MfuRow:
    """One formula."""

    JSON_INLINED = ("row",)

    row: Row
    difference: float | None
    """FLOPs of one token beyond the exact count."""
    difference_by_term: Mapping[str, float] | None
    """Term -> FLOPs of one token."""


@dataclass(frozen=True, slots=True)
class MfuOutput:
    """Shares are of 1; FLOPs are those of training one token."""

    JSON_INLINED = ("audit",)

    audit: Audit
    exact: MfuRow
    exact_causal: MfuRow
    formulas: Mapping[str, MfuRow]
    """Convention -> its figures."""


def view(audit: Audit) -> View:
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
    formulas = table(MFU_BY_FORMULA, COLUMNS, [_cells(audit, row) for row in rows])
    return View(
        f"{model.name}: {model.parameters:,} parameters{active}, {model.seq:,} tokens per sequence",
        tuple(facts),
        tuple(filter(None, [formulas])),
        notes=(*_explain_reported(audit.reported), *notes, *audit.notes),
    )


def _cells(audit: Audit, row: Row) -> list[Cell]:
    refused, exact = row.reason or "unknown", audit.exact.total or 0
    no_hfu = "nothing is recomputed" if audit.recompute == "none" else refused
    cells = [
        text_cell(row.convention.key),
        count(None if row.total is None else round(row.total), refused),
        _share_cell(row.mfu, refused),
        _share_cell(row.hfu, no_hfu),
    ]
    difference = audit.difference(row)
    if row is audit.exact:
        return [*cells, nothing("the reference itself"), text_cell(row.convention.formula)]
    if difference is None:
        return [*cells, nothing(refused), nothing(refused)]
    flops, terms = difference
    named_terms = (
        f"{name} {_sign(amount / exact)}"
        for name, amount in terms
        if abs(amount) >= TERM_SHARE_MIN * exact
    )
    because = ", ".join(named_terms) or "nothing of 0.05% or more"
    return [*cells, Cell(_sign(flops / exact), value=flops / exact), text_cell(because)]


def _sign(share: float) -> str:
    return f"{share:+.1%}" if abs(share) >= TERM_SHARE_MIN else "0.0%"


def _share_cell(share: float | None, reason: str) -> Cell:
    if share is None:
        return nothing(reason)
    return Cell(f"{share:.1%}" if share >= TERM_SHARE_MIN else f"{100 * share:.2g}%", value=share)


def _explain_reported(reported: Reported | None) -> Iterator[str]:
    if reported is None:
        return
    percent = f"{reported.value * 100:g}"
    if not reported.matches:
        share = (
            f". The value is in percent: write {reported.value * 10000:g} for a share of {percent}"
            if reported.value < 0.01
            else ""
        )
        nearest = _describe_match(reported.nearest)
        yield f"Reported {percent}%: no known formula gives this value{share}. Closest: {nearest}"
        return
    first, *further = map(_describe_match, reported.matches)
    yield f"Reported {percent}%: {first}"
    if further:
        yield "With this value, these formulas fit equally well:"
        yield from (f"  {match}" for match in further[:MATCHES_MAX])
        if len(further) > MATCHES_MAX:
            yield f"  and {len(further) - MATCHES_MAX} more (--json)"


def _describe_match(match: Match) -> str:
    return f"{match.said}, {match.value:.2%} ({match.source})"


def mfu_output(audit: Audit) -> MfuOutput:
    """Return every convention, and what explains the reported MFU."""

    def make_row(row: Row) -> MfuRow:
        difference, terms = audit.difference(row) or (None, None)
        return MfuRow(row, difference, None if terms is None else dict(terms))

    formulas = {row.convention.key: make_row(row) for row in audit.rows}
    return MfuOutput(audit, make_row(audit.exact), make_row(audit.causal), formulas)
