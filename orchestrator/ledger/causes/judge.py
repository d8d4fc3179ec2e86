"""From rows to causes: all rules in one table, applied to a complete study.

A rule is a function from a ``RowCase`` (one ledger row) to a candidate or None. Rules about
the complete sweep are in ``window_rules`` and ``study_rules``. Several rules may apply to a row;
their factors multiply, and ``drop_refuted_and_rank_causes`` drops those that the count refutes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import log, prod

from perfctl.orchestrator.ledger.causes import (
    call_rules,
    gradient_rules,
    missing_rules,
    row_rules,
    shape_rules,
    study_rules,
    tensor_rules,
    window_rules,
)
from perfctl.orchestrator.ledger.causes.evidence import (
    EvidenceTable,
    Place,
    collect_row_evidence_and_unattributed,
)
from perfctl.orchestrator.ledger.causes.rule import (
    Cause,
    Implications,
    RowCase,
    compute_explained_gap_share,
    deviates_from_one,
    get_ratio_unless_lower_bound,
)
from perfctl.orchestrator.ledger.expected import FORMULA
from perfctl.orchestrator.ledger.ledger import Ledger
from perfctl.orchestrator.ledger.prepared import Study
from perfctl.records.run import Point

Rule = Callable[[RowCase], Cause | None]

ROW_RULES: tuple[Rule, ...] = (
    window_rules.detect_counts_from_other_batch,
    missing_rules.detect_fadd_without_ffma,
    missing_rules.detect_missing_counters,
    missing_rules.detect_zero_flops,
    missing_rules.detect_direction_without_kernels,
    tensor_rules.detect_tensor_cores,
    tensor_rules.detect_fp32_emulated_by_3xtf32,
    tensor_rules.detect_structured_sparsity,
    tensor_rules.detect_hfma2_constant_moves,
    row_rules.detect_several_algorithms,
    row_rules.detect_winograd,
    row_rules.detect_fourier,
    row_rules.detect_tile_padding,
    row_rules.detect_derived_tile_padding,
    row_rules.detect_persistent_rnn,
    call_rules.detect_extra_calls,
    call_rules.detect_extra_gradients,
    shape_rules.detect_causal_mask,
    shape_rules.detect_attention_tiles,
    shape_rules.detect_other_product_size,
    shape_rules.detect_groups_as_dense,
    shape_rules.detect_skipped_padding_taps,
    shape_rules.detect_swapped_layers,
    row_rules.detect_kernel_shared_by_layers,
    gradient_rules.detect_missing_gradient,
    gradient_rules.detect_needless_gradient,
    gradient_rules.detect_strided_conv_gradient_zeros,
    gradient_rules.detect_algorithm_trials_in_gradients,
    gradient_rules.detect_forward_recomputation,
    gradient_rules.detect_recomputed_forward_other_kernel,
    row_rules.detect_split_k,
    row_rules.detect_layout_and_epilogue,
)
"""All rules about one row. A new one is a function and a name here."""

FORMULA_RULES: tuple[Rule, ...] = (
    missing_rules.detect_fadd_without_ffma,
    missing_rules.detect_missing_counters,
    missing_rules.detect_zero_flops,
    tensor_rules.detect_tensor_cores,
    tensor_rules.detect_hfma2_constant_moves,
)
"""Rules of ROW_RULES that hold for a formula of the user's which is no matrix product."""

GAIN_MIN = 0.5
"""Share of a factor (in logarithms) by which it must bring the product of all factors nearer to
the ratio."""


@dataclass(frozen=True, slots=True)
class RowCauses:
    """The causes of one ledger row, the strongest first, and what they leave open."""

    causes: tuple[Cause, ...] = ()
    unexplained: float | None = None
    """Share (0..1) of the gap that no cause explains; None without a gap or without a count."""


_NO_CAUSES = RowCauses()


