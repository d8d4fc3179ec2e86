"""How many times faster one device or precision is than another, and in which layers; refused for
different work.

A speed-up is a ratio of geometric means with its 95 % interval; without a spread, or with one that
is too wide, there is only a reason.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import attrgetter

from perfctl.orchestrator.compare.pairing import NOT_RECORDED, Difference, compared
from perfctl.orchestrator.compare.rows import PHASES, UNATTRIBUTED, times
from perfctl.orchestrator.counts.hardware.peaks import PATH_OF, Peaks, peaks_of
from perfctl.orchestrator.counts.kernels import categories
from perfctl.orchestrator.estimate.flops.engine import BACKWARD, totals
from perfctl.orchestrator.ledger.prepared import PreparedRun, device_label
from perfctl.orchestrator.ledger.sweep import memory_figures
from perfctl.orchestrator.ledger.timing import GRADIENTS
from perfctl.orchestrator.ledger.usage.intervals import Intervals
from perfctl.orchestrator.statistics import WIDEST, TooWide, ratio, ratio_too_wide
from perfctl.records.report import Kernel
from perfctl.records.run import Run

MUST_AGREE = ("workload", "variant", "mode", "precision", "batch", "data", "seed", "world_size")
"""Facts of ``compare.pairing`` that must be the same; the device may differ."""
COMPILED = "compile"
Values = dict[tuple[str, str], list[tuple[float, ...]]]
"""(level, name) -> a list of runs, each the values of its steps in ns."""


@dataclass(frozen=True, slots=True)
class Arm:
    """The runs of one label at one batch size, which are repeats."""

    label: str
    """"cpu", "cuda:bf16", or how the user named it."""
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class Gain:
    """Ratio of geometric means, with its 95 % interval."""

    value: float
    low: float
    high: float
    basis: str


@dataclass(frozen=True, slots=True)
class Unsettled:
    """An interval too wide to say anything: its ends are further apart than ``WIDEST``."""

    found: Gain
    more: int
    """Further values a side until it is narrow enough, if their spread stays as it is."""
    unit: str
    """What these are: steps, epochs or runs."""

    @property
    def judged(self) -> TooWide:
        """The same in words."""
        return TooWide(f"a factor of {WIDEST:g}", self.more, self.unit)


@dataclass(frozen=True, slots=True)
class GainLine:
    """One quantity of both arms."""

    level: str
    name: str
    base_ns: float | None
    """Median of the first arm; None without one."""
    ns: float | None
    gain: Gain | None
    """None without a spread, or with one that is too wide; ``reason`` says why."""
    reason: str | None
    unsettled: Unsettled | None = None


@dataclass(frozen=True, slots=True)
class Epoch:
    """One epoch of an arm's newest run."""

    number: int
    ns: float
    """Without the test pass."""
    reached_ns: float
    loss: float | None
    test_loss: float | None
    accuracy: float | None
    """0..1, of test data; dice: of its masks."""
    dice: float | None


@dataclass(frozen=True, slots=True)
class Top:
    """One of the most expensive operations (CPU, by self time) or kernels (GPU)."""

    name: str
    category: str
    calls: int
    self_ns: float
    total_ns: float | None
    """With the operations it called; None for kernels."""
    share: float


@dataclass(frozen=True, slots=True)
class Rate:
    """FLOPs on paper over measured time. 1 multiply-add = 2 FLOPs."""

    flops: int | None
    per_second: float | None
    peak: float | None
    """FLOP/s of the device in this precision; None if unknown."""
    reason: str | None


@dataclass(frozen=True, slots=True)
class ArmFacts:
    """Figures of one arm."""

    label: str
    device: str | None
    precision: str | None
    runs: int
    total_ns: float | None
    """All epochs' training time."""
    step_ns: float | None
    step_range: tuple[float, float] | None
    steps_per_second: float | None
    samples_per_second: float | None
    warmup: int | None
    epochs: tuple[Epoch, ...]
    memory: Mapping[str, int]
    top: tuple[Top, ...]
    categories: Mapping[str, float] | None
    """Kind of work -> share of all time in the trace."""
    rate: Rate
    idle: float | None
    """Share of the measured steps without a running kernel; None on a CPU."""
    overlap: float | None
    """Share of copy time with a running kernel; None without copies."""
    launch_bound: float | None
    """Share of kernels that run for less time than the device was idle before them; None on
    a CPU."""
    overhead: float | None
    """Share of the measured steps outside all operations (Python, the optimizer's loop); None on
    a GPU."""
    gaps: tuple[tuple[str, str], ...] = ()
    paper_memory: int | None = None
    """Peak bytes of all tensors on paper, in the allocator's 512-byte blocks."""
    paper_memory_reason: str | None = None


