"""Rules about a profiler window that caught something else: counts that do not follow the
batch size."""

from __future__ import annotations

from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from perfctl.orchestrator.counts.derived.records import Launch, Work
from perfctl.orchestrator.counts.derived.rules import derive
from perfctl.orchestrator.counts.hardware.peaks import peaks_of
from perfctl.orchestrator.counts.kernels.names import of_layer
from perfctl.orchestrator.counts.kernels.short_names import spoken
from perfctl.orchestrator.estimate.sheets.layers import Facts
from perfctl.orchestrator.estimate.sheets.sheet import sheet_for
from perfctl.orchestrator.estimate.sheets.slips import UNITS, Finding, check, explain, in_its_unit
from perfctl.orchestrator.ledger.causes import matching as rows
from perfctl.orchestrator.ledger.causes.evidence import (
    FP,
    KernelGroup,
    Loose,
    Place,
    RowEvidence,
)
from perfctl.orchestrator.ledger.causes.missing_rules import COLLECT, COLLECT_FP32
from perfctl.orchestrator.ledger.causes.row_rules import RECURRENT, multiple
from perfctl.orchestrator.ledger.causes.rule import (
    Confidence,
    RuleInput,
    Verdict,
    amount,
    is_news,
    times,
    verdict,
)
from perfctl.orchestrator.ledger.ledger import Ledger
from perfctl.orchestrator.ledger.prepared import Study
from perfctl.orchestrator.ledger.timing import host_times
from perfctl.records.run import Run

SAME = 1.001
"""Counts no further apart than this are the same."""
IMAGES = 32
"""Tiles of one block of cuDNN's Winograd kernels, of as many images at most."""
GROWS = 1.5
"""The work on paper must grow by at least this for a constant to be news."""
LARGEST = 1 << 20
PROPOSED = 20
COUNTS = (*FP, "pipe", "ops_path")
NAMED = {"tensor": "multiply-adds"}
"""Counts whose names are no instruction's."""

BY_PERFCTL = "; 'perfctl ncu' does."
_NOT_AROUND = f"not around a test or warm-up with its own batch size{BY_PERFCTL}"
WINDOW_TODO = f"Open the profiler's window around the training step, {_NOT_AROUND}"

HOST_TODO = (
    "Time kernels with 'perfctl nsys' or 'perfctl torch', or synchronise before each reading of "
    "the clock."
)
FLAT = 1.2
"""Times no further apart than this do not follow the batch size."""
LISTED = 3
"""Of more times, only the shortest and the longest are in the sentence."""

SPACE = ("values", "B", *UNITS)
"""Units of hand values that count no operations."""

_DIRECT = {"depthwise": "direct convolution"}
"""Kernels of this family serve small convolutions that are not depthwise, too."""


@dataclass(frozen=True, slots=True)
class Window:
    """The profiler saw the same work at every batch size."""

    places: frozenset[Place]
    """Ledger rows whose counts are the same at every batch size; empty when only kernels outside of
    layers are."""
    batch: int | None
    """The batch size that explains the counts; None when none does."""
    reason: str
    kernels: tuple[str, ...]
    row: tuple[str, str] | None = None
    """(layer, direction) whose work the kernels do; None where no layer fits."""


def wrong_window(given: RuleInput) -> Verdict | None:
    """The row's count belongs to another batch size."""
    evidence, seen = given.evidence, given.evidence.seen_batch
    if seen is None or seen == evidence.row.size or not any(map(evidence.total, COUNTS)):
        return None
    factor = seen / evidence.row.size
    sentence = (
        f"{given.who} shows the count of a batch of {seen:,}, {times(factor)} times paper's: the "
        "same at every batch size."
    )
    todo = WINDOW_TODO.replace(BY_PERFCTL, ".") if evidence.ours else WINDOW_TODO
    return verdict(
        given, "wrong window", sentence, factor, todo, evidence.kernels, "predicted and matched"
    )


