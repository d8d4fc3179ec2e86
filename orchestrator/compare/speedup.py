"""How many times faster one device or precision is than another, and in which layers; refused for
different work.

A speedup is a ratio of geometric means with its 95% interval; without a spread, or with one that
is too wide, there is only a reason.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import msgspec

from perfctl.orchestrator.compare.quantities import (
    FASTER,
    NOT_SHOWN,
    PHASES,
    SLOWER,
    STEP_TIME,
    UNATTRIBUTED,
    ComparedQuantity,
    observe_times,
)
from perfctl.orchestrator.compare.sides import (
    NOT_RECORDED,
    FactDifference,
    compare_run_facts,
    explain_cpu_contention,
)
from perfctl.orchestrator.counts.hardware.peaks import DevicePeaks
from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.ledger.arm_figures import (
    ArmFigures,
    EpochFigures,
    compute_figures_of_newest_run,
    list_epochs,
)
from perfctl.orchestrator.ledger.prepared import PreparedRun, get_device_label
from perfctl.orchestrator.ledger.timing import GRADIENTS
from perfctl.orchestrator.statistics import (
    WIDEST,
    UntestedRatio,
    WideInterval,
    compute_b_over_a_interval,
    explain_wide_ratio_interval,
)
from perfctl.records.report import pluralize_count
from perfctl.records.run import Run

MUST_AGREE = ("workload", "variant", "mode", "precision", "batch", "data", "seed", "world_size")
"""Facts of ``compare.sides`` that must be the same; the device may differ."""
COMPILED = "compile"
ALLOWED = (
    *("precision", "seed", "data", "batch", "mode", "variant", "workload"),
    *(COMPILED, "samples", "length"),
)
"""Facts that may be allowed to differ."""
ASKED = frozenset({"precision", COMPILED})
"""What differs because the list of devices asks for it."""
ARMS = (
    *("cpu", "cpu:bf16", "cpu:compile"),
    *("cuda", "cuda:tf32", "cuda:bf16", "cuda:fp16", "cuda:compile"),
)
"""Devices and precisions, in the order of a comparison."""


@dataclass(frozen=True, slots=True)
class Arm:
    """The runs of one label at one batch size, which are repeats."""

    label: str
    """"cpu", "cuda:bf16", or how the user named it."""
    runs: tuple[Run, ...]


ArmsByBatch = Mapping[int | None, Sequence[Arm]]
"""Batch size -> arms; the others are compared with the first."""


@dataclass(frozen=True, slots=True)
class Gain:
    """Ratio of geometric means, with its 95% interval."""

    value: float
    low: float
    high: float
    basis: str


@dataclass(frozen=True, slots=True)
class UncertainGain:
    """An interval too wide to say anything: its ends are further apart than ``WIDEST``."""

    gain: Gain
    more: int
    """Further values a side until it is narrow enough, if their spread stays as it is."""
    unit: str
    """What these are: steps, epochs or runs."""

    @property
    def wide_interval(self) -> WideInterval:
        """The same in words."""
        return WideInterval(f"a factor of {WIDEST:g}", self.more, self.unit)


class GainKey(NamedTuple):
    """What a line of a speedup is about."""

    level: str
    name: str


@dataclass(frozen=True, slots=True)
class GainLine(ComparedQuantity[GainKey, float]):
    """One quantity of both arms; before and after are medians of the first and of the other."""

    JSON_KEYS = ("key", "before", "after", "gain", "why", "uncertain")
    JSON_NAMES: ClassVar = {"before": "base_ns", "after": "ns", "why": "reason"}
    JSON_INLINED = ("key",)

    gain: Gain | None = None
    """None without a spread, or with one that is too wide; ``reason`` says why."""
    uncertain: UncertainGain | None = None

    @property
    def why(self) -> str | None:
        return self.reason or None


@dataclass(frozen=True, slots=True)
class AmdahlGain:
    """Amdahl: the step's speedup if only this layer ran as fast as on the other arm."""

    layer: str
    share: float
    gain: Gain
    limit: float


@dataclass(frozen=True, slots=True)
class ArmComparison:
    """One arm compared with the first."""

    label: str
    reasons: tuple[str, ...]
    """Why there is no speedup; empty when there is one."""
    differences: tuple[FactDifference, ...]
    lines: tuple[GainLine, ...]
    amdahl: tuple[AmdahlGain, ...]


@dataclass(frozen=True, slots=True)
class TimeToQuality:
    """Training time until each arm was as good as the worst arm's best."""

    quantity: str
    target: float
    times: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class NetworkSpeedup:
    """One workload at one batch size."""

    workload: str | None
    batch: int | None
    base: str
    arms: tuple[ArmFigures, ...]
    comparisons: tuple[ArmComparison, ...]
    times_to_quality: tuple[TimeToQuality, ...]
    failed: tuple[tuple[str, str], ...] = ()
    """(label, why) of arms without a whole run."""