@dataclass(frozen=True, slots=True)
class IfOnly:
    """Amdahl: the step's speed-up if only this layer ran as fast as on the other arm."""

    layer: str
    share: float
    gain: Gain
    limit: float


@dataclass(frozen=True, slots=True)
class Against:
    """One arm compared with the first."""

    label: str
    refused: tuple[str, ...]
    """Why there is no speed-up; empty when there is one."""
    differences: tuple[Difference, ...]
    lines: tuple[GainLine, ...]
    if_only: tuple[IfOnly, ...]


@dataclass(frozen=True, slots=True)
class Reached:
    """Training time until each arm was as good as the worst arm's best."""

    what: str
    target: float
    times: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Speedup:
    """One workload at one batch size."""

    workload: str | None
    batch: int | None
    base: str
    arms: tuple[ArmFacts, ...]
    against: tuple[Against, ...]
    reached: tuple[Reached, ...]
    failed: tuple[tuple[str, str], ...] = ()
    """(label, why) of arms without a whole run."""


DICE = "dice:epoch:"
APART = 1.1
"""Speed-ups of steps and of epochs that differ by less than this factor are taken for the same."""


def facts_of(arm: Arm, peaks: Sequence[Peaks] = ()) -> ArmFacts:
    """Of the arm's newest run, except ``runs``. Arms have at least one whole run."""
    run = arm.runs[-1]
    prepared = PreparedRun(run)
    timed = prepared.step_time
    warmup = run.report.environment.get("option:warmup", "")
    step = timed[0].median if timed else None
    course = epochs(run)
    wanted = ("layer ranges",) if run.device_kind == "cpu" else ("layer ranges", "kernel")
    busy = [
        one.share for one in prepared.usage.busy if one.stream is None and one.share is not None
    ]
    gaps = [(gap.quantity, gap.reason) for gap in run.report.gaps if gap.quantity in wanted]
    return ArmFacts(
        label=arm.label,
        device=device_label(run),
        precision=run.precision,
        runs=len(arm.runs),
        total_ns=sum(one.ns for one in course) if course else None,
        step_ns=step,
        step_range=(timed[0].low, timed[0].high) if timed else None,
        steps_per_second=1e9 / step if step else None,
        samples_per_second=run.samples_per_step * 1e9 / step
        if step and run.samples_per_step
        else None,
        warmup=int(warmup) if warmup.isdecimal() else None,
        epochs=course,
        memory=memory_figures(run),
        top=top(run),
        categories=shares(run),
        rate=rate(run, step, peaks),
        idle=1 - statistics.fmean(busy) if busy else None,
        overlap=overlap(run),
        launch_bound=launch_bound(run),
        overhead=overhead(run),
        gaps=tuple(dict.fromkeys(gaps)),
    )


def epochs(run: Run) -> tuple[Epoch, ...]:
    tests = {row.number: row for row in run.report.steps if row.phase == "test"}
    scored = {one.name: one.value for one in run.report.summaries if one.name.startswith(DICE)}
    rows = [row for row in run.report.steps if row.phase == "epoch" and row.duration_ns is not None]
    rows.sort(key=attrgetter("number"))
    spent = [float(row.duration_ns or 0) for row in rows]
    return tuple(
        Epoch(
            row.number,
            ns,
            gone,
            row.loss,
            tests[row.number].loss if row.number in tests else None,
            row.accuracy,
            scored.get(f"{DICE}{row.number}"),
        )
        for row, ns, gone in zip(rows, spent, accumulate(spent), strict=True)
    )