def find_window(table: Mapping[Place, RowEvidence], loose: Loose) -> Window | None:
    """Counts that stay while the work on paper grows; first in the layers' rows, then in kernels
    outside of them."""
    return _in_rows(table) or _in_loose(table, loose)


def _in_rows(table: Mapping[Place, RowEvidence]) -> Window | None:
    """None unless most of the counted work stays: one row may, when both batches fill the
    same tiles."""
    constant: list[RowEvidence] = []
    proving, whole = [0.0, 0.0], [0.0, 0.0]  # work on paper, counts
    for group in along(table).values():
        papers = [evidence.paper for evidence in group]
        counts = [sum(evidence.total(count) or 0 for count in COUNTS) for evidence in group]
        if not any(counts):
            continue
        # a row that lacks its counters at one batch size proves nothing
        weights = sum(papers), sum(counts)
        whole = [before + weight for before, weight in zip(whole, weights, strict=True)]
        figures = {
            (one.row.counted.lower_bound, one.row.counted.launches, one.row.counted.of_launches)
            for one in group
        }
        if _stays(papers, counts) and len(figures) == 1:
            constant += group
            filling = all(rows.fills_tiles(evidence) for evidence in group)
            one_tile = frozenset.intersection(*(rows.unknown_tiles(evidence) for evidence in group))
            one_row = all(rows.one_row_of_tiles(evidence) for evidence in group)
            # a step of a recurrent layer may fill a tile too, and which products it launches is not
            # known; a block of a Winograd or FFT kernel may take as many images
            unsure = RECURRENT.search(group[0].row.kind or "") or any(
                one.algorithm.family in ("winograd", "fft") and evidence.row.size <= IMAGES
                for evidence in group[-1:]
                for one in evidence.kernels
            )
            if not (filling or one_tile or one_row or unsure):
                proving = [before + weight for before, weight in zip(proving, weights, strict=True)]
    if any(part <= all_ / 2 for part, all_ in zip(proving, whole, strict=True)):
        return None
    batch = _agreed(constant)
    said = ((evidence, *count) for evidence in constant for count in _proposals(evidence))
    proof = next((count for count in said if count[3] == batch), None)
    sizes = sorted({item.row.size for item in constant})
    span = f"batch {sizes[0]} to {sizes[-1]}"
    if proof is None:
        evidence = constant[0]
        fits = f", which fits a batch of {batch:,}" if batch is not None else ""
        reason = f"{evidence.row.name} executed the same at {span}{fits}"
    else:
        evidence, op, value, _ = proof
        reason = (
            f"{evidence.row.name} executed {value:,.0f} {NAMED.get(op, op.upper())} at {span}, "
            f"which is a batch of {batch:,}"
        )
    kernels, row = (
        tuple(kernel.name for kernel in evidence.kernels),
        (evidence.row.layer, evidence.row.direction),
    )
    return Window(frozenset(item.place for item in constant), batch, reason, kernels, row)