@dataclass(frozen=True, slots=True)
class StudyCauses:
    """All causes of a study."""

    rows: Mapping[Place, RowCauses] = field(default_factory=dict)
    sweep: tuple[Cause, ...] = ()
    """Causes about the sweep as a whole: the count does not follow the batch size, a direction
    is missing."""
    window: window_rules.ConstantWindow | None = None
    """The profiler's window that recorded the same work at every batch size, if there was one."""

    def get_row_causes(self, batch: Point, layer: str, direction: str) -> RowCauses:
        """Return the causes of one ledger row; empty if there are none."""
        return self.rows.get((batch or 1, layer, direction), _NO_CAUSES)


def find_study_flop_gap_causes(
    study: Study, ledger: Ledger, related_studies: Sequence[Study] | None = None
) -> StudyCauses:
    """Return all causes of a study; none for a report without estimated layers.

    ``related_studies``: the studies of the same sweep that it is read with, itself among them;
    empty if another of them has their causes. By default it is read alone.
    """
    related_studies = (study,) if related_studies is None else related_studies
    slips = study_rules.find_formula_mistakes_by_row(study, ledger)
    table, all_loose = collect_row_evidence_and_unattributed(study, ledger)
    # what concerns the sweep as a whole is about batch sizes
    sized = EvidenceTable(
        {row_key: row for row_key, row in table.items() if row.row.has_no_sweep_parameters}
    )
    loose = {size: kernels for size, kernels in all_loose.items() if isinstance(size, int)}
    window = window_rules.find_work_constant_across_batches(sized, loose)
    sized = EvidenceTable(_reread_evidence_with_window_batch(window, sized))
    table = EvidenceTable({**table, **sized})
    candidates = []
    for evidence in table.values():
        case = RowCase(evidence, table, all_loose.get(evidence.row.key[0], ()))
        is_formula = evidence.row.kind == FORMULA
        rules = FORMULA_RULES if is_formula and evidence.forward is None else ROW_RULES
        proposed = [cause for rule in rules if (cause := rule(case)) is not None]
        proposed += [slip] if (slip := slips.pop(id(evidence.row), None)) else []
        if any(cause.rule == "swapped layers" for cause in proposed):
            rivals = {*call_rules.RIVALS} - {"swapped layers"}
            proposed = [cause for cause in proposed if cause.rule not in rivals]
        candidates.append((case, proposed))
    rows_of_steps = (pair for pair in candidates if pair[0].evidence.row.has_no_sweep_parameters)
    steps = call_rules.find_common_factors_by_batch(
        [pair for pair in rows_of_steps if pair[0].evidence.row.kind != FORMULA]
    )
    rows: dict[Place, RowCauses] = {}
    for case, proposed in candidates:
        row = case.evidence.row
        is_judged = case.ratio and row.has_no_sweep_parameters and row.kind != FORMULA
        common = steps.get(row.batch_size_or_one, ()) if is_judged else ()
        causes = drop_refuted_and_rank_causes(
            case, _replace_causes_by_common_factors(case, proposed, common)
        )
        unexplained = compute_unexplained_gap_share(
            get_ratio_unless_lower_bound(case.evidence), causes
        )
        if causes or unexplained is not None:
            rows[case.evidence.row_key] = RowCauses(causes, unexplained)
    for row in ledger.rows:
        if slip := slips.get(id(row)):
            explained = replace(slip, explained=compute_explained_gap_share(row.ratio, slip.factor))
            rows[row.key] = RowCauses((explained,), 0.0)
    sweep = (
        *window_rules.list_constant_work_causes(window),
        *call_rules.list_whole_step_causes(steps),
        *study_rules.list_constant_time_causes(study, ledger, window),
        *window_rules.list_fadd_without_ffma_causes(sized, loose),
        *study_rules.list_wrong_hand_estimates(study),
        *study_rules.list_different_gpu_causes(related_studies),
        *study_rules.list_work_time_contradiction_causes(related_studies),
        *missing_rules.list_missing_direction_causes(sized, loose),
        *study_rules.list_algorithm_switches(sized),
    )
    ours = any(evidence.ours for evidence in table.values())
    sweep = tuple(replace(cause, ours=ours) for cause in sweep)
    return StudyCauses(rows, sweep, window)


