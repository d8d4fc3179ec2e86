"""How many times faster one device or precision is than another, and where: refused where other work was done.

A speed-up is the ratio of geometric means with its 95 % interval (``compare_stats``); where there is no spread, there
is no speed-up, but the reason. Amdahl: G. M. Amdahl, AFIPS 1967.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from perfctl.orchestrator.analyse.compare_facts import NOT_RECORDED, compared
from perfctl.orchestrator.analyse.compare_records import Difference
from perfctl.orchestrator.analyse.compare_stats import ratio
from perfctl.orchestrator.analyse.compare_values import PHASES, UNATTRIBUTED, times
from perfctl.orchestrator.analyse.peaks import Peaks
from perfctl.orchestrator.analyse.prepared import PreparedRun
from perfctl.orchestrator.analyse.speedup_arms import epochs, facts_of
from perfctl.orchestrator.analyse.speedup_records import (
    Against,
    Arm,
    ArmFacts,
    Gain,
    GainLine,
    IfOnly,
    Reached,
    Speedup,
)
from perfctl.orchestrator.analyse.timing import GRADIENTS
from perfctl.parsers.stored import Run

MUST_AGREE = ("workload", "variant", "mode", "precision", "batch", "data", "seed", "world_size")
"""Facts of ``compare_facts`` without which it is other work; the device is what a speed-up is about."""
OWN_DATA = ("samples", "length", "data_dir")
"""Options of workloads that say which data it is."""
COMPILED = "compile"
Values = dict[tuple[str, str], list[tuple[float, ...]]]
"""(level, name) -> a list of runs, each the values of its steps in ns."""


def speedup(arms: Sequence[Arm], *, allowed: Iterable[str] = (), peaks: Sequence[Peaks] = ()) -> Speedup:
    """Set every arm against the first. Raises ValueError with fewer than two arms that have a whole run.

    ``allowed`` are names of MUST_AGREE (or "compile") that may differ, because the user asked for just that.
    """
    whole = [replace(arm, runs=tuple(run for run in arm.runs if run.status == "ok")) for arm in arms]
    failed = [(arm.label, _why(arm)) for arm, kept in zip(arms, whole, strict=True) if not kept.runs]
    whole = [arm for arm in whole if arm.runs]
    if len(whole) < 2:
        raise ValueError("; ".join(f"{label}: {why}" for label, why in failed) or "one arm alone")
    base, facts = whole[0], tuple(facts_of(arm, peaks) for arm in whole)
    against = tuple(_against(base, arm, frozenset(allowed)) for arm in whole[1:])
    first = base.runs[0]
    return Speedup(first.workload, first.batch_size, base.label, facts, against, reached(facts), tuple(failed))


def _why(arm: Arm) -> str:
    return next((run.reason for run in arm.runs if run.reason), "there is no run of it")


def _against(base: Arm, arm: Arm, allowed: frozenset[str]) -> Against:
    found = differing(base.runs, arm.runs)
    refused = tuple(
        f"{one.fact} differs: {base.label} has {one.a}, {arm.label} has {one.b}"
        for one in found
        if one.blocks and one.fact not in allowed
    )
    if refused:
        return Against(arm.label, refused, found, (), ())
    first, second = _values(base.runs), _values(arm.runs)
    keys = [*first, *(key for key in second if key not in first)]
    lines = tuple(_line(key, first.get(key, []), second.get(key, [])) for key in keys)
    return Against(arm.label, (), found, lines, if_only(lines))


def differing(a: Sequence[Run], b: Sequence[Run]) -> tuple[Difference, ...]:
    """What the two were made with that is not the same; ``blocks`` where it would be other work.

    A fact of MUST_AGREE that only one side recorded blocks as well; one that neither recorded is said.
    """
    plain_a, plain_b = ([_uncompiled(run) for run in side] for side in (a, b))
    differences, facts = compared(plain_a, plain_b)
    found = [replace(one, blocks=one.fact in MUST_AGREE) for one in differences]
    known = {name for name, _, _ in facts}
    why = "nothing shows that it is the same work"
    found += [Difference(name, NOT_RECORDED, NOT_RECORDED, False, why) for name in MUST_AGREE if name not in known]
    for name in (COMPILED, *OWN_DATA):
        said = [sorted({run.report.environment.get(f"option:{name}", "not said") for run in side}) for side in (a, b)]
        if said[0] != said[1]:
            left, right = (", ".join(words) for words in said)
            found.append(Difference(name, left, right, True, "other work is timed"))
    return tuple(found)


def _uncompiled(run: Run) -> Run:
    """Whether it was compiled is a fact of its own, not a part of the variant."""
    words = [word for word in (run.variant or "").split(" ") if word and not word.startswith(f"{COMPILED}=")]
    return replace(run, variant=" ".join(words) or None)


def _values(runs: Sequence[Run]) -> Values:
    """Epochs, steps, their phases and layers (both gradients of a layer as one backward), run by run."""
    found: Values = defaultdict(list)
    for run in runs:
        spent = [one.ns for one in epochs(run)]
        if spent:
            found["epoch", "epoch"].append(tuple(spent))
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
    level, name = key
    medians = [statistics.median(value for run in side for value in run) if side else None for side in (a, b)]
    found = gain(level, a, b)
    if isinstance(found, str):
        return GainLine(level, name, medians[0], medians[1], None, found)
    return GainLine(level, name, medians[0], medians[1], found, None)


def gain(level: str, a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> Gain | str:
    """How many times faster ``b`` is than ``a``; a text says why that cannot be said.

    Epochs of one run each are few and long: each counts as one measurement, and the basis says so.
    """
    if not a or not b:
        return "on one side only"
    if level == "epoch" and len(a) == len(b) == 1:
        if min(len(a[0]), len(b[0])) < 2:
            return "one epoch, so there is no spread to judge by: --epochs 2 or more, or --repeat 5"
        found = ratio([[value] for value in a[0]], [[value] for value in b[0]])
        basis = f"{len(a[0])} and {len(b[0])} epochs of one run each: what differs from run to run is not in it"
    else:
        found, basis = ratio(a, b), ""
    if isinstance(found, str):
        return found
    low, high = 1 / found.high, 1 / found.low
    return Gain(math.sqrt(low * high), low, high, basis or found.basis)


def if_only(lines: Sequence[GainLine]) -> tuple[IfOnly, ...]:
    """For each layer, the step's speed-up if that layer alone ran as fast as on the other arm; the largest first.

    T / (T - t + t / s) with T the first arm's step, t the layer's part of it and s the layer's speed-up.
    """
    step = next((line.base_ns for line in lines if line.level == "step"), None)
    if not step:
        return ()
    found = []
    for line in lines:
        if line.level != "layer" or line.gain is None or not line.base_ns or line.base_ns >= step:
            continue
        part = line.base_ns / step
        value, low, high = (amdahl(part, s) for s in line.gain[:3])
        found.append(IfOnly(line.name, part, Gain(value, low, high, line.gain.basis), 1 / (1 - part)))
    return tuple(sorted(found, key=lambda one: -one.gain.value))


def amdahl(share: float, faster: float) -> float:
    """Speed-up of the whole when ``share`` (0..1) of its time runs ``faster`` times as fast."""
    return 1 / (1 - share + share / faster)


def reached(arms: Sequence[ArmFacts]) -> tuple[Reached, ...]:
    """Training time to the test loss, accuracy and Dice that every arm reaches: the worst arm's best."""
    found = []
    for what, field, lower in (
        ("test loss", "test_loss", True),
        ("accuracy", "accuracy", False),
        ("Dice", "dice", False),
    ):
        courses: Mapping[str, list[tuple[float, float]]] = {
            arm.label: [
                (one.reached_ns, float(getattr(one, field))) for one in arm.epochs if getattr(one, field) is not None
            ]
            for arm in arms
        }
        if not courses or not all(courses.values()):
            continue
        sign = 1 if lower else -1
        target = max(min(sign * value for _, value in course) for course in courses.values())
        times_to = {
            label: next((ns for ns, value in course if sign * value <= target), None)
            for label, course in courses.items()
        }
        found.append(Reached(what, sign * target, times_to))
    return tuple(found)
