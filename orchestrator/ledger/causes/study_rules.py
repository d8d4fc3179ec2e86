"""Rules about more than one row: the complete step executed twice, half, or N times the estimate,
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
from perfctl.orchestrator.ledger.causes.row_rules import launch_multiple
from perfctl.orchestrator.ledger.causes.rule import Cause, Confidence, Facts, Implies, RuleInput
from perfctl.orchestrator.ledger.prepared import Study
from perfctl.orchestrator.ledger.timing import HostTime, host_times
from perfctl.records.run import Run

MORE_WORK_RATIO_MIN = 1.5
"""The larger layer has at least this many times the multiply-adds of the smaller."""
RIVALS = (
    "extra calls",
    "recomputation",
    "several algorithms",
    "gradient missing",
    "needless gradient",
    "shared kernel",
    "groups run as dense",
)
"""Causes of one row, which are none if all rows deviate alike."""
AGREEMENT_LOG_MAX = log(1.02)
ROWS_MIN, LAYERS_MIN, AGREEING_SHARE_MIN = 4, 3, 0.9
"""Rows and layers, and the share of both rows and FLOPs, that must agree on a number."""
FACTOR_LOG_MIN = log(1.2)
NUMBER_MAX = 64

Candidates = Sequence[tuple[RuleInput, Sequence[Cause]]]
"""Rows with the causes that their rules propose."""


@dataclass(frozen=True, slots=True)
class StepFacts(Facts):
    """What all rows of one batch size have in common."""

    batch: int
    times: float
    """The factor."""
    number: int
    """``times``, or 1 / ``times``."""
    by_launches: bool = False
    of_gradients: bool = False
    may_be_trials: bool = False
    share: float = 1.0
    """Share of the estimated FLOPs whose rows agree on the factor."""
    samples: float = 0.0
    part: float = 0.0
    may_be_3xtf32: bool = False
    may_be_sparse: bool = False


@dataclass(frozen=True, slots=True)
class WholeStep:
    """The factor that all rows of one batch size have in common."""

    facts: StepFacts
    reason: str
    confidence: Confidence = "predicted and matched"

    @property
    def factor(self) -> float:
        """Return the factor."""
        return self.facts.times

    @property
    def launched(self) -> int:
        """Return the factor if the launches of all products show it; 1 if the counts do."""
        return self.facts.number if self.facts.by_launches else 1

    def includes(self, evidence: RowEvidence) -> bool:
        """Return whether the row has the factor."""
        return not self.facts.of_gradients or evidence.row.direction != "forward"

    def sweep_cause(self) -> Cause:
        """Return the cause for the complete sweep; its rows have the factor."""
        variant = f"sweep, {self.reason}"
        return Cause("whole step", None, self.facts, (), self.confidence, variant)

    def row_cause(self, case: RuleInput) -> Cause | None:
        """Return the cause for one row."""
        implies = Implies(is_stated=self.confidence != "plausible")
        return case.propose("whole step", self.factor, self.facts, (), implies, self.reason)


def whole_steps(candidates: Candidates) -> Mapping[int, Sequence[WholeStep]]:
    """Return what all rows of a batch size have in common, by batch size.

    Evidence  launches: every kernel of every product was launched N times or a multiple, at least
              two layers' exactly N times. Then counts: nine tenths of the rows agree on a factor
              that no other cause explains; a recorded ``world_size`` of N means one rank of N, and
              otherwise it is plausible.
    Factor    N or 1/N.
    Silent    if a tenth of the rows disagree.
    Fix       check the batch size, steps, gradient accumulation, and ranks.
    """
    by_batch: dict[int, list[tuple[RuleInput, Sequence[Cause]]]] = defaultdict(list)
    for case, causes in candidates:
        by_batch[case.evidence.row.size].append((case, causes))
    steps: dict[int, list[WholeStep]] = {}
    for batch, rows in by_batch.items():
        launched = _launched_steps(batch, [case.evidence for case, _ in rows])
        counted = _counted_step(batch, [row for row in rows if _is_usable(row[0])], launched)
        if launched or counted:
            steps[batch] = [*launched, *([counted] if counted else [])]
    return steps


def _launched_steps(batch: int, rows: Iterable[RowEvidence]) -> list[WholeStep]:
    """Return the steps that launches show: every product of every layer was launched N times or a
    multiple of it, because a single layer may have been called again."""
    ran = [row for row in rows if row.product_kernels]
    gradients = [row for row in ran if row.row.direction != "forward"]
    forward = [row for row in ran if row.row.direction == "forward"]
    steps = []
    number = _common_multiple(forward, ran)
    if number > 1:
        no_trials = all(row.environment.get("cudnn_benchmark") == "off" for row in ran)
        may_be_trials = not no_trials and not gradients
        facts = StepFacts(batch, number, number, True, may_be_trials=may_be_trials)
        steps.append(WholeStep(facts, "launches"))
    again = _common_multiple(gradients, gradients)
    exact = sum(launch_multiple(row, row.product_kernels) == number for row in forward)
    if exact > 1 and again > number and again % number == 0:
        more = again // number
        facts = StepFacts(batch, more, more, True, of_gradients=True)
        steps.append(WholeStep(facts, "gradient launches"))
    return steps


def _common_multiple(rows: Sequence[RowEvidence], over: Sequence[RowEvidence]) -> int:
    """Return how often all rows ran their products, if at least two layers ran them exactly this
    often; otherwise 1."""
    multiples = {row.place: launch_multiple(row, row.product_kernels) for row in over}
    number = gcd(*(multiple for row in rows if (multiple := multiples[row.place])))
    exact = {layer for (_, layer, _), multiple in multiples.items() if multiple == number}
    # N steps launch each kernel N times; kernels tried once each do not
    differ = number and any(
        kernel.launches % number for row in over for kernel in row.product_kernels
    )
    return number if number and len(exact) > 1 and not differ else 1


def _is_usable(case: RuleInput) -> bool:
    """Return whether the row has a complete count of multiply-adds. How many lanes of an HFMA2 were
    used is not known, so its count may be off by 2."""
    evidence = case.evidence
    halves = any(
        kernel.counts.get("hfma") and kernel.products for kernel in evidence.product_kernels
    )
    other_batch = evidence.seen_batch not in (None, evidence.row.size)
    return bool(case.ratio) and not (evidence.row.counted.lower_bound or halves or other_batch)


def _remaining_factors(
    case: RuleInput, causes: Iterable[Cause], launched: Iterable[WholeStep]
) -> tuple[float, float, float]:
    """Return what the launches leave of the ratio: after all causes but rivals, after none, and
    after forward run again as well."""
    factors = [(cause.rule, cause.factor) for cause in causes if cause.factor]
    left = (case.ratio or 1) / prod(
        step.factor for step in launched if step.includes(case.evidence)
    )
    own = left / prod(factor for rule, factor in factors if rule not in RIVALS)
    return own, left, own / prod(factor for rule, factor in factors if rule == "recomputation")


def _counted_step(batch: int, rows: Candidates, launched: Sequence[WholeStep]) -> WholeStep | None:
    """Return the step that counts show: most rows agree on N or 1/N."""
    layers = {case.evidence.row.layer for case, _ in rows}
    if len(rows) < ROWS_MIN or len(layers) < LAYERS_MIN:
        return None
    remaining = [(case, _remaining_factors(case, causes, launched)) for case, causes in rows]
    factor = median(own for _, (own, _, _) in remaining)
    number = round(factor) if factor >= 1 else 1 / round(1 / factor)
    is_whole = abs(log(factor / number)) < AGREEMENT_LOG_MAX
    if not is_whole or not 1 / NUMBER_MAX <= number <= NUMBER_MAX:
        return None
    if abs(log(number)) < FACTOR_LOG_MIN:
        return None
    agreeing = [
        case.evidence
        for case, factors in remaining
        if min(abs(log(factor / number)) for factor in factors) < AGREEMENT_LOG_MAX
    ]
    estimated = sum(case.evidence.paper for case, _ in rows)
    share = sum(evidence.paper for evidence in agreeing) / estimated
    if share < AGREEING_SHARE_MIN or len(agreeing) < AGREEING_SHARE_MIN * len(rows):
        return None
    return _explain_counts(batch, number, share, agreeing)


def _explain_counts(
    batch: int, factor: float, share: float, rows: Sequence[RowEvidence]
) -> WholeStep:
    """Return the step with what may have made all counts N times or 1/N of the estimate."""
    number = round(factor if factor > 1 else 1 / factor)
    tensor = all((kernel.tensor.value or 0) > 0 for row in rows for kernel in row.product_kernels)
    worlds = {row.environment.get("world_size") for row in rows}
    facts = StepFacts(
        batch,
        factor,
        number,
        share=share,
        samples=batch * factor,
        part=factor,
        may_be_3xtf32=tensor and number == 3,
        may_be_sparse=tensor and number == 2,
    )
    if factor < 1 and worlds == {str(number)}:
        return WholeStep(facts, "one rank")
    return WholeStep(facts, "larger batch" if factor > 1 else "smaller batch", "plausible")


@dataclass(frozen=True, slots=True)
class GpuFacts(Facts):
    """GPUs that differ, and the runs of each."""

    gpus: tuple[str, ...]
    runs: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LessTimeFacts(GpuFacts):
    """Two variants of a layer; the one with more work took less time."""

    layer: str
    direction: str
    batch: int | None
    more_ms: float
    more_macs: int | None
    more_name: str
    less_ms: float
    less_macs: int | None
    less_name: str
    unknown: str
    """Variants of which no record names the GPU."""


def other_gpu(parts: Sequence[Study]) -> list[Cause]:
    """Return the cause that runs with times cannot have used the same GPU.

    Evidence  names and compute capability of the GPUs in the records, and total memory that differs
              by more than 1/8 (ECC and the driver take less).
    Factor    none.
    Silent    for runs without times, if no record names the GPU, and for the ranks of one job.
    Fix       time every part on one GPU.
    """
    groups: list[tuple[SeenGpu, list[Run]]] = []
    for run in (run for study in parts for run in study.runs if _has_times(run)):
        if (seen := seen_gpu(run)) is None:
            continue
        matching = (index for index, (gpu, _) in enumerate(groups) if not contradict(gpu, seen))
        index = next(matching, None)
        if index is None:
            groups.append((seen, [run]))
        else:
            gpu, runs = groups[index]
            groups[index] = (gpu.joined(seen), [*runs, run])
    if len(groups) < 2:
        return []
    gpus = tuple(str(gpu) for gpu, _ in groups)
    runs_of_gpus = "; ".join(_name_runs(runs) for _, runs in groups)
    return [Cause("other GPU", None, GpuFacts(gpus, runs_of_gpus), confidence="observed")]


def _has_times(run: Run) -> bool:
    report = run.report
    return (
        any(step.duration_ns is not None for step in report.steps)
        or any(kernel.duration_ns is not None for kernel in report.kernels)
        or bool(report.layer_times)
        or any(host_times((run,)))
    )


def _name_runs(runs: Sequence[Run]) -> str:
    """Return which runs these are, by tool: "ncu at batch 16 to 256"."""
    by_tool: dict[str, set[int]] = defaultdict(set)
    for run in runs:
        tool = run.profiler if run.profiler != "none" else "runs without a profiler"
        by_tool[tool].add(run.batch_size or 0)
    names = []
    for tool, batches in by_tool.items():
        first, last = min(batches), max(batches)
        span = f" at batch {first}" + (f" to {last}" if last > first else "")
        names.append(f"{tool}{span if first else ''}")
    return ", ".join(names)


def less_time_for_more(parts: Sequence[Study]) -> list[Cause]:
    """Return the layers that took less time in the variant in which they have more work.

    Evidence  times of the host's clock, and at least 1.5 times the multiply-adds.
    Factor    none.
    Silent    for another batch size or precision.
    Fix       synchronize before each clock reading, or time with a profiler.
    """
    timings: dict[tuple[str, str, int | None], list[tuple[Study, HostTime]]] = defaultdict(list)
    for study in parts:
        for item in host_times(study.runs):
            if item.macs:
                timings[item.layer, item.direction, item.run.batch_size].append((study, item))
    causes = []
    for (layer, direction, batch), items in timings.items():
        pairs = [
            (more, less)
            for more, less in permutations(items, 2)
            if more[0].variant != less[0].variant
            and more[0].precision == less[0].precision
            and (more[1].macs or 0) >= MORE_WORK_RATIO_MIN * (less[1].macs or 1)
            and more[1].nanoseconds < less[1].nanoseconds
        ]
        if pairs:  # a pair of one tool proves more than one of two
            more, less = min(
                pairs, key=lambda pair: pair[0][1].run.profiler != pair[1][1].run.profiler
            )
            causes.append(_less_time(layer, direction, batch, more, less))
    return causes


def _less_time(
    layer: str,
    direction: str,
    batch: int | None,
    more: tuple[Study, HostTime],
    less: tuple[Study, HostTime],
) -> Cause:
    names = [
        f"with {study.variant}" if study.variant else "by default" for study, _ in (more, less)
    ]
    gpus = [seen_gpu(item.run) for _, item in (more, less)]
    unknown = [name for name, gpu in zip(names, gpus, strict=True) if gpu is None]
    differ = gpus[0] is not None and gpus[1] is not None and contradict(gpus[0], gpus[1])
    facts = LessTimeFacts(
        tuple(map(str, gpus)) if differ else (),
        layer=layer,
        direction=direction,
        batch=batch,
        more_ms=more[1].nanoseconds / 1e6,
        more_macs=more[1].macs,
        more_name=names[0],
        less_ms=less[1].nanoseconds / 1e6,
        less_macs=less[1].macs,
        less_name=names[1],
        unknown=" or ".join(unknown),
    )
    return Cause("more work in less time", None, facts)