_GOALS: tuple[tuple[str, int, Callable[[EpochFigures], float | None]], ...] = (
    ("test loss", 1, lambda epoch: epoch.test_loss),
    ("accuracy", -1, lambda epoch: epoch.accuracy),
    ("Dice", -1, lambda epoch: epoch.dice),
)
"""(what an epoch reaches, 1 where less is better and -1 where more is, its value)."""
APART = 1.1
"""Speedups of steps and of epochs that differ by less than this factor count as equal."""


def validate_allowed_fact_names(names: Iterable[str]) -> frozenset[str]:
    """Return the facts that may differ. Raises UsageError for one that is not known."""
    allowed = frozenset(names)
    for name in sorted(allowed - set(ALLOWED)):
        raise UsageError(f"`allow`: '{name}' is not known", f"Use {', '.join(ALLOWED)}")
    return allowed


def compare_all_arms_with_first(
    arms: Sequence[Arm], *, allowed: Iterable[str] = (), peaks: Sequence[DevicePeaks] = ()
) -> NetworkSpeedup:
    """Compare every arm with the first. Raises ValueError with fewer than two arms that have a
    complete run.

    ``allowed``: names of MUST_AGREE, or "compile", that may differ because the user asked for it.
    """
    complete, failed = [], []
    for arm in arms:
        if runs := tuple(run for run in arm.runs if run.status == "ok"):
            complete.append(Arm(arm.label, runs))
        else:
            reasons = (run.reason for run in arm.runs if run.reason)
            failed.append((arm.label, next(reasons, "it has no run")))
    if len(complete) < 2:
        raise ValueError(
            "; ".join(f"{label}: {reason}" for label, reason in failed) or "one arm alone"
        )
    base, first = complete[0], complete[0].runs[0]
    facts = tuple(compute_figures_of_newest_run(arm.label, arm.runs, peaks) for arm in complete)
    against = tuple(_compare_with_first_arm(base, arm, frozenset(allowed)) for arm in complete[1:])
    return NetworkSpeedup(
        first.workload,
        first.batch_size,
        base.label,
        facts,
        against,
        compute_times_to_quality(facts),
        tuple(failed),
    )


def _compare_with_first_arm(base: Arm, arm: Arm, allowed: frozenset[str]) -> ArmComparison:
    differences = find_work_differences(base.runs, arm.runs)
    reasons = tuple(
        f"{difference.fact} differs: {base.label} has {difference.a}, {arm.label} has "
        f"{difference.b}"
        for difference in differences
        if difference.blocks and difference.fact not in allowed
    )
    if reasons:
        return ArmComparison(arm.label, reasons, differences, (), ())
    first, second = _collect_times_by_key(base.runs), _collect_times_by_key(arm.runs)
    lines = tuple(
        compute_speedup_with_interval(key, first.get(key, []), second.get(key, []))
        for key in dict.fromkeys((*first, *second))
    )
    for side in (base, arm):
        if (busy := explain_cpu_contention(side.runs)) is not None:
            reason = f"on {side.label}, {busy}"
            lines = tuple(
                GainLine(line.key, line.before, line.after, reason=reason) for line in lines
            )
    return ArmComparison(arm.label, (), differences, lines, compute_amdahl_gains(lines))


def find_work_differences(a: Sequence[Run], b: Sequence[Run]) -> tuple[FactDifference, ...]:
    """Return the facts that differ; ``blocks`` for different work.

    A fact of MUST_AGREE that only one side recorded blocks too; one that neither recorded
    is listed.
    """
    differences, facts = compare_run_facts(
        *([strip_compile_option(run) for run in side] for side in (a, b))
    )
    judged = [
        replace(difference, blocks=difference.fact in MUST_AGREE) for difference in differences
    ]
    recorded = {fact for fact, _, _ in facts}
    reason = "it is unknown whether the work is the same"
    for name in MUST_AGREE:
        if name not in recorded:
            judged.append(FactDifference(name, NOT_RECORDED, NOT_RECORDED, False, reason))
    for name in (COMPILED, "samples", "length", "data_dir"):
        value_a, right = (
            ", ".join(
                sorted({run.report.environment.get(f"option:{name}", "not said") for run in side})
            )
            for side in (a, b)
        )
        if value_a != right:
            judged.append(FactDifference(name, value_a, right, True, "the measured work differs"))
    return tuple(judged)


def strip_compile_option(run: Run) -> Run:
    """The run with the variant of its network alone, without that it was compiled."""
    parts = [
        part
        for part in (run.variant or "").split(" ")
        if part and not part.startswith(f"{COMPILED}=")
    ]
    return replace(run, variant=" ".join(parts) or None)


