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

from perfctl.orchestrator.compare.facts import NOT_RECORDED, Difference, compare_facts
from perfctl.orchestrator.compare.quantities import PHASES, UNATTRIBUTED, observe_times
from perfctl.orchestrator.counts.hardware.peaks import Peaks
from perfctl.orchestrator.ledger.prepared import PreparedRun
from perfctl.orchestrator.ledger.timing import GRADIENTS
from perfctl.orchestrator.ledger.usage.arm_figures import ArmFacts, epochs, facts_of
from perfctl.orchestrator.statistics import WIDEST, TooWide, ratio, ratio_too_wide
from perfctl.records.run import Run

MUST_AGREE = ("workload", "variant", "mode", "precision", "batch", "data", "seed", "world_size")
"""Facts of ``compare.facts`` that must be the same; the device may differ."""
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


APART = 1.1
"""Speed-ups of steps and of epochs that differ by less than this factor are taken for the same."""


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
    base, facts = whole[0], tuple(facts_of(arm.label, arm.runs, peaks) for arm in whole)
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
    differences, facts = compare_facts(*([uncompiled(run) for run in side] for side in (a, b)))
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
        for key, seen in observe_times(PreparedRun(run)).items():
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
