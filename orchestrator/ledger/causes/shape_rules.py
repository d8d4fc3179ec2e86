"""Rules whose factor follows from a layer's shape: groups run as dense, masks and borders that are
skipped, scores again."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, log

from perfctl.orchestrator.counts.kernels.grids import ConvShape
from perfctl.orchestrator.estimate.flops.engine import BACKWARD
from perfctl.orchestrator.ledger.causes.evidence import RowEvidence
from perfctl.orchestrator.ledger.causes.matching import EXACT, by_groups, tiled
from perfctl.orchestrator.ledger.causes.rule import (
    Confidence,
    RuleInput,
    Verdict,
    amount,
    is_news,
    times,
    verdict,
)

SAME = 0.01
"""Counts no further from another row's paper than this are that row's."""


def attention_recompute(given: RuleInput) -> Verdict | None:
    """A fused attention computes its scores again inside its backward kernel, not in one of
    its own."""
    evidence = given.evidence
    batch, layer, direction = evidence.place
    if direction == "recompute" and not evidence.kernels:
        rows = (given.table.get((batch, layer, name)) for name in BACKWARD)
        owner = next((row for row in rows if row is not None and _fused(row)), None)
        if owner is None:
            return None
        sentence = (
            f"{given.who} has no kernel of its own: its {amount(evidence.paper)}FLOP are done in "
            f"{owner.row.name}'s kernel."
        )
        todo = f"Read {owner.row.name} and {evidence.row.name} together."
        return verdict(
            given,
            "attention recompute",
            sentence,
            None,
            todo,
            owner.product_kernels,
            "predicted and matched",
        )
    again = given.table.get((batch, layer, "recompute"))
    if (
        direction not in BACKWARD
        or given.counted is None
        or again is None
        or again.kernels
        or not _fused(evidence)
    ):
        return None
    factor = _recomputing(evidence, again)
    if factor is None:
        return None
    more = f"{amount(again.paper)}FLOP, which paper has in a row of their own"
    sentence = (
        f"{given.who} computes its scores again in its fused kernel: {more}, {times(factor)} times "
        "its own paper count."
    )
    todo = f"Read {evidence.row.name} and {again.row.name} together."
    return verdict(
        given,
        "attention recompute",
        sentence,
        factor,
        todo,
        evidence.product_kernels,
        "predicted and matched",
    )


def _fused(evidence: RowEvidence) -> bool:
    return any(kernel.algorithm.family == "attention" for kernel in evidence.product_kernels)


def _recomputing(owner: RowEvidence, again: RowEvidence) -> float | None:
    """Factor of the scores that are computed again; None where the count of backward has no room
    for them."""
    factor = (owner.paper + again.paper) / owner.paper if owner.paper else 1.0
    skipped = causal_share(owner) or 1.0
    fits = owner.row.ratio is None or abs(log(owner.row.ratio / factor / skipped)) < abs(
        log(owner.row.ratio / skipped)
    )
    return factor if is_news(factor) and fits and owner.row.ratio != 0 else None


def causal_mask(given: RuleInput) -> Verdict | None:
    """A fused attention skips the tiles that the causal mask empties."""
    share = causal_share(given.evidence)
    if (
        share is None
        or given.counted is None
        or not is_news(share)
        or given.evidence.causal is None
    ):
        return None
    rows, columns = given.evidence.causal
    kernel = next(one for one in given.evidence.product_kernels if one.algorithm.tile)
    m, n = (kernel.algorithm.tile or (1, 1, None))[:2]
    sentence = (
        f"{given.who} skips what its causal mask hides: tiles of {m} x {n} scores cover "
        f"{times(share)} of the {rows:,} x {columns:,} square on paper."
    )
    todo = "Expected: paper counts the whole square."
    return verdict(given, "causal mask", sentence, share, todo, (kernel,), "predicted and matched")


def causal_share(evidence: RowEvidence) -> float | None:
    """Share of the square of scores in tiles that a causal mask leaves; None without a mask or a
    stated tile."""
    tile = next(
        (
            kernel.algorithm.tile
            for kernel in evidence.product_kernels
            if kernel.algorithm.family == "attention" and kernel.algorithm.tile
        ),
        None,
    )
    if evidence.causal is None or tile is None:
        return None
    rows, columns = evidence.causal
    m, n, _ = tile
    done = sum(
        min(ceil((min((block + 1) * m, rows) + columns - rows) / n), ceil(columns / n))
        for block in range(ceil(rows / m))
    )
    return done * m * n / (rows * columns) if rows % m == 0 and columns % n == 0 else None


def groups_as_dense(given: RuleInput) -> Verdict | None:
    """A grouped convolution by a kernel that multiplies all channels, the zeros between
    groups included."""
    shape, evidence = given.evidence.forward, given.evidence
    if not isinstance(shape, ConvShape) or shape.groups == 1 or given.counted is None:
        return None
    kernels = evidence.product_kernels
    one = (
        evidence.row.direction == "forward"
        and len(kernels) == 1
        and kernels[0].launches == evidence.calls
    )
    if (
        not one
        or kernels[0].algorithm.family not in ("conv", "gemm")
        or by_groups(kernels[0], shape) is not None
    ):
        return None
    (kernel,) = kernels
    dense = replace(shape, groups=1)
    found = tiled(kernel, dense) if kernel.grid else []
    if kernel.grid and not found and kernel.grid[2] % shape.groups == 0:
        return None  # its groups have blocks of their own
    multiplies = found[0].multiplies if found else dense.macs
    counted = kernel.products / (2 * kernel.launches)
    if not counted or abs(log(counted / multiplies)) > EXACT:
        return None
    factor = multiplies / shape.macs
    sentence = (
        f"{given.who} runs its {shape.groups} groups as one dense convolution: {multiplies:,.0f} "
        f"multiplies for {shape.macs:,} on paper, {times(factor)} times."
    )
    todo = "A layout or type for which cuDNN has a grouped kernel avoids it."
    confidence: Confidence = "predicted and matched" if found else "plausible"
    return verdict(given, "groups run as dense", sentence, factor, todo, kernels, confidence)


def swapped(given: RuleInput) -> Verdict | None:
    """Two layers whose counts are each other's: a range, or a name, is at the wrong one."""
    evidence = given.evidence
    rows = given.table.network_order[evidence.row.size, evidence.row.direction]
    found = [other for other in rows if other is not evidence and _each_others(evidence, other)]
    if len(found) != 1:
        return None
    (other,) = found
    factor = other.paper / evidence.paper
    sentence = (
        f"{given.who} has the count of {other.row.name}, {times(factor)} times its own paper "
        "count, and the other way round: their kernels are swapped."
    )
    todo = f"Check the ranges and names of {evidence.row.layer} and {other.row.layer}."
    return verdict(
        given, "swapped layers", sentence, factor, todo, evidence.product_kernels, "plausible"
    )