def _collect_times_by_key(runs: Sequence[Run]) -> dict[GainKey, list[tuple[float, ...]]]:
    """Return epochs, steps, phases and layers (both gradients of a layer as one backward), run by
    run: the values of its steps in ns."""
    values: dict[GainKey, list[tuple[float, ...]]] = defaultdict(list)
    for run in runs:
        if times := tuple(epoch.ns for epoch in list_epochs(run)):
            values[GainKey("epoch", "epoch")].append(times)
        layers: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        for key, observed in observe_times(PreparedRun(run)).items():
            if not observed.trusted:
                continue
            if key == STEP_TIME or key.item in PHASES:
                level = "step" if key == STEP_TIME else "phase"
                values[GainKey(level, key.item)].append(observed.values)
            elif key.level == "layer" and key.layer != UNATTRIBUTED:
                direction = "backward" if key.direction in GRADIENTS else key.direction
                for step, value in enumerate(observed.values):
                    layers[f"{key.layer} {direction}".strip()][step] += value
        for name, sums in layers.items():
            values[GainKey("layer", name)].append(tuple(sums.values()))
    return values


def compute_speedup_with_interval(
    key: GainKey, a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]
) -> GainLine:
    """Return how many times faster ``b`` is than ``a``, or why that is unknown.

    Epochs of one run each are few and long: each counts as one measurement, and the basis says so.
    """
    before, after = (
        statistics.median(value for run in side for value in run) if side else None
        for side in (a, b)
    )
    line = GainLine(key, before, after)
    unit = "runs"
    if len(a) == len(b) == 1:
        unit = "epochs" if key.level == "epoch" else "steps"
    if unit == "epochs":
        a, b = ([[value] for value in side[0]] for side in (a, b))
        if min(len(a), len(b)) < 2:
            reason = "one epoch has no spread; run 2 or more epochs, or 5 repeats"
            return replace(line, reason=reason)
    test = compute_b_over_a_interval(a, b)
    if isinstance(test, UntestedRatio):
        return replace(line, reason=test.reason)
    basis = test.basis
    if unit == "epochs":
        counts = f"{len(a)} and {len(b)}"
        basis = f"{counts} epochs of one run each, without the spread between runs"
    low, high = 1 / test.high, 1 / test.low
    gain = Gain(math.sqrt(low * high), low, high, basis)
    line = replace(
        line,
        change=1 / gain.value - 1,
        interval=(test.low - 1, test.high - 1),
        test=test,
        result=SLOWER if test.low > 1 else FASTER if test.high < 1 else NOT_SHOWN,
    )
    now = min(len(a[0]), len(b[0])) if unit == "steps" else max(min(len(a), len(b)), 2)
    wide = explain_wide_ratio_interval(test, now, unit)
    if wide is None:
        return replace(line, gain=gain)
    return replace(line, reason=wide.reason, uncertain=UncertainGain(gain, wide.more, unit))


def find_epoch_step_disagreement(lines: Sequence[GainLine]) -> tuple[Gain, Gain] | None:
    """(of steps, of epochs) where the two do not agree: their 95% intervals do not meet, and they
    are ``APART``."""
    gains = {line.key.level: line.gain for line in lines}
    steps, epochs = gains.get("step"), gains.get("epoch")
    if steps is None or epochs is None:
        return None
    is_apart = max(steps.value, epochs.value) > APART * min(steps.value, epochs.value)
    do_meet = steps.low <= epochs.high and epochs.low <= steps.high
    return (steps, epochs) if is_apart and not do_meet else None


def compute_amdahl_gains(lines: Sequence[GainLine]) -> tuple[AmdahlGain, ...]:
    """For each layer, the step's speedup if only that layer ran as fast as on the other arm; the
    largest first.

    T / (T - t + t / s): T is the first arm's step, t the layer's part of it, s its speedup (G. M.
    Amdahl, AFIPS 1967). A layer of a small part has a narrow interval here even where its own
    speedup is not known.
    """
    step = next((line.before for line in lines if line.key.level == "step"), None)
    if not step:
        return ()
    parts = []
    for line in lines:
        own_gain = line.uncertain.gain if line.uncertain else line.gain
        if (
            line.key.level == "layer"
            and own_gain is not None
            and line.before
            and line.before < step
        ):
            share = line.before / step
            value, low, high = (
                1 / (1 - share + share / gain)
                for gain in (own_gain.value, own_gain.low, own_gain.high)
            )
            if high <= WIDEST * low:
                gain = Gain(value, low, high, own_gain.basis)
                parts.append(AmdahlGain(line.key.name, share, gain, 1 / (1 - share)))
    return tuple(sorted(parts, key=lambda part: -part.gain.value))