def top(run: Run, most: int = 10) -> tuple[Top, ...]:
    """The most expensive kernels by time; without kernels, CPU operations by self time. One line
    per name, as in torch's tables."""
    found: list[tuple[str, int, float, float]] = [
        (one.name, 1, one.duration_ns or 0, 0) for one in run.report.kernels
    ]
    kernels = bool(found)
    if not kernels:
        found = [
            (one.name, one.calls, one.self_cpu_ns or 0, one.cpu_ns or 0)
            for one in run.report.operations
        ]
    sums: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    for name, *figures in found:
        sums[name] = [one + more for one, more in zip(sums[name], figures, strict=True)]
    whole = sum(own for _, own, _ in sums.values())
    kind = categories.kernel if kernels else categories.operation
    return tuple(
        Top(name, kind(name), int(calls), own, None if kernels else total, own / whole)
        for name, (calls, own, total) in sorted(
            sums.items(), key=lambda item: (-item[1][1], item[0])
        )[:most]
        if whole
    )


def shares(run: Run) -> Mapping[str, float] | None:
    """Kind of work -> share of all time in the trace, without kinds that took none."""
    found = categories.times(run) or {}
    whole = sum(found.values())
    return {kind: spent / whole for kind, spent in found.items() if spent} if whole else None


def rate(run: Run, step_ns: float | None, peaks: Sequence[Peaks] = ()) -> Rate:
    """FLOPs of a step on paper over its measured time, and the device's peak."""
    if not run.layer_calls:
        return Rate(None, None, None, "the shapes of the layers were not recorded")
    directions = ("forward", *BACKWARD) if run.mode == "train" else ("forward",)
    total = totals(run.layer_calls, directions)
    if total.at_least:
        names = ", ".join(name for name, _ in total.unknown)
        return Rate(
            None, None, None, f"at least {total.flops:,} FLOP on paper: {names} not counted"
        )
    flops = total.flops
    roofs = peaks_of(run.device, peaks)
    precision = run.precision or ""
    path = precision if run.device_kind == "cpu" else PATH_OF.get(precision, precision)
    peak = roofs.flops.get(path)
    reason = None if peak else roofs.reason or f"no peak of {path} is known for {roofs.device}"
    return Rate(flops, flops * 1e9 / step_ns if step_ns else None, peak, reason)


def launch_bound(run: Run) -> float | None:
    """Share of kernels that ran for less time than the device was idle before them; None without
    kernel times."""
    spans = sorted(
        (one.device_index or 0, one.start_ns, one.start_ns + one.duration_ns)
        for one in run.report.kernels
        if one.start_ns is not None and one.duration_ns is not None
    )
    waited: list[bool] = []
    reached: dict[int, float] = {}
    for device, start, end in spans:
        if device in reached:
            waited.append(start - reached[device] > end - start)
        reached[device] = max(end, reached.get(device, end))
    return sum(waited) / len(waited) if waited else None


def overlap(run: Run) -> float | None:
    """Share of the copies' time in which a kernel of the device ran; None without copies."""
    running: dict[int, list[Kernel]] = defaultdict(list)
    for one in run.report.kernels:
        if one.start_ns is None or one.duration_ns is None:
            return None
        running[one.device_index or 0].append(one)
    kernels = {device: Intervals.of(spans) for device, spans in running.items()}
    whole = both = 0.0
    for copy in run.report.copies:
        if copy.kind != "memset" and copy.start_ns is not None and copy.duration_ns:
            start, end = copy.start_ns, copy.start_ns + copy.duration_ns
            whole += copy.duration_ns
            if (device := copy.device_index or 0) in kernels:
                both += kernels[device].length_within(start, end)
    return both / whole if whole else None


def overhead(run: Run) -> float | None:
    """Share of the measured steps outside all operations: Python, and the profiler. None on
    a GPU."""
    if run.device_kind != "cpu" or not run.report.operations:
        return None
    steps = sum(row.duration_ns or 0 for row in run.report.steps if row.phase == "step")
    own = sum(item.self_cpu_ns or 0 for item in run.report.operations)
    return max(1 - own / steps, 0.0) if steps else None