def _reread_evidence_with_window_batch(
    window: window_rules.ConstantWindow | None, table: EvidenceTable
) -> EvidenceTable:
    """Return the evidence, read as a profile of the batch size that explains the window."""
    if window is None or window.batch is None or not window.places:
        return table
    return EvidenceTable(
        {
            row_key: evidence.replace_profiled_batch(window.batch)
            if row_key in window.places or not evidence.kernels
            else evidence
            for row_key, evidence in table.items()
        }
    )


def _replace_causes_by_common_factors(
    case: RowCase, candidates: Sequence[Cause], common_factors: Iterable[call_rules.CommonFactor]
) -> Sequence[Cause]:
    """Return the candidates of a row, with the factor of all rows in place of its rivals."""
    common_factors = [step for step in common_factors if step.applies_to_row(case.evidence)]
    if not common_factors:
        return candidates
    launched = prod(step.number for step in common_factors if step.by_launches)
    step_rules = (
        (call_rules.detect_extra_calls, call_rules.detect_extra_gradients) if launched > 1 else ()
    )
    rivals = {*call_rules.RIVALS} - {"recomputation"}
    proposed = [
        *(cause for cause in candidates if cause.rule not in rivals),
        *(rule(case, launched) for rule in step_rules),
        # last: if a half-filled tile fits as well, the cause of all rows stays
        *(
            case.make_cause_unless_contradicted(
                "whole step",
                step.factor,
                implications=Implications(is_stated=step.confidence != "plausible", changes=True),
                variant=step.reason,
                **step.sentence_facts,
            )
            for step in common_factors
        ),
    ]
    return [cause for cause in proposed if cause is not None]


def drop_refuted_and_rank_causes(case: RowCase, candidates: Iterable[Cause]) -> tuple[Cause, ...]:
    """Return the candidates that the row's count does not refute, the strongest first.

    Each gets the share of the gap that it explains.
    """
    causes = []
    for cause in candidates:
        is_named = cause.factor is not None and case.is_factor_significant(cause.factor)
        share = compute_explained_gap_share(case.ratio, cause.factor) if is_named else None
        causes.append(replace(cause, explained=share))
    remaining = drop_refuted_causes(case.ratio, causes)
    return tuple(
        sorted(remaining, key=lambda cause: 1 if cause.explained is None else -cause.explained)
    )


def compute_unexplained_gap_share(ratio: float | None, causes: Iterable[Cause]) -> float | None:
    """Return the share (0..1) of the gap that all factors together leave; None without a gap or a
    count, and if several algorithms ran of which not all were counted: they are the cause, and how
    much of the gap they explain is not known."""
    causes = list(causes)
    if any(cause.rule == "several algorithms" and cause.factor is None for cause in causes):
        return None
    factor = prod(cause.factor for cause in causes if cause.factor is not None)
    share = compute_explained_gap_share(ratio, factor)
    return None if share is None else 1 - share


def drop_refuted_causes(ratio: float | None, causes: Iterable[Cause]) -> list[Cause]:
    """Return the causes without those whose factor the count refutes; the one that fits least
    goes first.

    A cause whose factor is 1 or None only describes, and stays. So do all without a count.
    """
    remaining = list(causes)
    while ratio:
        factors = [
            (cause, log(cause.factor))
            for cause in remaining
            if cause.factor and (deviates_from_one(cause.factor) or cause.explained is not None)
        ]
        total, gap = sum(factor for _, factor in factors), log(ratio)
        gains = [
            ((abs(gap - total + factor) - abs(gap - total)) / abs(factor), cause)
            for cause, factor in factors
        ]
        # of as much gain, the one that is less certain
        least, worst = min(
            gains,
            key=lambda item: (round(item[0], 1), item[1].confidence != "plausible"),
            default=(GAIN_MIN, None),
        )
        if worst is None or least >= GAIN_MIN:
            break
        remaining.remove(worst)
    return remaining
