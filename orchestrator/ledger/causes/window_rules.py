"""Rules about the profiler's window: counts that are the same at every batch size."""

from __future__ import annotations

from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from perfctl.orchestrator.counts.derived.records import Launch, LaunchWork
from perfctl.orchestrator.counts.derived.rules import derive_instructions
from perfctl.orchestrator.counts.kernels.short_names import shorten_kernel_name
from perfctl.orchestrator.ledger.causes import matching
from perfctl.orchestrator.ledger.causes.call_rules import (
    RECURRENT,
    count_estimated_products,
    infer_layer_calls_from_launches,
)
from perfctl.orchestrator.ledger.causes.evidence import (
    FP,
    EvidenceTable,
    KernelGroup,
    Loose,
    Place,
    RowEvidence,
    count_launches,
)
from perfctl.orchestrator.ledger.causes.missing_rules import METRICS
from perfctl.orchestrator.ledger.causes.rule import (
    Cause,
    Facts,
    Implications,
    RowCase,
)

SAME_COUNT_RATIO_MAX = 1.001
"""Counts no further apart are the same."""
GROWTH_MIN = 1.5
"""The estimated work must grow by at least this for a constant to be a cause."""
WINOGRAD_BLOCK_IMAGES_MAX = 32
"""Tiles of one block of cuDNN's Winograd kernels are of as many images at most."""
BATCH_MAX = 1 << 20
PROPOSED_BATCHES_MAX = 20
COUNTS = (*FP, "pipe", "ops_path")
COUNT_NAMES = {"tensor": "multiply-adds"}
"""Counts whose names are no instruction's."""


@dataclass(frozen=True, slots=True)
class ConstantWindow:
    """The profiler recorded the same work at every batch size."""

    places: frozenset[Place]
    """Ledger rows whose counts are the same at every batch size; empty if only kernels outside of
    layers are."""
    batch: int | None
    """The batch size that explains the counts; None if none does."""
    facts: Facts
    """What proves it."""
    kernels: tuple[str, ...]
    row: tuple[str, str] | None = None
    """(layer, direction) whose work the kernels do; None if no layer fits."""
    variant: str = "kernel"
    """Which sentence states the facts."""


@dataclass(frozen=True, slots=True)
class BatchMatch:
    """A count of a row that is a round number of samples."""

    evidence: RowEvidence
    count: str
    value: float
    batch: int

    @property
    def facts(self) -> Facts:
        """The count and the batch size."""
        name = COUNT_NAMES.get(self.count, self.count.upper())
        return {"count": name, "value": self.value, "seen": self.batch}


def detect_counts_from_other_batch(case: RowCase) -> Cause | None:
    """The row's count belongs to another batch size.

    Evidence  counts that are the same at every batch size.
    Factor    that batch size / the row's.
    Silent    without counts, or if the batch size is the row's.
    Fix       open the profiler's window around the training step.
    """
    evidence, seen_batch = case.evidence, case.evidence.seen_batch
    if (
        seen_batch is None
        or seen_batch == evidence.row.batch_size_or_one
        or not any(map(evidence.sum_raw_counter_over_kernels, COUNTS))
    ):
        return None
    factor = seen_batch / evidence.row.batch_size_or_one
    return case.make_cause_unless_contradicted(
        "wrong window",
        factor,
        evidence.kernels,
        Implications(batches=(seen_batch,)),
        seen=seen_batch,
    )


def find_work_constant_across_batches(
    table: EvidenceTable, kernels_outside_layers: Loose
) -> ConstantWindow | None:
    """Return the work that stays while the estimate grows: in the layers' rows, or else in kernels
    outside of them. The other rules are then applied to the batch size that explains the counts.

    Evidence  counts of all rows along the sweep, one FFMA for each multiply-add or one FADD for
              each output, and grids.
    Factor    none for the sweep; its rows have it. The program may also pad every batch to that
              size.
    Silent    unless most of the counted and of the estimated work stays while the estimate grows by
              at least half. A layer that may fit in one tile, a recurrent one, one with a single
              row of blocks, or one with incomplete counters proves nothing.
    Fix       open the profiler's window around the training step.
    """
    return _find_constant_work_in_rows(table) or _find_constant_work_outside_layers(
        table, kernels_outside_layers
    )


