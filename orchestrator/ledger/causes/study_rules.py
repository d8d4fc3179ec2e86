"""Rules about more than one row: the whole step executed twice, half, or N times what is on paper,
and runs of one sweep that differ in GPU or in the workload's options.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import gcd, log, prod
from statistics import median

from perfctl.orchestrator.counts.hardware.seen import SeenGpu, contradict, seen_gpu
from perfctl.orchestrator.ledger.causes.evidence import RowEvidence
from perfctl.orchestrator.ledger.causes.row_rules import multiple
from perfctl.orchestrator.ledger.causes.rule import (
    Confidence,
    RuleInput,
    Verdict,
    amount,
    explained,
    percent,
    times,
)
from perfctl.orchestrator.ledger.prepared import Study
from perfctl.orchestrator.ledger.timing import HostTime, host_times
from perfctl.records.run import Run

MORE_WORK = 1.5
"""The larger layer has at least this many times the multiply-adds of the smaller."""

Found = Sequence[tuple[RuleInput, Sequence[Verdict]]]
RIVALS = (
    "extra calls",
    "recomputation",
    "several algorithms",
    "gradient missing",
    "needless gradient",
    "shared kernel",
    "groups run as dense",
)
"""Reasons of one row, which is nothing of its own where all rows are alike."""
ALIKE = log(1.02)
LEAST_ROWS, LEAST_LAYERS, LEAST_SHARE = 4, 3, 0.9
LEAST_FACTOR = log(1.2)
LARGEST = 64


@dataclass(frozen=True, slots=True)
class WholeStep:
    """What all rows of one batch size have in common."""

    batch: int
    factor: float
    cause: str
    share: float
    """Of the FLOPs on paper: those of the rows that say so."""
    confidence: Confidence
    launched: int = 1
    """``factor``, where the launches of all products say it; 1 where the counts do."""
    gradients: bool = False
    """Of the rows of gradients alone."""

    def of(self, row: RowEvidence) -> bool:
        """True when the row is one of those."""
        return not self.gradients or row.row.direction != "forward"

    @property
    def sweep(self) -> Verdict:
        """For the study as a whole: the rows have the number."""
        rows = (
            f"rows with {percent(self.share)} of the FLOPs on paper executed {times(self.factor)} "
            "times"
        )
        what = f"{rows} what paper and the other reasons say: {self.cause}"
        if self.launched > 1:
            what = self.cause
        return Verdict(
            "whole step", f"At batch {self.batch}, {what}.", None, None, TODO, (), self.confidence
        )

    def row(self, given: RuleInput) -> Verdict:
        """The same for one row, with the factor that the other rows have."""
        of = " of gradients" if self.gradients else ""
        sentence = (
            f"{given.who} executed {times(self.factor)} times what is on paper, as all rows{of} "
            f"did: {self.cause}."
        )
        share = explained(given.ratio, self.factor)
        return Verdict("whole step", sentence, self.factor, share, TODO, (), self.confidence)


TODO = (
    "Check the batch size that ran, the number of profiled steps, gradient accumulation, and the "
    "number of ranks."
)


def whole_steps(found: Found) -> Mapping[int, Sequence[WholeStep]]:
    """Batch size -> what all of its rows have in common: launches of every product, and then a
    number N or 1/N in counts."""
    by_batch: dict[int, list[tuple[RuleInput, Sequence[Verdict]]]] = defaultdict(list)
    for given, said in found:
        by_batch[given.evidence.row.size].append((given, said))
    steps: dict[int, list[WholeStep]] = defaultdict(list)
    for batch, rows in by_batch.items():
        launched = _launched(batch, [given.evidence for given, _ in rows])
        steps[batch] += launched
        rows = [(given, said) for given, said in rows if _usable(given)]
        if (
            len(rows) >= LEAST_ROWS
            and len({given.evidence.row.layer for given, _ in rows}) >= LEAST_LAYERS
        ):
            step = _whole_step(batch, rows, launched)
            if step is not None:
                steps[batch].append(step)
    return {batch: found for batch, found in steps.items() if found}


def _launched(batch: int, rows: Iterable[RowEvidence]) -> list[WholeStep]:
    """Every product of every layer was launched N times or a multiple of it; a layer alone may have
    been called again."""
    ran = [row for row in rows if row.product_kernels]
    gradients = [row for row in ran if row.row.direction != "forward"]
    found = []
    forward = [row for row in ran if row.row.direction == "forward"]
    number = _common(forward, ran)
    if number > 1:
        off = all(row.environment.get("cudnn_benchmark") == "off" for row in ran)
        trials = "" if off or gradients else ", or cuDNN tried each kernel several times"
        cause = (
            f"every product was launched {number} times: {number} steps in the capture, or "
            f"gradients accumulated over {number} batches{trials}"
        )
        found.append(WholeStep(batch, number, cause, 1.0, "predicted and matched", number))
    again = _common(gradients, gradients)
    sure = sum(multiple(row, row.product_kernels) == number for row in forward) > 1
    if sure and again > number and again % number == 0:
        more = again // number
        cause = (
            f"every gradient was computed {more} times where forward ran once: double backward, or "
            f"{more} losses"
        )
        found.append(
            WholeStep(batch, more, cause, 1.0, "predicted and matched", more, gradients=True)
        )
    return found


def _common(rows: Sequence[RowEvidence], over: Sequence[RowEvidence]) -> int:
    """How often all rows ran their products, if at least two layers ran them exactly so often;
    else 1."""
    known = {row.place: multiple(row, row.product_kernels) for row in over}
    number = gcd(*(count for row in rows if (count := known[row.place])))
    exactly = {layer for (_, layer, _), count in known.items() if count == number}
    # N steps launch each kernel N times; kernels tried once each do not
    apart = number and any(
        kernel.launches % number for row in over for kernel in row.product_kernels
    )
    return number if number and len(exactly) > 1 and not apart else 1


def _usable(given: RuleInput) -> bool:
    """A whole count of multiply-adds. How many lanes of an HFMA2 were used is not known: it may be
    off by 2 itself."""
    evidence = given.evidence
    halves = any(
        kernel.counts.get("hfma") and kernel.products for kernel in evidence.product_kernels
    )
    window = evidence.seen_batch is not None and evidence.seen_batch != evidence.row.size
    return bool(given.ratio) and not (evidence.row.counted.lower_bound or halves or window)


def _open(given: RuleInput, said: Iterable[Verdict], launched: Iterable[WholeStep]) -> float:
    """What the launches and the reasons of the row itself leave of the ratio."""
    again = prod(step.factor for step in launched if step.of(given.evidence))
    return (
        (given.ratio or 1)
        / again
        / prod(item.factor for item in said if item.factor and item.rule not in RIVALS)
    )


def _opens(
    given: RuleInput, said: Sequence[Verdict], launched: Sequence[WholeStep]
) -> Sequence[float]:
    """What is left with all reasons but rivals, with none, and with forward run again as well."""
    kept = _open(given, said, launched)
    again = prod(item.factor for item in said if item.factor and item.rule == "recomputation")
    return kept, _open(given, (), launched), kept / again


def _whole_step(batch: int, rows: Found, launched: Sequence[WholeStep]) -> WholeStep | None:
    factor = median(_open(given, said, launched) for given, said in rows)
    number = _whole(factor)
    if number is None or abs(log(number)) < LEAST_FACTOR:
        return None
    agree = [
        given
        for given, said in rows
        if min(abs(log(open_ / number)) for open_ in _opens(given, said, launched)) < ALIKE
    ]
    share = sum(given.evidence.paper for given in agree) / sum(
        given.evidence.paper for given, _ in rows
    )
    if share < LEAST_SHARE or len(agree) < LEAST_SHARE * len(rows):
        return None
    cause, confidence = _cause(batch, number, [given.evidence for given in agree])
    return WholeStep(batch, number, cause, share, confidence)


def _whole(factor: float) -> float | None:
    """The integer N, or 1 / N, that the factor is."""
    number = round(factor) if factor >= 1 else 1 / round(1 / factor)
    return (
        number if 1 / LARGEST <= number <= LARGEST and abs(log(factor / number)) < ALIKE else None
    )


def _cause(batch: int, factor: float, rows: Sequence[RowEvidence]) -> tuple[str, Confidence]:
    number = round(factor if factor > 1 else 1 / factor)
    tensor = all((kernel.tensor.value or 0) > 0 for row in rows for kernel in row.product_kernels)
    if factor < 1:
        worlds = {row.environment.get("world_size") for row in rows}
        if worlds == {str(number)}:
            return (
                f"this is one rank of {number}, with {factor:.3g} of the batch",
                "predicted and matched",
            )
        sparse = " or 2:4 sparsity" if tensor and number == 2 else ""
        return f"one rank of {number}, a batch of {batch * factor:g}{sparse}", "plausible"
    thrice = " or 3 TF32 products for each of fp32" if tensor and number == 3 else ""
    return (
        f"no product was launched {number} times, so a batch of {batch * number:,} fits{thrice}",
        "plausible",
    )


def other_gpu(parts: Sequence[Study]) -> list[Verdict]:
    """Runs with times that cannot have seen the same GPU."""
    groups: list[tuple[SeenGpu, list[Run]]] = []
    for run in (run for study in parts for run in study.runs if _timed(run)):
        if (seen := seen_gpu(run)) is None:
            continue
        home = next((at for at, (gpu, _) in enumerate(groups) if not contradict(gpu, seen)), None)
        if home is None:
            groups.append((seen, [run]))
        else:
            groups[home] = (groups[home][0].joined(seen), [*groups[home][1], run])
    if len(groups) < 2:
        return []
    named = ", ".join(str(gpu) for gpu, _ in groups)
    who = "; ".join(_who(runs) for _, runs in groups)
    text = (
        f"Parts of this study ran on different GPUs ({named}): their times cannot be compared. In "
        f"this order: {who}."
    )
    todo = (
        "Time every part on one GPU ('nvidia-smi -L' names it); until then compare times only "
        "within a part."
    )
    return [Verdict("other GPU", text, None, None, todo, confidence="observed")]


def _timed(run: Run) -> bool:
    report = run.report
    steps, kernels = (
        any(item.duration_ns is not None for item in items)
        for items in (report.steps, report.kernels)
    )
    return steps or kernels or bool(report.layer_times) or any(host_times((run,)))


def _who(runs: Sequence[Run]) -> str:
    """ "ncu at batch 16 to 256", "runs without a profiler at batch 64": which runs, by tool."""
    by_tool: dict[str, list[int]] = defaultdict(list)
    for run in runs:
        by_tool[run.profiler if run.profiler != "none" else "runs without a profiler"].append(
            run.batch_size or 0
        )
    said = []
    for tool, found in by_tool.items():
        sizes = sorted(set(found))
        at = f" at batch {sizes[0]}" + (f" to {sizes[-1]}" if sizes[1:] else "") if sizes[0] else ""
        said.append(f"{tool}{at}")
    return ", ".join(said)


def less_time_for_more(parts: Sequence[Study]) -> list[Verdict]:
    """A layer that has more work in one variant and took less time there, by the host's clock."""
    found: dict[tuple[str, str, int | None], list[tuple[Study, HostTime]]] = defaultdict(list)
    for study in parts:
        for item in host_times(study.runs):
            if item.macs:
                found[item.layer, item.direction, item.run.batch_size].append((study, item))
    said = []
    for (layer, direction, batch), items in found.items():
        pairs = [
            (one, other)
            for one, other in permutations(items, 2)
            if one[0].variant != other[0].variant
            and one[0].precision == other[0].precision
            and (one[1].macs or 0) >= MORE_WORK * (other[1].macs or 1)
            and one[1].nanoseconds < other[1].nanoseconds
        ]
        if pairs:  # a pair of one tool says more than one of two
            more, less = min(
                pairs, key=lambda pair: pair[0][1].run.profiler != pair[1][1].run.profiler
            )
            said.append(_less_time(f"{layer} {direction}", batch, more, less))
    return said