def _proposals(evidence: RowEvidence) -> list[tuple[str, float, int]]:
    """``batches_of`` the row; none where only some launches were counted, or paper has other tiles
    than fused attention."""
    counted, fused = (
        evidence.row.counted,
        any(one.algorithm.family == "attention" for one in evidence.product_kernels),
    )
    partly = 0 < counted.launches < counted.of_launches or (
        fused and (evidence.causal or evidence.row.direction != "forward")
    )
    found = [] if partly else batches_of(evidence, evidence.kernels)
    # epilogues may have several additions for each output
    found = [item for item in found if item[0] not in ("fadd", "fmul")] or found
    runs = multiple(evidence, evidence.product_kernels) or 1  # or a smaller batch, as often
    return [
        *found,
        *(
            (op, value / runs, batch // runs)
            for op, value, batch in found
            if runs > 1 and batch % runs == 0
        ),
    ]


def _agreed(constant: list[RowEvidence]) -> int | None:
    proposed = Tally(batch for evidence in constant for _, _, batch in _proposals(evidence))
    # the program may pad every batch to it
    largest = max(evidence.row.size for evidence in constant)
    votes: dict[int, list[RowEvidence]] = {}
    for batch in dict.fromkeys([*(batch for batch, _ in proposed.most_common(PROPOSED)), largest]):
        for evidence in constant:
            seen = evidence.with_batch(batch)
            exact = rows.fits_grids(seen) and any(
                found == batch for _, _, found in _proposals(evidence)
            )
            if exact or rows.from_grids(seen, seen.product_kernels) is not None:
                votes.setdefault(batch, []).append(evidence)
    # a gradient may be missing, which halves a count: of as many votes, those of forward
    forward = {
        batch: sum(row.row.direction == "forward" for row in found)
        for batch, found in votes.items()
    }
    best = min(
        votes,
        key=lambda item: (-len(votes[item]), -forward[item], item != largest, item),
        default=None,
    )
    # a batch half as large, whose products all ran twice, has the same counts
    once = best is not None and any(
        (multiple(row, row.product_kernels) or 1) == 1 for row in votes[best]
    )
    return best if once else None


def _in_loose(table: Mapping[Place, RowEvidence], loose: Loose) -> Window | None:
    """Kernels of no layer, by name. The optimizer's do not grow with the batch either, so only
    products count."""
    by_name: dict[str, dict[int, list[KernelGroup]]] = defaultdict(lambda: defaultdict(list))
    for batch, found in loose.items():
        for kernel in found:
            if kernel.main and kernel.algorithm.family is not None:
                by_name[kernel.name][batch].append(kernel)
    counts = {
        name: {
            batch: sum(kernel.counts.get(op, 0) for kernel in kernels for op in FP)
            for batch, kernels in at.items()
        }
        for name, at in by_name.items()
    }
    last = {name: found[max(found)] for name, found in counts.items()}
    staying = [name for name, found in counts.items() if _stays(found, found.values())]
    if not staying or sum(last[name] for name in staying) <= sum(last.values()) / 2:
        return None
    name = max(staying, key=lambda name: last[name])
    at = by_name[name]
    span = f"at batch {min(at)} to {max(at)}"
    fits = _fits(table, max(at), at[max(at)])
    if not fits:
        return Window(frozenset(), None, f"{name} executed the same {span}", (name,))
    evidence, op, value, seen = min(fits, key=lambda item: item[3])
    what = {
        "fadd": "add per output",
        "fmul": "multiply per output",
        "tensor": "multiply-add on paper",
    }.get(op, "FFMA per multiply-add")
    equals = (
        f"one {what} of {evidence.row.layer} for a batch of {seen:,} ({seen:,} x "
        f"{value / seen:,.0f})"
    )
    reason = f"{name} executed {value:,.0f} {NAMED.get(op, op.upper())} {span}. That is {equals}"
    return Window(frozenset(), seen, reason, (name,), (evidence.row.layer, evidence.row.direction))


def along(table: Mapping[Place, RowEvidence]) -> dict[tuple[str, str], list[RowEvidence]]:
    """(layer, direction) -> its rows along the sweep, those with kernels, by batch size."""
    found: dict[tuple[str, str], list[RowEvidence]] = defaultdict(list)
    for evidence in table.values():
        if evidence.kernels:
            found[evidence.row.layer, evidence.row.direction].append(evidence)
    return {
        key: sorted(group, key=lambda evidence: evidence.row.size) for key, group in found.items()
    }


def _fits(
    table: Mapping[Place, RowEvidence], batch: int, kernels: Sequence[KernelGroup]
) -> list[tuple[RowEvidence, str, float, int]]:
    """``batches_of`` the layers that kernels of one name may serve; a convolution's serve no
    other layer."""
    convolution = kernels[0].algorithm.family in ("conv", "winograd", "fft", "depthwise")
    return [
        (evidence, *found)
        for (at, _, direction), evidence in table.items()
        if at == batch
        and direction == "forward"
        and (not convolution or "Conv" in (evidence.row.kind or ""))
        for found in batches_of(evidence, kernels)
    ]


def _stays(work: Collection[float], counts: Collection[float], apart: float = SAME) -> bool:
    """The counts are there and the same, while the work grows."""
    if not counts or min(*work, *counts) <= 0:
        return False
    return max(counts) <= apart * min(counts) and max(work) >= GROWS * min(work)


def batches_of(
    evidence: RowEvidence, kernels: Iterable[KernelGroup]
) -> list[tuple[str, float, int]]:
    """(count, its value, batch size): batch sizes at which one count is one per multiply-add, or
    one per output.

    FMUL and FADD of cuBLAS products are those of whole tiles, of every part of a split sum and of
    slices, not of outputs.
    """
    row = evidence.row
    per_sample: dict[str, float] = {"ffma": (row.whole_paper or 0) / 2 / row.size}
    if row.direction == "forward":
        per_sample |= dict.fromkeys(("fadd", "fmul"), _outputs(evidence) / row.size)
    direct = [
        kernel
        for kernel in kernels
        if kernel.algorithm.role == "main" and kernel.algorithm.family not in ("winograd", "fft")
    ]
    if any(kernel.tensor.value for kernel in direct):
        per_sample["tensor"] = per_sample["ffma"]
    found = []
    for op, each in per_sample.items():
        if op in ("fadd", "fmul") and any(
            one.algorithm.family == "gemm" and one.algorithm.tile for one in direct
        ):
            continue
        of = direct if op in ("fadd", "fmul") else [kernel for kernel in direct if kernel.main]
        value = sum(one.products / 2 if op == "tensor" else one.counts.get(op, 0) for one in of)
        if value and each and value % each == 0 and value // each <= LARGEST:
            found.append((op, value, int(value // each)))
    return found


def _outputs(evidence: RowEvidence) -> int:
    return sum(call.output_elements or 0 for call in evidence.row.calls)


def window(found: Window | None) -> list[Verdict]:
    if found is None:
        return []
    caught = "The profiler's window caught something other than the step that was asked for"
    largest = max((batch for batch, _, _ in found.places), default=None)
    if found.batch is not None and largest is not None and found.batch >= largest:
        caught += f", or the program pads every batch to {found.batch:,}"
    text = f"The count does not follow the batch size: {found.reason}. {caught}."
    return [Verdict("wrong window", text, None, None, WINDOW_TODO, found.kernels, "observed")]


def unattributed_fadds(table: Mapping[Place, RowEvidence], loose: Loose) -> list[Verdict]:
    """FADD without FFMA where no kernel has a layer: one sentence for the largest."""
    if any(evidence.kernels for evidence in table.values()):
        return []
    found = [
        (kernel.counts["fadd"], batch, kernel)
        for batch, kernels in loose.items()
        for kernel in kernels
        if "fadd" in kernel.counts and "ffma" not in kernel.counts
    ]
    if not found:
        return []
    value, batch, kernel = max(found, key=lambda item: (item[0], item[1]))
    more = ""
    fits = [
        (evidence, seen) for evidence, op, _, seen in _fits(table, batch, (kernel,)) if op == "fadd"
    ]
    if fits:
        evidence, seen = max(fits, key=lambda fit: fit[0].paper)
        deep = evidence.paper / 2 / _outputs(evidence)
        more = (
            f" One output of {evidence.row.layer} takes {deep:,.0f} multiply-adds, so FFMA should "
            f"be {deep * value:,.0f}."
        )
        shape = evidence.with_batch(seen).forward
        derived = derive(Launch(kernel.name), Work(shape)) if shape else None
        if derived is not None and derived.fadd == value:
            more = (
                f" Derived for {evidence.row.layer} at a batch of {seen:,}: {derived.rule}, and "
                f"{value:,.0f} FADD, as counted."
            )
    omits = f"it omits the multiply-adds, which are FFMA instructions.{more}"
    text = f"Only FADD was collected, {value:,.0f} in {spoken(kernel.name)}: {omits}"
    return [
        Verdict(
            "FADD alone",
            text,
            None,
            None,
            f"{COLLECT_FP32}; {COLLECT}.",
            (kernel.name,),
            "observed",
        )
    ]


def times_flat(study: Study, ledger: Ledger, found: Window | None) -> list[Verdict]:
    """Times that stay while the work grows: of the host's clock always, of kernels when their
    counts stay too."""
    said = []
    either = " either" if found is not None else ""
    works = {
        (row.size, f"{row.layer}:{row.direction}"): row.whole_paper or 0.0 for row in ledger.rows
    }
    # "conv2:forward" -> batch -> nanoseconds
    clocked: dict[str, dict[int, float]] = defaultdict(dict)
    for item in host_times(study.runs):
        if item.run.batch_size is not None:
            clocked[f"{item.layer}:{item.direction}"][item.run.batch_size] = item.nanoseconds
    for name, points in clocked.items():
        paper = {batch: works.get((batch, name), 0.0) for batch in points}
        if not _stays([work or batch for batch, work in paper.items()], points.values(), FLAT):
            continue
        low, high = min(points), max(points)
        each = [f"{points[batch] / 1e6:.3g}" for batch in sorted(points)]
        listed = (
            ", ".join(each)
            if len(each) <= LISTED
            else f"{min(each, key=float)} to {max(each, key=float)}"
        )
        slow, fast = (amount(paper[batch] / points[batch] * 1e9) for batch in (low, high))
        rate = (
            f" If these were kernel times, batch {low} would run at {slow}FLOP/s and batch {high} "
            f"at {fast}FLOP/s."
        )
        times_of = (
            f"The times of {name.replace(':', ' ')} do not follow the batch{either}: {listed} ms"
        )
        grows = (
            f"while the work grows {high / low:g}-fold. The host's clock saw the launch, not the "
            "kernel."
        )
        text = (
            f"{times_of} at batch {low} to {high}, "
            f"{grows}{rate if paper[low] and paper[high] else ''}"
        )
        # only that the times stay is measured; that they are a launch's is proven by a rate that no
        # kernel reaches
        needed = max(paper[batch] / points[batch] * 1e9 for batch in points)
        most = max(
            (rate for run in study.runs for rate in peaks_of(run.device).flops.values()),
            default=None,
        )
        proven = most is not None and needed > most
        if proven:
            text += f" The device's peak is {amount(most or 0)}FLOP/s."
        confidence: Confidence = "observed" if proven else "plausible"
        said.append(
            Verdict("time does not follow", text, None, None, HOST_TODO, confidence=confidence)
        )
    return said or (_kernels_flat(ledger) if found is not None else [])


def _kernels_flat(ledger: Ledger) -> list[Verdict]:
    sums: dict[int, float] = defaultdict(float)
    paper: dict[int, float] = defaultdict(float)
    for row in ledger.rows:
        if row.time is not None and row.whole_paper:
            sums[row.size] += row.time.median
            paper[row.size] += row.whole_paper
    if not _stays(paper.values(), sums.values(), FLAT):
        return []
    low, high = min(sums), max(sums)
    first, last = (f"{sums[batch] / 1e6:.3g} ms at batch {batch}" for batch in (low, high))
    grows = f"while the work on paper grows {paper[high] / paper[low]:.3g}-fold"
    text = (
        f"The times do not follow the batch either: the layers' kernels take {first} and {last}, "
        f"{grows}."
    )
    return [Verdict("time does not follow", text, None, None, WINDOW_TODO, confidence="observed")]


def hand_estimates(study: Study) -> list[Verdict]:
    """Hand values that came with the reports (``hand_estimate:<layer>:<what>``), each explained by
    its slips.

    One verdict a layer: its first wrong value in full, then the others. A value whose unit is
    "values", B, KiB or MiB is held against the layer's sizes, any other against its operations.
    """
    found: dict[tuple[str, int | None], dict[str, tuple[Run, Finding, str]]] = defaultdict(dict)
    for run in study.runs:
        for item in run.report.summaries:
            head, _, name = item.name.partition(":")
            layer, _, what = name.partition(":")
            if head != "hand_estimate" or item.value is None:
                continue
            sheet = sheet_for(run.report.ops, layer)
            if sheet is not None and sheet.facts is not None:
                seen = check(
                    int(item.value), sheet.facts, sheet.quantities if item.unit in SPACE else ()
                )
                found[layer, run.batch_size].setdefault(
                    what, (run, seen, _in_values(seen, sheet.facts))
                )
    return [
        said
        for place, values in found.items()
        if (said := _hand_estimate(place, values)) is not None
    ]


def _hand_estimate(
    place: tuple[str, int | None], values: Mapping[str, tuple[Run, Finding, str]]
) -> Verdict | None:
    wrong = [what for what, (_, found, _) in values.items() if found.slips]
    if not wrong:
        return None
    layer, batch = place
    run, found, note = values[wrong[0]]
    text = (
        f"The hand estimate of {layer} ({wrong[0] or 'operations'}, batch {batch}): "
        f"{explain(found)}{note}"
    )
    for what in wrong[1:]:
        text += f" Its {what or 'operations'}: {explain(values[what][1])}{values[what][2]}"
    for what, (_, item, _) in values.items():
        if item.exact and not item.slips:
            text += f" Its {what or 'operations'}: {in_its_unit(item)} is right."
    todo = f"perfctl estimate {run.workload} --batch {batch} --layer {layer} --check {found.value}"
    return Verdict("hand estimate", text, None, None, todo, confidence="predicted and matched")


def _in_values(found: Finding, facts: Facts) -> str:
    if "values, not operations" not in found.slips:
        return ""
    return (
        f" In values it is {facts.weights + facts.biases + facts.batch * facts.ways[0].outputs:,}."
    )


def algorithm_switches(table: Mapping[Place, RowEvidence]) -> list[Verdict]:
    """A layer's algorithm is another one from some batch size on."""
    said = []
    differ = (
        "Compare batch sizes on either side of it only by time per sample: their counted FLOPs "
        "differ by algorithm."
    )
    for group in along(table).values():
        found = [
            (
                evidence,
                of_layer(
                    one.name
                    for one in evidence.kernels
                    if one.main or one.algorithm.role == "transform"
                ),
            )
            for evidence in group
        ]
        for (before, was), (after, now) in pairwise(found):
            old, new = (
                _DIRECT.get(one.family or "") or one.method or one.family for one in (was, now)
            )
            if old == new or old is None or new is None:
                continue
            first, last = after.row.size, before.row.size
            text = (
                f"{after.row.name} runs another algorithm from batch {first} on: {new}, up to "
                f"batch {last} {old}"
            )
            less, more, todo = (
                (before.row.counted.value or 0) / last,
                (after.row.counted.value or 0) / first,
                differ,
            )
            if less and more and is_news(more / less):
                text += f"; FLOPs per sample go from {amount(less)}FLOP to {amount(more)}FLOP"
            elif less and more:
                text, todo = (
                    f"{text}; FLOPs per sample stay at {amount(more)}FLOP",
                    "Compare times on either side of it per sample.",
                )
            kernels = tuple(kernel.name for kernel in after.product_kernels)
            said.append(
                Verdict("algorithm switch", f"{text}.", None, None, todo, kernels, "observed")
            )
    return said