def speedup(
    arms: Sequence[Arm], *, allowed: Iterable[str] = (), peaks: Sequence[Peaks] = ()
) -> Speedup:
    """Compare every arm with the first. Raises ValueError with fewer than two arms that have a
    complete run.

    ``allowed``: names of MUST_AGREE, or "compile", that may differ because the user asked for it.
    """
    whole = [
        replace(arm, runs=tuple(run for run in arm.runs if run.status == "ok")) for arm in arms
    ]
    lost = [arm for arm, kept in zip(arms, whole, strict=True) if not kept.runs]
    failed = [
        (arm.label, next((run.reason for run in arm.runs if run.reason), "it has no run"))
        for arm in lost
    ]
    whole = [arm for arm in whole if arm.runs]
    if len(whole) < 2:
        raise ValueError("; ".join(f"{label}: {why}" for label, why in failed) or "one arm alone")
    base, facts = whole[0], tuple(facts_of(arm, peaks) for arm in whole)
    against = tuple(_against(base, arm, frozenset(allowed)) for arm in whole[1:])
    first = base.runs[0]
    return Speedup(
        first.workload, first.batch_size, base.label, facts, against, reached(facts), tuple(failed)
    )


def _against(base: Arm, arm: Arm, allowed: frozenset[str]) -> Against:
    found = differing(base.runs, arm.runs)
    blocking = [one for one in found if one.blocks and one.fact not in allowed]
    if blocking:
        said = (
            f"{one.fact} differs: {base.label} has {one.a}, {arm.label} has {one.b}"
            for one in blocking
        )
        return Against(arm.label, tuple(said), found, (), ())
    first, second = _values(base.runs), _values(arm.runs)
    lines = tuple(
        _line(key, first.get(key, []), second.get(key, []))
        for key in dict.fromkeys((*first, *second))
    )
    return Against(arm.label, (), found, lines, if_only(lines))


def differing(a: Sequence[Run], b: Sequence[Run]) -> tuple[Difference, ...]:
    """Facts that differ; ``blocks`` for different work.

    A fact of MUST_AGREE that only one side recorded blocks too; one that neither recorded
    is listed.
    """
    differences, facts = compared(*([uncompiled(run) for run in side] for side in (a, b)))
    found = [replace(one, blocks=one.fact in MUST_AGREE) for one in differences]
    known = {name for name, _, _ in facts}
    why = "whether the work is the same is not known"
    found += [
        Difference(name, NOT_RECORDED, NOT_RECORDED, False, why)
        for name in MUST_AGREE
        if name not in known
    ]
    for name in (COMPILED, "samples", "length", "data_dir"):
        said = [
            sorted({run.report.environment.get(f"option:{name}", "not said") for run in side})
            for side in (a, b)
        ]
        if said[0] != said[1]:
            left, right = (", ".join(words) for words in said)
            found.append(Difference(name, left, right, True, "other work is timed"))
    return tuple(found)


def uncompiled(run: Run) -> Run:
    """The run with the variant of its network alone, without that it was compiled."""
    words = [
        word
        for word in (run.variant or "").split(" ")
        if word and not word.startswith(f"{COMPILED}=")
    ]
    return replace(run, variant=" ".join(words) or None)


def _values(runs: Sequence[Run]) -> Values:
    """Epochs, steps, phases and layers (both gradients of a layer as one backward), run by run."""
    found: Values = defaultdict(list)
    for run in runs:
        if spent := tuple(one.ns for one in epochs(run)):
            found["epoch", "epoch"].append(spent)
        layers: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        for key, seen in times(PreparedRun(run)).items():
            if not seen.trusted or key.quantity != "time":
                continue
            if key.level == "step" and (key.what == "step" or key.what in PHASES):
                found["step" if key.what == "step" else "phase", key.what].append(seen.values)
            elif key.level == "layer" and key.layer != UNATTRIBUTED:
                direction = "backward" if key.direction in GRADIENTS else key.direction
                name = f"{key.layer} {direction}".strip()
                for place, value in enumerate(seen.values):
                    layers[name][place] += value
        for name, sums in layers.items():
            found["layer", name].append(tuple(sums.values()))
    return found


