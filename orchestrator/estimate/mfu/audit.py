"""MFU and HFU of one throughput by every convention, and which convention or mistake gives a
published figure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from perfctl.orchestrator.estimate.mfu.conventions import CONVENTIONS, VARIANTS, Convention
from perfctl.orchestrator.estimate.mfu.decoder import TERMS, Decoder

RECOMPUTE = ("none", "selective", "full")
"""Activation checkpointing: nothing, attention's two products, or the whole forward pass of
the layers."""

EXACT = Convention(
    "exact",
    "products that run, whole square",
    "perfctl estimate",
    Decoder.exact,
    "whole square",
    False,
)
CAUSAL = Convention(
    "exact, causal",
    "products that run, scores that the mask leaves",
    "perfctl estimate, with the causal mask",
    lambda model: {**model.exact(), "attention": 6 * model.needed()},
    "only what the mask leaves",
    False,
)


@dataclass(frozen=True, slots=True)
class Row:
    """One convention on one model. Terms and what follows from them are None where the formula asks
    for what is not known of the model."""

    JSON_KEYS = ("convention", "total", "terms", "mfu", "hfu", "refused")
    JSON_NAMES: ClassVar = {"total": "flops_per_token"}
    JSON_INLINED = ("convention",)

    convention: Convention
    terms: Mapping[str, float] | None
    """FLOPs of one token; None: the formula asks for what is not known of the model."""
    mfu: float | None
    """As a share of 1. None: not known, or refused."""
    hfu: float | None
    """With the forward FLOPs that activation checkpointing repeats. None without a mode, or where
    MFU or HFU is refused."""
    refused: str | None = None
    """Why there is no MFU or no HFU."""

    @property
    def total(self) -> float | None:
        return None if self.terms is None else sum(self.terms.values())


@dataclass(frozen=True, slots=True)
class Match:
    """One explanation of a reported MFU."""

    JSON_KEYS = ("said", "source", "value")
    JSON_NAMES: ClassVar = {"said": "explanation", "value": "mfu"}

    said: str
    source: str
    value: float
    """What it gives, as a share of 1."""
    rank: int
    """0: a convention, 1: other FLOPs of a source, 2: HFU, 3: another peak or number of devices."""


@dataclass(frozen=True, slots=True)
class Reported:
    """A published MFU and what explains it."""

    JSON_NAMES: ClassVar = {"value": "mfu"}

    value: float
    tolerance: float
    matches: tuple[Match, ...]
    """All that fit, by rank, then the nearest first."""
    nearest: Match


@dataclass(frozen=True, slots=True)
class Peak:
    """Dense FLOP/s of one device, and others that are taken for it by mistake."""

    JSON_KEYS = ("flops", "source")
    JSON_NAMES: ClassVar = {"flops": "peak_flops_per_s", "source": "peak"}

    flops: float
    source: str
    slips: tuple[tuple[str, float], ...] = ()
    """(What was taken instead, FLOP/s)."""


@dataclass(frozen=True, slots=True)
class Audit:
    """MFU of one throughput by every convention."""

    JSON_KEYS = (
        "model",
        "tokens_per_second",
        "devices",
        "peak",
        "recompute",
        "reported",
        "notes",
    )
    JSON_NAMES: ClassVar = {"devices": "gpus"}
    JSON_INLINED = ("model", "peak")

    model: Decoder
    tokens_per_second: float
    """Of all devices together."""
    devices: int
    peak: Peak
    recompute: str | float
    exact: Row
    """Every product that runs, attention as the whole square: what ``perfctl estimate`` counts."""
    causal: Row
    """Every product that runs, attention with only the scores that the mask leaves."""
    rows: tuple[Row, ...]
    reported: Reported | None = None
    notes: tuple[str, ...] = ()

    def row(self, key: str) -> Row:
        """Raises StopIteration for a key that is not one of the rows."""
        return next(row for row in self.rows if row.convention.key == key)

    def difference(self, row: Row) -> tuple[float, tuple[tuple[str, float], ...]] | None:
        """FLOPs of one token beyond the exact count, in all and by term (name, FLOPs), the largest
        first; None: not known."""
        if row.terms is None or self.exact.terms is None:
            return None
        exact = self.exact.terms
        by_term = [
            (_named(term, row), by)
            for term in TERMS
            if (by := row.terms.get(term, 0) - exact.get(term, 0))
        ]
        by_term.sort(key=lambda one: -abs(one[1]))
        return sum(by for _, by in by_term), tuple(by_term)


def _named(term: str, row: Row) -> str:
    return f"attention {row.convention.attention}" if term == "attention" else TERMS[term]


def audit(
    model: Decoder,
    tokens_per_second: float,
    devices: int,
    peak: Peak,
    *,
    recompute: str | float = "none",
    reported: tuple[float, float] | None = None,
    notes: tuple[str, ...] = (),
) -> Audit:
    """``recompute``: one of RECOMPUTE, or the share of the layers' forward products that runs again
    (attention then wholly).

    ``reported``: a published MFU and its tolerance, as shares of 1. Nothing is refused but
    utilisations over 1.
    """
    supply = peak.flops * devices

    def row(convention: Convention) -> Row:
        return _row(convention, model, tokens_per_second / supply, recompute, devices)

    found = None
    if reported is not None:
        found = _explain(reported, list(_tried(model, tokens_per_second, devices, peak, recompute)))
    rows = tuple(row(one) for one in CONVENTIONS)
    return Audit(
        model,
        tokens_per_second,
        devices,
        peak,
        recompute,
        row(EXACT),
        row(CAUSAL),
        rows,
        found,
        (*model.notes, *notes),
    )


def repeated(convention: Convention, terms: Mapping[str, float], recompute: str | float) -> float:
    """FLOPs of one token that activation checkpointing runs again: a forward pass is a third of a
    training step."""
    if recompute == "none":
        return 0
    attention = terms.get("attention", 0) / 3
    if recompute == "selective":
        return attention
    share = 1.0 if isinstance(recompute, str) else recompute
    again = (
        [term for term in terms if term != "attention"]
        if convention.by_parameters
        else ["weights", "router"]
    )
    return share * sum(terms.get(term, 0) for term in again) / 3 + attention


def _row(
    convention: Convention, model: Decoder, per_flop: float, recompute: str | float, devices: int
) -> Row:
    """``per_flop``: tokens/s for each FLOP/s of the peak."""
    terms = convention.terms(model)
    if terms is None:
        return Row(convention, None, None, None, "the model's hidden size is not known")
    total = sum(terms.values())
    mfu = total * per_flop
    if mfu > 1:
        return Row(convention, terms, None, None, f"{mfu:.1%}: {over(model, terms, mfu, devices)}")
    if recompute == "none":
        return Row(convention, terms, mfu, None)
    hfu = (total + repeated(convention, terms, recompute)) * per_flop
    if hfu > 1:
        return Row(
            convention,
            terms,
            mfu,
            None,
            f"HFU {hfu:.1%}: recomputed less than said, or the throughput is too high",
        )
    return Row(convention, terms, mfu, hfu)


def over(model: Decoder, terms: Mapping[str, float], mfu: float, devices: int) -> str:
    """The likely cause of an MFU over 1."""
    total = sum(terms.values())
    whole, left = terms.get("attention", 0), 6 * model.needed()
    if (total - terms.get("idle", 0)) / total * mfu <= 1:
        return "the formula counts experts that a token does not meet"
    if whole > left and (total - whole + left) / total * mfu <= 1:
        what = "beyond the window" if model.windowed else "that the causal mask leaves out"
        return f"the formula counts scores {what}"
    if devices == 1:
        return (
            f"tokens/s of several devices? With `gpus` {-int(-mfu // 1)} or more it fits. Or the "
            "wrong device, precision or `seq`"
        )
    return "check tokens/s, `device`, `precision` (FP8 doubles the peak) and `seq`"


def _explain(reported: tuple[float, float], tried: list[Match]) -> Reported:
    value, tolerance = reported
    fits = [one for one in tried if abs(one.value - value) <= tolerance]
    fits.sort(key=lambda one: (one.rank, round(abs(one.value - value), 12)))
    return Reported(
        value, tolerance, tuple(fits), min(tried, key=lambda one: abs(one.value - value))
    )


def _tried(
    model: Decoder, tokens_per_second: float, devices: int, peak: Peak, recompute: str | float
) -> Iterator[Match]:
    """Conventions, other FLOPs of their sources, recomputed FLOPs (HFU), another peak or number
    of devices."""

    def match(
        said: str, source: str, flops: float, rank: int, supply: float = peak.flops * devices
    ) -> Match:
        return Match(said, source, tokens_per_second * flops / supply, rank)

    known = [
        (one, terms)
        for one in (*CONVENTIONS, EXACT, CAUSAL)
        if (terms := one.terms(model)) is not None
    ]
    totals = [(one, sum(terms.values())) for one, terms in known]
    seen = {flops for _, flops in totals}
    for one, flops in totals:
        yield match(one.key, one.source, flops, 0)
    for one in VARIANTS:
        counted = one.terms(model)
        if counted is not None and (flops := sum(counted.values())) not in seen:
            yield match(one.key, one.source, flops, 1)
    modes: list[tuple[str, str | float]] = [(mode, mode) for mode in RECOMPUTE[1:]]
    modes += [(f"{recompute:.0%}", recompute)] if isinstance(recompute, float) else []
    for one, terms in known:
        for said, mode in modes:
            flops = sum(terms.values()) + repeated(one, terms, mode)
            yield match(f"{one.key} with {said} recomputing: HFU, not MFU", one.source, flops, 2)
    paper = next(one for one in VARIANTS if one.key == "megatron, paper")
    of_paper = paper.terms(model) or {}
    tripled = sum(of_paper.values()) + of_paper.get("attention", 0)
    said = "megatron, paper's equation 8: HFU that counts recomputed attention three times"
    yield match(said, "Megatron-LM, arXiv 2205.05198", tripled, 2)
    for one, flops in totals:
        for slip, wrong in peak.slips:
            yield match(f"{one.key} over {slip}", one.source, flops, 3, wrong * devices)
        if devices > 1:
            yield match(
                f"{one.key}, tokens/s of {devices} devices over the peak of one",
                one.source,
                flops,
                3,
                peak.flops,
            )