def parse_speedups_json(content: bytes) -> list[NetworkSpeedup]:
    """Return the speedups that ``--json`` wrote. Raises ValueError for other content."""
    written = msgspec.json.decode(content)
    studies = written if isinstance(written, list) else [written]
    try:
        for line in (
            line for study in studies for arm in study["comparisons"] for line in arm["lines"]
        ):
            line["key"] = [line.pop(name) for name in GainKey._fields]
            for field, name in GainLine.JSON_NAMES.items():
                line["reason" if field == "why" else field] = line.pop(name)
            line["reason"] = line["reason"] or ""
    except (TypeError, KeyError) as error:
        raise ValueError(f"no speedups: {error}") from error
    return msgspec.convert(studies, list[NetworkSpeedup])


def compute_times_to_quality(arms: Sequence[ArmFigures]) -> tuple[TimeToQuality, ...]:
    """Return the training time to the test loss, accuracy and Dice of the worst arm's best."""
    results = []
    for goal, sign, read in _GOALS:
        courses = {
            arm.label: [
                (epoch.elapsed_ns, sign * value)
                for epoch in arm.epochs
                if (value := read(epoch)) is not None
            ]
            for arm in arms
        }
        if courses and all(courses.values()):
            target = max(min(value for _, value in course) for course in courses.values())
            first = {
                label: next((ns for ns, value in course if value <= target), None)
                for label, course in courses.items()
            }
            results.append(TimeToQuality(goal, sign * target, first))
    return tuple(results)


def group_training_runs_into_arms(
    runs: Sequence[Run],
) -> tuple[dict[str, dict[int | None, list[Arm]]], list[tuple[str, str]]]:
    """Return workload -> batch size -> arms, of runs that train under one profiler, those of torch
    before others; and what is left out, and why.

    The device and precision of a run say which arm it belongs to.
    """
    networks: dict[str, dict[int | None, list[Arm]]] = {}
    absent: list[tuple[str, str]] = []
    trained = [run for run in runs if run.mode == "train" and run.profiler != "none"]
    for network in dict.fromkeys(run.workload for run in trained if run.workload):
        if arms := _group_network_runs_into_arms(
            [run for run in trained if run.workload == network], network, absent
        ):
            networks[network] = arms
    return networks, absent


def _group_network_runs_into_arms(
    runs: Sequence[Run], network: str, absent: list[tuple[str, str]]
) -> dict[int | None, list[Arm]]:
    """Return batch size -> arms, of the profiler and the network's form that the newest runs have;
    empty with one device alone."""
    profilers = [run.profiler for run in runs]
    profiler = next((name for name in ("torch", "kineto", "nsys") if name in profilers), None)
    under = [run for run in runs if run.profiler == profiler]
    if not under:
        return {}
    form = strip_compile_option(under[-1]).variant
    alike = [run for run in under if strip_compile_option(run).variant == form]
    if other_count := len(runs) - len(alike):
        description = f"{pluralize_count(other_count, 'other run')} of {network}"
        absent.append((description, "another profiler, or other sizes"))
    labels = _label_runs_by_device_precision(alike)
    if len(set(labels.values())) < 2:
        reason = "alone; a comparison needs two devices or precisions"
        absent.append((network, f"its runs are of {labels[alike[0].id]} {reason}"))
        return {}
    order = sorted(set(labels.values()), key=lambda label: (_rank_arm_label(label), label))
    batches = sorted({run.batch_size for run in alike if run.batch_size is not None})
    return {
        batch: [
            Arm(
                label,
                tuple(run for run in alike if (labels[run.id], run.batch_size) == (label, batch)),
            )
            for label in order
        ]
        for batch in batches
    }


def _rank_arm_label(label: str) -> int:
    """Return the place of an arm: the CPU first, plain before what was asked beside it."""
    plain = label.partition(" ")[0]
    return ARMS.index(plain) if plain in ARMS else len(ARMS)


def _label_runs_by_device_precision(runs: Sequence[Run]) -> dict[int, str]:
    """Return run -> "cpu", "cuda:bf16"; with the device's name where runs of one kind are of
    several devices."""
    kinds: dict[int, str] = {}
    devices: dict[str, set[str | None]] = defaultdict(set)
    for run in runs:
        kind = "cpu" if run.device_kind == "cpu" else "cuda"
        kind += f":{run.precision}" if run.precision not in (None, "fp32") else ""
        kind += ":compile" if run.report.environment.get("option:compile") == "True" else ""
        kinds[run.id] = kind
        devices[kind].add(get_device_label(run))
    return {
        run.id: f"{kinds[run.id]} ({get_device_label(run)})"
        if len(devices[kinds[run.id]]) > 1
        else kinds[run.id]
        for run in runs
    }