def _find_constant_work_in_rows(table: EvidenceTable) -> ConstantWindow | None:
    constant: list[RowEvidence] = []
    proving, total = [0.0, 0.0], [0.0, 0.0]  # estimates, counts
    for group in table.rows_with_kernels_by_batch.values():
        estimates = [evidence.estimated_flops for evidence in group]
        counts = [
            sum(evidence.sum_raw_counter_over_kernels(count) or 0 for count in COUNTS)
            for evidence in group
        ]
        if not any(counts):
            continue
        weights = sum(estimates), sum(counts)
        total = [before + weight for before, weight in zip(total, weights, strict=True)]
        # a row that lacks its counters at one batch size proves nothing
        figures = [evidence.row.executed for evidence in group]
        coverages = {
            (figure.lower_bound, figure.launches, figure.of_launches) for figure in figures
        }
        if is_count_constant_as_work_grows(estimates, counts) and len(coverages) == 1:
            constant += group
            if not _can_batches_execute_same_work(group):
                proving = [before + weight for before, weight in zip(proving, weights, strict=True)]
    if any(part <= all_ / 2 for part, all_ in zip(proving, total, strict=True)):
        return None
    worlds = {
        evidence.row.batch_size_or_one: evidence.environment.get("world_size")
        for evidence in constant
    }
    if len({size / int(world or 1) for size, world in worlds.items()}) == 1:
        return None  # more ranks with as many samples each
    batch = _find_batch_explaining_most_rows(constant)
    matches = (
        match for evidence in constant for match in _list_row_batches_explaining_counts(evidence)
    )
    proof = next((match for match in matches if match.batch == batch), None)
    sizes = [evidence.row.batch_size_or_one for evidence in constant]
    evidence = proof.evidence if proof else constant[0]
    layer, direction = evidence.row.layer, evidence.row.direction
    facts = {
        "name": evidence.row.name,
        "layer": layer,
        "first": min(sizes),
        "last": max(sizes),
        "fits": batch,
        **(proof.facts if proof else {}),
    }
    return ConstantWindow(
        frozenset(evidence.row_key for evidence in constant),
        batch,
        facts,
        tuple(kernel.name for kernel in evidence.kernels),
        (layer, direction),
        "row with a batch" if proof else "row",
    )


def _can_batches_execute_same_work(rows_by_batch: Sequence[RowEvidence]) -> bool:
    """Return whether all batch sizes of a row may execute the same, so that it proves nothing."""
    if all(matching.has_tiling_for_row_batch(evidence) for evidence in rows_by_batch):
        return True
    if frozenset.intersection(
        *(matching.list_tiles_fitting_count(evidence) for evidence in rows_by_batch)
    ):
        return True
    if all(matching.has_one_row_of_tiles(evidence) for evidence in rows_by_batch):
        return True
    # a step of a recurrent layer may fill a tile too, and which products it launches is not
    # known; a block of a Winograd or FFT kernel may take as many images
    largest = rows_by_batch[-1]
    return bool(RECURRENT.search(rows_by_batch[0].row.kind or "")) or (
        largest.row.batch_size_or_one <= WINOGRAD_BLOCK_IMAGES_MAX
        and any(kernel.algorithm.family in ("winograd", "fft") for kernel in largest.kernels)
    )