def _line(key: tuple[str, str], a: list[tuple[float, ...]], b: list[tuple[float, ...]]) -> GainLine:
    base, ns = (
        statistics.median(value for run in side for value in run) if side else None
        for side in (a, b)
    )
    found = gain(key[0], a, b)
    if isinstance(found, Gain):
        return GainLine(*key, base, ns, found, None)
    if isinstance(found, Unsettled):
        return GainLine(*key, base, ns, None, found.judged.reason, found)
    return GainLine(*key, base, ns, None, found)


def gain(
    level: str, a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]
) -> Gain | Unsettled | str:
    """How many times faster ``b`` is than ``a``, or why that is unknown.

    Epochs of one run each are few and long: each counts as one measurement, and the basis says so.
    """
    if not a or not b:
        return "on one side only"
    if level == "epoch" and len(a) == len(b) == 1:
        if min(len(a[0]), len(b[0])) < 2:
            return "one epoch has no spread; run 2 or more epochs, or 5 repeats"
        found = ratio([[value] for value in a[0]], [[value] for value in b[0]])
        basis = (
            f"{len(a[0])} and {len(b[0])} epochs of one run each, without the spread between runs"
        )
    else:
        found, basis = ratio(a, b), ""
    if isinstance(found, str):
        return found
    low, high = 1 / found.high, 1 / found.low
    known = Gain(math.sqrt(low * high), low, high, basis or found.basis)
    one_run = len(a) == len(b) == 1
    now = min(len(a[0]), len(b[0])) if one_run else min(max(len(a), 2), max(len(b), 2))
    wide = ratio_too_wide(
        found, now, "runs" if not one_run else "epochs" if level == "epoch" else "steps"
    )
    return known if wide is None else Unsettled(known, wide.more, wide.unit)


def disagreement(lines: Sequence[GainLine]) -> tuple[Gain, Gain] | None:
    """(of steps, of epochs) where the two do not agree: their 95 % intervals do not meet, and they
    are ``APART``."""
    known = {line.level: line.gain for line in lines if line.level in ("step", "epoch")}
    steps, whole = known.get("step"), known.get("epoch")
    if steps is None or whole is None or (steps.low <= whole.high and whole.low <= steps.high):
        return None
    return (
        (steps, whole)
        if max(steps.value, whole.value) > APART * min(steps.value, whole.value)
        else None
    )


def if_only(lines: Sequence[GainLine]) -> tuple[IfOnly, ...]:
    """For each layer, the step's speed-up if only that layer ran as fast as on the other arm; the
    largest first.

    T / (T - t + t / s): T is the first arm's step, t the layer's part of it, s its speed-up (G. M.
    Amdahl, AFIPS 1967). A layer of a small part has a narrow interval here even where its own
    speed-up is not known.
    """
    step = next((line.base_ns for line in lines if line.level == "step"), None)
    if not step:
        return ()
    found = []
    for line in lines:
        own = line.unsettled.found if line.unsettled else line.gain
        if line.level == "layer" and own is not None and line.base_ns and line.base_ns < step:
            part = line.base_ns / step
            value, low, high = (amdahl(part, s) for s in (own.value, own.low, own.high))
            if high <= WIDEST * low:
                found.append(
                    IfOnly(line.name, part, Gain(value, low, high, own.basis), 1 / (1 - part))
                )
    return tuple(sorted(found, key=lambda one: -one.gain.value))


def amdahl(share: float, faster: float) -> float:
    """Speed-up of the whole when ``share`` (0..1) of its time runs ``faster`` times as fast."""
    return 1 / (1 - share + share / faster)


def reached(arms: Sequence[ArmFacts]) -> tuple[Reached, ...]:
    """Training time to the test loss, accuracy and Dice of the worst arm's best."""
    found = []
    for what, field, sign in (
        ("test loss", "test_loss", 1),
        ("accuracy", "accuracy", -1),
        ("Dice", "dice", -1),
    ):
        courses: dict[str, list[tuple[float, float]]] = {}
        for arm in arms:
            known = ((one.reached_ns, getattr(one, field)) for one in arm.epochs)
            courses[arm.label] = [(ns, sign * value) for ns, value in known if value is not None]
        if courses and all(courses.values()):
            target = max(min(value for _, value in course) for course in courses.values())
            first = {
                label: next((ns for ns, value in course if value <= target), None)
                for label, course in courses.items()
            }
            found.append(Reached(what, sign * target, first))
    return tuple(found)
