"""MFU by every convention, as text for the terminal and as JSON. 1 multiply-add = 2 FLOPs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from perfctl.orchestrator.estimate.mfu import Audit, Match, Reported, Row
from perfctl.orchestrator.report.numbers import DASH

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


def lines(found: Audit) -> Iterator[str]:
    """The run, a line for every convention, what explains a reported figure, and what
    was assumed."""
    model = found.model
    count = f"{model.parameters:,} parameters" + (
        f", {model.active:,} met by a token" if model.idle else ""
    )
    yield f"{model.name}: {count}, {model.seq:,} tokens a sequence"
    devices = f"{found.devices:,} x " if found.devices > 1 else ""
    yield f"{found.tokens_per_second:,g} tokens/s on {devices}{found.peak.source}"
    if found.recompute != "none":
        yield f"HFU: {_recomputed(found.recompute)}"
    yield ""
    with_hfu = found.recompute != "none"
    heads = ["formula", "FLOPs/token", "MFU", *(["HFU"] if with_hfu else []), "to exact", "because"]
    rows = [found.exact, found.causal, *found.rows]
    yield from _table(heads, [_cells(found, row, with_hfu) for row in rows])
    for row in rows:
        if row.refused is not None:
            yield (
                f"{row.convention.key}: refused, {row.refused}"
                if row.terms
                else f"{row.convention.key}: not known, {row.refused}"
            )
    if len(found.rows) == 1:
        only = found.rows[0].convention
        yield f"\n{only.key}: {only.formula} ({only.source})"
    if found.reported is not None:
        yield ""
        yield from _explained(found.reported)
    if found.notes:
        yield ""
        yield from found.notes


def _recomputed(recompute: str | float) -> str:
    if recompute == "selective":
        return "the two products of attention run again in backward (selective recomputing)"
    if recompute == "full":
        return "the forward pass of all layers runs again in backward (full recomputing)"
    return (
        f"{float(recompute):.0%} of the forward products with weights and all of attention run "
        "again in backward"
    )


def _cells(found: Audit, row: Row, with_hfu: bool) -> list[str]:
    total = row.total
    cells = [row.convention.key, DASH if total is None else f"{total:,.0f}", _share(row.mfu)]
    cells += [_share(row.hfu)] if with_hfu else []
    difference = found.difference(row)
    exact = found.exact.total or 0
    if difference is None or row is found.exact:
        return [*cells, "", row.convention.formula if row is found.exact else ""]
    by, terms = difference
    named = [
        f"{name} {_signed(amount / exact)}"
        for name, amount in terms
        if abs(amount) >= SHOWN * exact
    ]
    return [*cells, _signed(by / exact), ", ".join(named) or "nothing of 0.05 % or more"]


def _signed(share: float) -> str:
    return f"{share:+.1%}" if abs(share) >= SHOWN else "0.0%"


def _share(value: float | None) -> str:
    if value is None:
        return DASH
    return f"{value:.1%}" if value >= SHOWN else f"{100 * value:.2g}%"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[at]) for row in (heads, *rows)) for at in range(len(heads))]
    sides = ["<", *(">" for _ in heads[1:-1]), "<"]
    for at, row in enumerate((heads, *rows)):
        yield "  ".join(
            f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)
        ).rstrip()
        if at == 0:
            yield "-" * (sum(widths[:-1]) + 2 * (len(widths) - 1) + len(heads[-1]))


def _explained(found: Reported) -> Iterator[str]:
    said = f"Reported {found.value * 100:g} %"
    if not found.matches:
        near = found.nearest
        share = (
            f". It is in percent: write {found.value * 10000:g} for a share of "
            f"{found.value * 100:g}"
            if found.value < 0.01
            else ""
        )
        yield (
            f"{said}: nothing known gives it{share}. Nearest: {near.said}, {near.value:.2%} "
            f"({near.source})"
        )
        return
    first, *more = found.matches
    yield f"{said}: {_match(first)}"
    if more:
        yield "It cannot be told apart by this figure from:"
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