def _less_time(
    what: str, batch: int | None, more: tuple[Study, HostTime], less: tuple[Study, HostTime]
) -> Verdict:
    times = [
        f"{item.nanoseconds / 1e6:.4g} ms for {amount(item.macs or 0).strip()}"
        for _, item in (more, less)
    ]
    names = [
        f"with {study.variant}" if study.variant else "by default" for study, _ in (more, less)
    ]
    gpus = [seen_gpu(item.run) for _, item in (more, less)]
    text = (
        f"More work in less time: {what} took {times[0]} multiply-adds {names[0]}, but {times[1]} "
        f"{names[1]}."
    )
    text += (
        " Such times cannot be compared: the host's clock saw launches, not kernels, or the GPUs "
        "were not the same"
    )
    unknown = [name for name, gpu in zip(names, gpus, strict=True) if gpu is None]
    if unknown:
        text += f" (no record names the GPU of the one {' or '.join(unknown)})"
    elif gpus[0] is not None and gpus[1] is not None and contradict(gpus[0], gpus[1]):
        text += f" (the records name {gpus[0]} and {gpus[1]})"
    todo = (
        "Synchronise before each reading of the clock, or time with 'perfctl nsys' or 'perfctl "
        "torch', both on one GPU."
    )
    at = "" if batch is None else f" Multiply-adds are of batch {batch}."
    return Verdict(
        "more work in less time", f"{text}.{at}", None, None, todo, confidence="plausible"
    )