def _list_row_batches_explaining_counts(evidence: RowEvidence) -> list[BatchMatch]:
    """Return ``list_batches_explaining_counts`` of the row; nothing if only some launches were
    counted, or if the estimate has other tiles than fused attention."""
    counted = evidence.row.executed
    fused = any(kernel.algorithm.family == "attention" for kernel in evidence.product_kernels)
    if 0 < counted.launches < counted.of_launches or evidence.left_out:
        return []
    if count_launches(evidence.product_kernels) < count_estimated_products(evidence):
        return []
    if fused and (evidence.causal or evidence.row.direction != "forward"):
        return []
    matches = list_batches_explaining_counts(evidence, evidence.kernels)
    # epilogues may have several additions for each output
    matches = [match for match in matches if match.count not in ("fadd", "fmul")] or matches
    runs = infer_layer_calls_from_launches(evidence, evidence.product_kernels) or 1
    if runs == 1:
        return matches
    # or a smaller batch, as often
    smaller = [
        BatchMatch(evidence, match.count, match.value / runs, match.batch // runs)
        for match in matches
        if match.batch % runs == 0
    ]
    return [*matches, *smaller]


def _find_batch_explaining_most_rows(constant_rows: Sequence[RowEvidence]) -> int | None:
    """Return the batch size that explains the counts of most rows."""
    proposed = {
        evidence.row_key: {
            match.batch: None for match in _list_row_batches_explaining_counts(evidence)
        }
        for evidence in constant_rows
    }
    tally = Tally(
        match.batch
        for evidence in constant_rows
        for match in _list_row_batches_explaining_counts(evidence)
    )
    # the program may pad every batch to the largest
    largest = max(evidence.row.batch_size_or_one for evidence in constant_rows)
    common = [batch for batch, _ in tally.most_common(PROPOSED_BATCHES_MAX)]
    votes: dict[int, list[RowEvidence]] = {}
    for batch in dict.fromkeys([*common, largest]):
        for evidence in constant_rows:
            evidence_at_batch = evidence.replace_profiled_batch(batch)
            exact = batch in proposed[evidence.row_key] and matching.can_grids_fit_shape(
                evidence_at_batch
            )
            if (
                exact
                or matching.predict_product_flops_from_tiles(
                    evidence_at_batch, evidence_at_batch.product_kernels
                )
                is not None
            ):
                votes.setdefault(batch, []).append(evidence)

    def rank(batch: int) -> tuple[int, int, bool, int]:
        # a gradient may be missing, which halves a count: of as many votes, those of forward
        forward = sum(row.row.direction == "forward" for row in votes[batch])
        return -len(votes[batch]), -forward, batch != largest, batch

    best = min(votes, key=rank, default=None)
    # a batch half as large, whose products all ran twice, has the same counts
    ran_once = best is not None and any(
        (infer_layer_calls_from_launches(row, row.product_kernels) or 1) == 1 for row in votes[best]
    )
    return best if ran_once else None


def _find_constant_work_outside_layers(
    table: EvidenceTable, kernels_outside_layers: Loose
) -> ConstantWindow | None:
    """Return the window by kernels of no layer, by name. The optimizer's do not grow with the batch
    either, so only products count."""
    by_name: dict[str, dict[int, list[KernelGroup]]] = defaultdict(lambda: defaultdict(list))
    for batch, kernels in kernels_outside_layers.items():
        for kernel in kernels:
            if kernel.is_main_product_kernel and kernel.algorithm.family is not None:
                by_name[kernel.name][batch].append(kernel)
    counts = {
        name: {
            batch: sum(kernel.counts.get(op, 0) for kernel in kernels for op in FP)
            for batch, kernels in batches.items()
        }
        for name, batches in by_name.items()
    }
    last = {name: by_batch[max(by_batch)] for name, by_batch in counts.items()}
    staying = [
        name
        for name, by_batch in counts.items()
        if is_count_constant_as_work_grows(by_batch, by_batch.values())
    ]
    if not staying or sum(last[name] for name in staying) <= sum(last.values()) / 2:
        return None
    name = max(staying, key=lambda name: last[name])
    batches = by_name[name]
    largest = max(batches)
    facts = {"name": name, "first": min(batches), "last": largest}
    matches = _list_layer_batches_explaining_kernels(table, largest, batches[largest])
    if not matches:
        return ConstantWindow(frozenset(), None, facts, (name,))
    match = min(matches, key=lambda match: match.batch)
    row = match.evidence.row
    facts |= {**match.facts, "layer": row.layer, "each": match.value / match.batch}
    variant = f"kernel of {match.count}"
    return ConstantWindow(
        frozenset(), match.batch, facts, (name,), (row.layer, row.direction), variant
    )


def _list_layer_batches_explaining_kernels(
    table: EvidenceTable, batch: int, kernels: Sequence[KernelGroup]
) -> list[BatchMatch]:
    """Return the matches of the layers that kernels of one name may serve; a convolution's serve no
    other layer."""
    convolution = kernels[0].algorithm.family in ("conv", "winograd", "fft", "depthwise")
    return [
        match
        for (size, _, direction), evidence in table.items()
        if size == batch and direction == "forward"
        if not convolution or "Conv" in (evidence.row.kind or "")
        for match in list_batches_explaining_counts(evidence, kernels)
    ]


def is_count_constant_as_work_grows(
    estimated_work: Collection[float],
    counts: Collection[float],
    ratio_max: float = SAME_COUNT_RATIO_MAX,
) -> bool:
    """Return whether the counts are positive and the same while the work grows."""
    if not counts or min(*estimated_work, *counts) <= 0:
        return False
    return max(counts) <= ratio_max * min(counts) and max(estimated_work) >= GROWTH_MIN * min(
        estimated_work
    )


def list_batches_explaining_counts(
    evidence: RowEvidence, kernels: Iterable[KernelGroup]
) -> list[BatchMatch]:
    """Return the batch sizes at which a count is one per multiply-add, or one per output.

    FMUL and FADD of cuBLAS products are those of complete tiles, of every part of a split sum and
    of slices, not of outputs.
    """
    row = evidence.row
    per_sample: dict[str, float] = {
        "ffma": (row.complete_estimated_flops or 0) / 2 / row.batch_size_or_one
    }
    direct = [
        kernel
        for kernel in kernels
        if kernel.algorithm.role == "main" and kernel.algorithm.family not in ("winograd", "fft")
    ]
    tiled = any(kernel.algorithm.family == "gemm" and kernel.algorithm.tile for kernel in direct)
    if row.direction == "forward" and not tiled:
        per_sample |= dict.fromkeys(
            ("fadd", "fmul"), _count_output_elements(evidence) / row.batch_size_or_one
        )
    if any(kernel.tensor.value for kernel in direct):
        per_sample["tensor"] = per_sample["ffma"]
    matches = []
    for count, each in per_sample.items():
        counted = [
            kernel
            for kernel in direct
            if kernel.is_main_product_kernel or count in ("fadd", "fmul")
        ]
        value = sum(
            kernel.multiply_add_flops / 2 if count == "tensor" else kernel.counts.get(count, 0)
            for kernel in counted
        )
        if value and each and value % each == 0 and value // each <= BATCH_MAX:
            matches.append(BatchMatch(evidence, count, value, int(value // each)))
    return matches


def _count_output_elements(evidence: RowEvidence) -> int:
    return sum(call.output_elements or 0 for call in evidence.row.calls)


def list_constant_work_causes(window: ConstantWindow | None) -> list[Cause]:
    """Return the cause for the complete sweep, whose rows have the factor."""
    if window is None:
        return []
    sizes = (batch for batch, _, _ in window.places if isinstance(batch, int))
    largest = max(sizes, default=None)
    facts = {**window.facts}
    if window.batch is not None and largest is not None and window.batch >= largest:
        facts["padded"] = window.batch
    variant = f"sweep, {window.variant}"
    return [Cause("wrong window", None, facts, window.kernels, "observed", variant)]


def list_fadd_without_ffma_causes(
    table: EvidenceTable, kernels_outside_layers: Loose
) -> list[Cause]:
    """Return the largest kernel of which only FADD was collected, if no kernel has a layer.

    Evidence  which counters were collected.
    Factor    none.
    Silent    if any kernel has a layer.
    Fix       collect FADD, FMUL, and FFMA.
    """
    if any(evidence.kernels for evidence in table.values()):
        return []
    additions = [
        (kernel.counts["fadd"], batch, kernel)
        for batch, kernels in kernels_outside_layers.items()
        for kernel in kernels
        if "fadd" in kernel.counts and "ffma" not in kernel.counts
    ]
    if not additions:
        return []
    value, batch, kernel = max(additions, key=lambda item: item[:2])
    facts = {"fadd": value, "kernel": shorten_kernel_name(kernel.name), "metrics": METRICS["fp32"]}
    variant = "outside"
    matches = [
        match
        for match in _list_layer_batches_explaining_kernels(table, batch, (kernel,))
        if match.count == "fadd"
    ]
    if matches:
        match = max(matches, key=lambda match: match.evidence.estimated_flops)
        macs = match.evidence.estimated_flops / 2 / _count_output_elements(match.evidence)
        facts |= {"layer": match.evidence.row.layer, "macs": macs, "ffma": macs * value}
        variant = "of a layer"
        shape = match.evidence.replace_profiled_batch(match.batch).forward
        derived = derive_instructions(Launch(kernel.name), LaunchWork(shape)) if shape else None
        if derived is not None and derived.fadd == value:
            facts |= {"seen": match.batch, "derivation": derived.rule}
            variant = "derived"
    return [Cause("FADD alone", None, facts, (kernel.name,), "observed", f"sweep, {variant}")]
