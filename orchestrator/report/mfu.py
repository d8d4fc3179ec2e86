"""MFU by every convention: its view and its JSON. 1 multiply-add = 2 FLOPs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from perfctl.orchestrator.estimate.mfu import Audit, Match, Reported, Row
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    Table,
    count,
    nothing,
    table,
    text_cell,
)
from perfctl.orchestrator.report.view import View

MFU_BY_FORMULA = "MFU by formula"
SHOWN = 0.0005
"""Terms below this share of the exact count are not named; --json has them."""
_MATCHES = 6


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


def view(found: Audit) -> View:
    """The run, a row for every convention, what explains a reported figure, and what was
    assumed."""
    model = found.model
    count = f"{model.parameters:,} parameters" + (
        f", {model.active:,} active per token" if model.idle else ""
    )
    devices = f"{found.devices:,} x " if found.devices > 1 else ""
    facts = [f"{found.tokens_per_second:,g} tokens/s on {devices}{found.peak.source}"]
    if found.recompute != "none":
        facts.append(f"HFU: {_recomputed(found.recompute)}")
    rows = [found.exact, found.causal, *found.rows]
    notes = [
        f"{row.convention.key}: {'refused' if row.terms else 'unknown'}, {row.refused}"
        for row in rows
        if row.refused is not None
    ]
    if len(found.rows) == 1:
        only = found.rows[0].convention
        notes.append(f"{only.key}: {only.formula} ({only.source})")
    explained = _explained(found.reported) if found.reported is not None else ()
    return View(
        f"{model.name}: {count}, {model.seq:,} tokens per sequence",
        tuple(facts),
        (_formulas(found, rows),),
        notes=(*explained, *notes, *found.notes),
    )


def _formulas(found: Audit, rows: Sequence[Row]) -> Table:
    columns = [
        Column("formula", style="text"),
        Column("FLOPs/token"),
        Column("MFU"),
        Column("HFU"),
        Column("to exact"),
        Column("because", style="text"),
    ]
    made = table(MFU_BY_FORMULA, columns, [_cells(found, row) for row in rows])
    assert made is not None
    return made


def _recomputed(recompute: str | float) -> str:
    if recompute == "selective":
        return "backward recomputes the two GEMMs of attention (selective recomputation)"
    if recompute == "full":
        return "backward recomputes the forward pass of all layers (full recomputation)"
    return (
        f"{float(recompute):.0%} of the forward GEMMs with weights and all of attention run again "
        "in backward"
    )


def _cells(found: Audit, row: Row) -> list[Cell]:
    refused = row.refused or "not known"
    cells = [
        text_cell(row.convention.key),
        count(None if row.total is None else round(row.total), refused),
        _share(row.mfu, refused),
        _share(row.hfu, "nothing is recomputed" if found.recompute == "none" else refused),
    ]
    difference = found.difference(row)
    if row is found.exact:
        return [*cells, nothing("the reference itself"), text_cell(row.convention.formula)]
    if difference is None:
        return [*cells, nothing(refused), nothing(refused)]
    by, terms = difference
    exact = found.exact.total or 0
    named = [
        f"{name} {_signed(amount / exact)}"
        for name, amount in terms
        if abs(amount) >= SHOWN * exact
    ]
    said = ", ".join(named) or "nothing of 0.05% or more"
    return [*cells, Cell(_signed(by / exact), value=by / exact), text_cell(said)]


def _signed(share: float) -> str:
    return f"{share:+.1%}" if abs(share) >= SHOWN else "0.0%"


def _share(value: float | None, reason: str) -> Cell:
    if value is None:
        return nothing(reason)
    return Cell(f"{value:.1%}" if value >= SHOWN else f"{100 * value:.2g}%", value=value)


def _explained(found: Reported) -> Iterator[str]:
    said = f"Reported {found.value * 100:g}%"
    if not found.matches:
        near = found.nearest
        share = (
            f". The value is in percent: write {found.value * 10000:g} for a share of "
            f"{found.value * 100:g}"
            if found.value < 0.01
            else ""
        )
        yield (
            f"{said}: no known formula gives this value{share}. Closest: {near.said}, "
            f"{near.value:.2%} ({near.source})"
        )
        return
    first, *more = found.matches
    yield f"{said}: {_match(first)}"
    if more:
        yield "With this value, these formulas fit equally well:"
        yield from (f"  {_match(one)}" for one in more[:_MATCHES])
        if len(more) > _MATCHES:
            yield f"  and {len(more) - _MATCHES} more (--json)"


def _match(one: Match) -> str:
    return f"{one.said}, {one.value:.2%} ({one.source})"


def mfu_output(found: Audit) -> MfuOutput:
    """Return every convention, and what explains the reported MFU."""
    formulas = {row.convention.key: _row(found, row) for row in found.rows}
    return MfuOutput(found, _row(found, found.exact), _row(found, found.causal), formulas)


def _row(found: Audit, row: Row) -> MfuRow:
    difference, by_term = found.difference(row) or (None, None)
    return MfuRow(row, difference, None if by_term is None else dict(by_term))
