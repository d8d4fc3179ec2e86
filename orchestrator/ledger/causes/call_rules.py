"""Rules about how often work ran: calls of a layer, of its gradients, and of the complete step."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import gcd, log, prod
from operator import attrgetter
from statistics import median
from typing import Any

from perfctl.orchestrator.ledger.causes.evidence import (
    KernelGroup,
    Kernels,
    LaunchPlaces,
    RowEvidence,
    count_launches,
    sum_multiply_add_flops,
)
from perfctl.orchestrator.ledger.causes.matching import (
    can_grids_fit_shape,
    can_part_need_all_tiles,
    has_grid_matching_row_shape,
    list_divisors_above_1,
)
from perfctl.orchestrator.ledger.causes.rule import (
    Cause,
    Confidence,
    ExpectedNumber,
    Facts,
    Implications,
    RowCase,
)
from perfctl.orchestrator.statistics import group_by

RECURRENT = re.compile("lstm|gru|rnn", re.IGNORECASE)


EXTRA_CALLS_RATIO_MAX = 1.1
"""Without a matching grid, a count this close to N times the estimate is N calls."""


RIVALS = (
    "extra calls",
    "recomputation",
    "several algorithms",
    "gradient missing",
    "needless gradient",
    "shared kernel",
    "groups run as dense",
    "other size",
    "skipped border",
    "swapped layers",
)
"""Causes of one row, which are none if all rows deviate alike."""
AGREEMENT_LOG_MAX = log(1.02)
FACTOR_LOG_MIN = log(1.2)
SAMPLES_LOG_MIN, SAMPLES_ERROR_MAX = log(1.01), 0.05
"""Least factor of a whole number of samples, and its largest distance from one."""
BESIDE = ("split-K", "layout and epilogue")
"""Causes that add no multiply-adds."""
ROWS_MIN, LAYERS_MIN, AGREEING_SHARE_MIN = 3, 3, 0.9
"""Rows and layers, and the share of both rows and FLOPs, that must agree on a number; two layers
are enough for one of as many ranks as were recorded."""
NUMBER_MAX = 64
Candidates = Sequence[tuple[RowCase, Sequence[Cause]]]
"""Rows with the causes that their rules propose."""


@dataclass(frozen=True, slots=True)
class CommonFactor:
    """The factor that all rows of one batch size have in common."""

    batch: int
    factor: float
    number: int
    """``factor``, or 1 / ``factor``."""
    reason: str
    confidence: Confidence = "predicted and matched"
    by_launches: bool = False
    of_gradients: bool = False
    details: Facts = field(default_factory=dict)

    @property
    def sentence_facts(self) -> dict[str, Any]:
        """All that its sentence states."""
        return {
            "batch": self.batch,
            "times": self.factor,
            "number": self.number,
            "by_launches": self.by_launches,
            "of_gradients": self.of_gradients,
            **self.details,
        }

    def applies_to_row(self, evidence: RowEvidence) -> bool:
        """Return whether the row has the factor."""
        return not self.of_gradients or evidence.row.direction != "forward"


def list_whole_step_causes(factors_by_batch: Mapping[int, Sequence[CommonFactor]]) -> list[Cause]:
    """Return one cause for each factor of the complete sweep; its rows have the factor."""
    every = sorted(
        (step for common in factors_by_batch.values() for step in common), key=attrgetter("batch")
    )
    by_factor = group_by(every, lambda step: (step.reason, step.confidence, round(step.factor, 3)))
    causes = []
    for *other_steps, step in by_factor.values():
        facts = step.sentence_facts | {"others": [str(other.batch) for other in other_steps]}
        variant = f"sweep, {step.reason}"
        causes.append(Cause("whole step", None, facts, (), step.confidence, variant))
    return causes


def infer_layer_calls_from_launches(
    evidence: RowEvidence, products: Sequence[KernelGroup]
) -> int | None:
    """Return how often each product was launched for once in the estimate; None if they differ, or
    if launches may be parts.

    A layer that runs N times runs each of its products N times. A recurrent layer may launch one
    product for each step of its sequence, and a fused attention one for all of its products. Each
    process and device launches its own.
    """
    recurrent = RECURRENT.search(evidence.row.kind or "") or any(
        kernel.algorithm.family == "rnn" for kernel in products
    )
    if recurrent or not products:
        return None
    directions = {kernel.algorithm.direction for kernel in products}
    launches, needed = count_launches(products), count_estimated_products(evidence)
    if len(directions) == 1 and None not in directions and needed > evidence.calls:
        return None  # all of one gradient
    copies = evidence.launched.worker_count
    needed *= copies if all(kernel.launches % copies == 0 for kernel in products) else 1
    count = round(launches / needed)
    if count * needed != launches or any(kernel.launches % count for kernel in products):
        return None
    return count


def count_estimated_products(evidence: RowEvidence) -> int:
    """Return the estimated products of a step; attention is two of forward, and four gradients,
    unless its kernel is fused."""
    products = evidence.calls * max(sum(bool(call.flops) for call in evidence.row.calls), 1)
    kernels = evidence.product_kernels
    if not evidence.attention or {kernel.algorithm.family for kernel in kernels} != {"gemm"}:
        return products
    return products * (2 if evidence.row.direction == "forward" else 4)


def detect_extra_calls(case: RowCase, calls_of_all_layers: int = 1) -> Cause | None:
    """The layer ran more often than the step needs it.

    Evidence  launches of each product, and grids that match the complete layer; without grids, a
              count of N times the estimate (plausible).
    Factor    N launches; none if a part of the product may execute as much as all of it, because
              the launches may then be parts.
    Silent    for recurrent layers, unequal launches, and launches that ncu left out.
    Fix       check the number of profiled steps, gradient accumulation, and calls of the layer.

    ``calls_of_all_layers``: how often all layers ran.
    """
    runs = _count_forward_runs_matching_gradients(case) or infer_layer_calls_from_launches(
        case.evidence, _select_product_kernels(case, calls_of_all_layers)
    )
    return _propose_extra_calls(case, runs, calls_of_all_layers, calls_of_all_layers)


def detect_extra_gradients(case: RowCase, calls_of_all_layers: int = 1) -> Cause | None:
    """The gradients of a layer ran more often than its forward: double backward, or several losses.

    Evidence  launches of the gradients' products, and of forward's.
    Factor    launches of the gradients / launches of forward.
    Silent    if forward ran as often, and as for extra calls.
    Fix       as for extra calls.
    """
    forward = _count_forward_runs_matching_gradients(case)
    runs = (
        infer_layer_calls_from_launches(
            case.evidence, _select_product_kernels(case, calls_of_all_layers)
        )
        if forward
        else None
    )
    return _propose_extra_calls(
        case, runs, max(forward or 0, calls_of_all_layers), calls_of_all_layers
    )


def _select_product_kernels(case: RowCase, calls_of_all_layers: int) -> Kernels:
    return case.evidence.product_kernels if calls_of_all_layers > 1 else case.breakdown.products


def _count_forward_runs_matching_gradients(case: RowCase) -> int | None:
    """Return how often forward of a gradients' layer ran, if the gradients ran as often or a
    multiple of it."""
    forward = case.forward_row if case.evidence.row.direction != "forward" else None
    forward_runs = (
        infer_layer_calls_from_launches(forward, forward.product_kernels) if forward else None
    )
    runs = infer_layer_calls_from_launches(case.evidence, case.breakdown.products)
    return forward_runs if forward_runs and runs and runs % forward_runs == 0 else None


def _propose_extra_calls(
    case: RowCase, runs: int | None, expected: int, calls_of_all_layers: int
) -> Cause | None:
    """Return the cause of ``runs`` instead of ``expected`` launches, which other causes explain."""
    parts, evidence = case.breakdown, case.evidence
    if (
        case.executed_flops is None
        or not case.ratio
        or not runs
        or runs % expected
        or runs // expected < 2
    ):
        return None
    number, products = runs // expected, _select_product_kernels(case, calls_of_all_layers)
    launched = infer_layer_calls_from_launches(evidence, products)
    if not launched or (parts.several and calls_of_all_layers == 1):
        return None
    matched, counted = parts.called > 0, None
    if not matched:  # without a matching grid, the count must be a multiple
        if parts.rules or parts.family in ("winograd", "fft", "attention", None):
            return None
        counted = ExpectedNumber(
            case.executed_flops / evidence.estimated_flops, launched, log(EXTRA_CALLS_RATIO_MAX)
        )
        if not can_grids_fit_shape(evidence):
            return None
    parts_of = (
        count
        for count in list_divisors_above_1(launched)
        if can_part_need_all_tiles(evidence, products, count)
    )
    split = max(parts_of, default=0)
    forward = _count_forward_runs_matching_gradients(case)
    gradients = forward is not None and number * max(forward, calls_of_all_layers) == launched
    return case.make_cause_unless_contradicted(
        "extra calls",
        None if split else float(number),
        products,
        Implications(
            is_counted=bool(split),
            is_stated=bool(split or matched),
            flops=counted,
            is_complete=True,
        ),
        "or parts" if split else "of gradients" if gradients else "",
        launches=count_launches(products),
        needed=count_estimated_products(evidence),
        number=number,  # of the launches, what no other cause explains
        all_layers=calls_of_all_layers if calls_of_all_layers > 1 else None,
        accumulates=calls_of_all_layers == 1 and evidence.mode != "infer",
        parts=split,
        may_be_trials=evidence.environment.get("cudnn_benchmark") != "off",
    )


def find_common_factors_by_batch(candidates: Candidates) -> Mapping[int, Sequence[CommonFactor]]:
    """Return what all rows of a batch size have in common, by batch size.

    Evidence  launches: every kernel of every product was launched N times or a multiple, at least
              two layers' exactly N times. Then counts: nine tenths of the rows agree on a factor
              that no other cause explains; two layers are enough for one of N ranks of a recorded
              ``world_size``. It is plausible, because several causes have the same counts, unless
              as many processes or devices were recorded, or steps that differ. Grids of the row's
              own batch contradict another batch.
    Factor    N, 1/N, or a whole number of samples / the batch.
    Silent    if a tenth of the rows disagree, or if N launches do 1/N of the work each.
    Fix       check the batch size, steps, gradient accumulation, and ranks.
    """
    by_batch = group_by(candidates, lambda candidate: candidate[0].evidence.row.batch_size_or_one)
    steps: dict[int, list[CommonFactor]] = {}
    for batch, rows in by_batch.items():
        launched = _find_whole_step_factors_from_launches(
            batch, [case.evidence for case, _ in rows]
        )
        counted = _find_whole_step_factor_from_counts(
            batch, [row for row in rows if _has_exact_multiply_add_count(row[0])], launched
        )
        both = [*launched, *([counted] if counted else [])]
        # N launches of 1/N of the work are the estimated work
        if both and abs(log(prod(step.factor for step in both))) >= AGREEMENT_LOG_MAX:
            steps[batch] = both
    return steps


def _find_whole_step_factors_from_launches(
    batch: int, rows: Iterable[RowEvidence]
) -> list[CommonFactor]:
    """Return the steps that launches show: every product of every layer was launched N times or a
    multiple of it, because a single layer may have been called again."""
    ran = [row for row in rows if row.product_kernels]
    gradients = [row for row in ran if row.row.direction != "forward"]
    forward = [row for row in ran if row.row.direction == "forward"]
    steps = []
    number = _compute_launch_count_gcd(forward, ran)
    if number > 1:
        no_trials = all(row.environment.get("cudnn_benchmark") == "off" for row in ran)
        may_be_trials = not no_trials and not gradients
        trains = any(row.mode != "infer" for row in ran)
        details = {"may_be_trials": may_be_trials, "trains": trains}
        steps.append(
            CommonFactor(batch, number, number, "launches", by_launches=True, details=details)
        )
    repeats = _compute_launch_count_gcd(gradients, gradients)
    exact = sum(
        infer_layer_calls_from_launches(row, row.product_kernels) == number for row in forward
    )
    if exact > 1 and repeats > number and repeats % number == 0:
        factor = repeats // number
        repeated = CommonFactor(batch, factor, factor, "gradient launches", by_launches=True)
        steps.append(replace(repeated, of_gradients=True))
    return steps


def _compute_launch_count_gcd(rows: Sequence[RowEvidence], all_rows: Sequence[RowEvidence]) -> int:
    """Return how often all rows ran their products, if at least two layers ran them exactly this
    often; otherwise 1."""
    multiples = {
        row.row_key: infer_layer_calls_from_launches(row, row.product_kernels) for row in all_rows
    }
    number = gcd(*(multiple for row in rows if (multiple := multiples[row.row_key])))
    exact = {layer for (_, layer, _), multiple in multiples.items() if multiple == number}
    # N steps launch each kernel N times; kernels tried once each do not
    differ = number and any(
        kernel.launches % number for row in all_rows for kernel in row.product_kernels
    )
    return number if number and len(exact) > 1 and not differ else 1


def _has_exact_multiply_add_count(case: RowCase) -> bool:
    """Return whether the row has a complete count of multiply-adds. How many lanes of an HFMA2 were
    used is not known, so its count may be off by 2."""
    evidence = case.evidence
    halves = any(
        kernel.counts.get("hfma") and kernel.multiply_add_flops
        for kernel in evidence.product_kernels
    )
    other_batch = evidence.seen_batch not in (None, evidence.row.batch_size_or_one)
    return bool(case.ratio) and not (evidence.row.executed.lower_bound or halves or other_batch)


def _compute_ratios_left_after_causes(
    case: RowCase, causes: Iterable[Cause], launched: Iterable[CommonFactor]
) -> tuple[float, float, float, float]:
    """Return what the launches leave of the ratio: after all causes but rivals, after none, after
    forward run again as well; and of the multiply-adds, after all causes of these but rivals."""
    factors = [(cause.rule, cause.factor) for cause in causes if cause.factor]
    steps = prod(step.factor for step in launched if step.applies_to_row(case.evidence))
    per_step = (case.ratio or 1) / steps
    unexplained = per_step / prod(factor for rule, factor in factors if rule not in RIVALS)
    products = (
        sum_multiply_add_flops(case.evidence.product_kernels)
        / case.evidence.estimated_flops
        / steps
    )
    products /= prod(factor for rule, factor in factors if rule not in (*RIVALS, *BESIDE))
    recomputed = prod(factor for rule, factor in factors if rule == "recomputation")
    return unexplained, per_step, unexplained / recomputed, products


def _find_whole_step_factor_from_counts(
    batch: int, rows: Candidates, launched: Sequence[CommonFactor]
) -> CommonFactor | None:
    """Return the step that counts show: most rows agree on N, 1/N, or a whole number of samples."""
    if not rows:
        return None
    remaining = [
        (case, _compute_ratios_left_after_causes(case, causes, launched)) for case, causes in rows
    ]
    factor = median(unexplained for _, (unexplained, _, _, _) in remaining)
    evidences = [case.evidence for case, _ in rows]
    steps = [sum(flops) for flops in zip(*(row.launched.steps for row in evidences), strict=False)]
    steps = steps if LaunchPlaces(steps=tuple(steps)).has_unequal_steps else []
    number = round(factor) if factor >= 1 else 1 / round(1 / factor)
    error = AGREEMENT_LOG_MAX
    is_whole = abs(log(factor / number)) < error and 1 / NUMBER_MAX <= number <= NUMBER_MAX
    if not is_whole or abs(log(number)) < FACTOR_LOG_MIN:
        number = median(products for _, (_, _, _, products) in remaining) or 1.0
        samples = round(batch * number)
        is_whole = samples > 0 and abs(batch * number - samples) < SAMPLES_ERROR_MAX
        number = samples / batch if is_whole else number
        if abs(log(number)) < SAMPLES_LOG_MIN or not (is_whole or steps):
            return None
        error = min(error, abs(log(number)) / 4)
    layers = {case.evidence.row.layer for case, _ in rows}
    is_few = len(rows) < ROWS_MIN or len(layers) < LAYERS_MIN
    if len(layers) < 2 or (is_few and not _is_recorded_as_single_rank(evidences, number)):
        return None
    agreeing = [
        case.evidence
        for case, factors in remaining
        if min(abs(log(factor / number)) for factor in factors if factor > 0) < error
    ]
    estimated = sum(row.estimated_flops for row in evidences)
    share = sum(evidence.estimated_flops for evidence in agreeing) / estimated
    if share < AGREEING_SHARE_MIN or len(agreeing) < AGREEING_SHARE_MIN * len(rows):
        return None
    return _explain_common_factor(batch, number, share, agreeing, launched, steps)


def _is_recorded_as_single_rank(rows: Sequence[RowEvidence], factor: float, runs: int = 1) -> bool:
    """Return whether the run was recorded as one of 1 / factor ranks, each of whose batches is in
    ``runs`` parts."""
    worlds = {row.environment.get("world_size") for row in rows}
    return factor < 1 and worlds == {str(round(1 / factor / runs))}


def _explain_common_factor(
    batch: int,
    factor: float,
    share: float,
    rows: Sequence[RowEvidence],
    launched: Sequence[CommonFactor],
    steps: Sequence[float],
) -> CommonFactor | None:
    """Return the step with what may have made all counts N times or 1/N of the estimate; None if
    the grids contradict all of it."""
    size = max(factor, 1 / factor)
    number = round(size)
    is_number = log(size) >= FACTOR_LOG_MIN and abs(log(size / number)) < AGREEMENT_LOG_MAX
    tensor = all((kernel.tensor.value or 0) > 0 for row in rows for kernel in row.product_kernels)
    may_be_3xtf32, may_be_sparse = tensor and number == 3, tensor and number == 2
    details: dict[str, Any] = {
        # of the estimated FLOPs: rows that agree on the factor
        "share": share,
        "samples": batch * factor,
        "part": factor,
        "is_smaller": factor < 1,
        "may_be_3xtf32": may_be_3xtf32,
        "may_be_sparse": may_be_sparse,
    }
    placed = {(row.launched.devices, row.launched.processes) for row in rows}
    multiples = [infer_layer_calls_from_launches(row, row.product_kernels) for row in rows]
    if factor > 1 and not launched and number in multiples:
        return None  # some were launched as often, and others not
    ((devices, processes), *other_places) = placed
    if not other_places and max(devices, processes) == factor > 1:
        details |= {"devices": devices, "processes": processes}
        return CommonFactor(batch, factor, number, "copies", details=details)
    if steps:
        mean = sum(steps) / len(steps) / factor
        least, most = min(steps) / mean, max(steps) / mean
        # of the steps that executed least and most, the factors
        details |= {"steps": len(steps), "least": least, "most": most}
        return CommonFactor(batch, factor, number, "uneven steps", details=details)
    runs = launched[0].number if launched and not launched[0].of_gradients else 1
    samples = round(batch * factor)
    # rows with grids that only their own batch has, less those that only the other batch has
    votes = sum(
        has_grid_matching_row_shape(row)
        - (has_grid_matching_row_shape(row.replace_profiled_batch(samples)) if samples else 0)
        for row in rows
    )
    if _is_recorded_as_single_rank(rows, factor, runs):
        number = round(1 / factor / runs)
        # how often each product ran for ``samples`` each
        details |= {"part": 1 / number, "runs": runs if runs > 1 else 0}
        reason = "one rank"  # or of a layer's columns
    elif votes > 0:
        reason = "own grids"
        if (may_be_sparse and factor < 1) or (may_be_3xtf32 and factor > 1):
            reason += ", other products"
        elif factor <= 1:
            return None
    elif not is_number:
        reason = "other batch"
    else:
        reason = "larger batch" if factor > 1 else "smaller batch"
    return CommonFactor(batch, factor, number, reason, "plausible", details=details)