def _each_others(one: RowEvidence, other: RowEvidence) -> bool:
    pairs = ((one, other), (other, one))
    if not all(
        count.row.counted.value and not count.row.counted.lower_bound and paper.paper
        for count, paper in pairs
    ):
        return False
    apart = abs(log(one.paper / other.paper)) > log(1.1)
    return apart and all(
        abs((count.row.counted.value or 0) / paper.paper - 1) < SAME for count, paper in pairs
    )


def skipped_border(given: RuleInput) -> Verdict | None:
    """A depthwise kernel skips the taps that fall on the padding."""
    evidence = given.evidence
    share = evidence.inside
    if (
        share is None
        or given.counted is None
        or evidence.row.direction != "forward"
        or not is_news(share)
    ):
        return None
    kernels = evidence.product_kernels
    if not kernels or any(kernel.algorithm.family != "depthwise" for kernel in kernels):
        return None
    counted = sum(kernel.products for kernel in kernels) / evidence.paper
    if not counted or abs(log(counted / share)) > EXACT:
        return None
    sentence = (
        f"{given.who} skips the taps of its filter that fall on the padding: {times(share)} of the "
        "multiply-adds on paper."
    )
    todo = "Expected: paper counts every tap of every output."
    return verdict(given, "skipped border", sentence, share, todo, kernels, "predicted and matched")
