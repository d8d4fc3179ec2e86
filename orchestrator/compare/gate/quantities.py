"""What a gate holds of a model on paper, and of recorded runs: counts of a step, and how long each
session took.

FLOPs: 1 multiply-add = 2.
Counts are held only where all repeats agree. Where nothing says how many steps a report has, they
are of the whole report.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath

from perfctl.orchestrator.compare.gate.records import SETUP, TIME, Measured, Place, Value
from perfctl.orchestrator.compare.pairing import FACTS, Key, busy_with_others, repeats
from perfctl.orchestrator.compare.rows import KERNELS, UNATTRIBUTED, times
from perfctl.orchestrator.counts.counters.amd import is_amd
from perfctl.orchestrator.counts.derived.records import Derived
from perfctl.orchestrator.counts.figure import Figure
from perfctl.orchestrator.estimate.flops.engine import BACKWARD, fused_only
from perfctl.orchestrator.estimate.step import Estimate
from perfctl.orchestrator.ledger.ledger import algorithm
from perfctl.orchestrator.ledger.prepared import (
    DerivedRun,
    PreparedRun,
    Study,
    heading,
    parted,
    studies,
    with_whole_backward,
)
from perfctl.orchestrator.ledger.sweep import memory_figures
from perfctl.orchestrator.ledger.timing import preference
from perfctl.records.paper import OpShape
from perfctl.records.report import Kernel
from perfctl.records.run import Run

Found = dict[Place, dict[str, Value]]
_PASSES = ("forward", "backward")
"""Directions whose copies are held: an optimizer copies each gradient once, to begin its
state with."""
Counts = Iterator[tuple[Place, str, Value]]
_NOT_FACTS = ("batch", "host", "origin", "steps", "threads of the host", "seed", "warmup")
"""Of a run, not of a study; or drawn anew each time."""


def of_model(estimates: Mapping[int, Estimate]) -> Measured:
    """Batch size -> one step on paper: the whole, then each layer by direction in the
    network's order."""
    places: Found = {}
    unknown: dict[str, str] = {}
    for batch, found in estimates.items():
        whole = places.setdefault(Place(batch=batch), {"parameters": found.parameters})
        for direction, totals in (("forward", found.forward), ("backward", found.backward)):
            if totals.unknown:
                names = ", ".join(dict.fromkeys(name for name, _ in totals.unknown))
                unknown[f"batch {batch}, FLOPs of {direction}"] = (
                    f"no formula for {names}: only what is known is held"
                )
        if found.memory is not None:
            whole["memory_peak"] = found.memory.rounded_peak
        for op in found.ops:
            _add(places, Place(batch=batch, direction=op.direction), "operations", op.calls)
            if found.memory_trace is not None and op.direction in _PASSES:
                places[Place(batch=batch, direction=op.direction)].setdefault("copied_bytes", 0)
        casts = found.casts
        whole["cast_bytes"] = casts.read_bytes + casts.write_bytes
        for made in found.memory_trace.allocations if found.memory_trace is not None else ():
            if made.op == "aten.clone" and made.direction in _PASSES:
                for layer in ("", made.layer or "(model)"):
                    place = Place(batch=batch, layer=layer, direction=made.direction)
                    _add(places, place, "copied_bytes", made.bytes)
        for call in found.calls:
            if fused_only(call):
                continue
            direction = "backward" if call.direction in BACKWARD else call.direction
            figures = {
                "flops": call.flops,
                "elementwise_flops": call.elementwise_flops,
                "bytes": None
                if None in (call.read_bytes, call.write_bytes)
                else (call.read_bytes or 0) + (call.write_bytes or 0),
            }
            for quantity, value in figures.items():
                if value is None:
                    continue
                _add(places, Place(batch=batch, direction=direction), quantity, value)
                if value:
                    _add(
                        places,
                        Place(batch=batch, layer=call.layer or "(model)", direction=direction),
                        quantity,
                        value,
                    )
    return Measured(places, unknown)


def _add(places: Found, place: Place, quantity: str, value: int) -> None:
    mine = places.setdefault(place, {})
    before = mine.get(quantity, 0)
    assert isinstance(before, int)
    mine[quantity] = before + value


def of_runs(runs: Sequence[Run]) -> Measured:
    """The newest sweep of each study and batch size: its repeats show which counts are exact; its
    median time is one session."""
    places: dict[Place, dict[str, Value]] = {}
    unknown: dict[str, str] = {}
    environment: dict[str, dict[str, str]] = {}
    for name, study in _named(studies(runs)):
        for batch in study.batches or (None,):
            at = Place(name, batch)
            found = repeats(run for run in study.runs if run.batch_size == batch)
            failed = [run for run in study.runs if run.batch_size == batch and run.status != "ok"]
            if failed and not found:
                unknown[at.name] = (
                    f"the run is {failed[-1].status}: "
                    f"{failed[-1].reason or 'no reason was recorded'}"
                )
            ops = next(
                (run.report.ops for several in found.values() for run in several if run.report.ops),
                (),
            )
            counted = any(run.report.counters for several in found.values() for run in several)
            for profiler in sorted(found, key=preference):
                _take(at, found[profiler], () if counted else ops, places, unknown)
        environment[name] = _environment(study)
    return Measured(places, unknown, environment)


def _named(found: Sequence[Study]) -> Iterator[tuple[str, Study]]:
    """Each study by its heading; with its device, folder or number where several have
    one heading."""
    names = [heading(study) for study in found]
    again = {name for name, count in Counter(names).items() if count > 1}
    taken: Counter[str] = Counter()
    for name, study in zip(names, found, strict=True):
        if name in again and study.workload is not None:
            name = f"{name}, {study.device or 'no device'}"
        elif name in again and study.runs[0].artifact:
            name = "/".join(PurePath(study.runs[0].artifact).parts[-2:])
        taken[name] += 1
        yield (f"{name} ({taken[name]})" if taken[name] > 1 else name), study


def _environment(study: Study) -> dict[str, str]:
    whole = [run for run in study.runs if run.status == "ok"]
    facts = {
        fact.name: ", ".join(
            sorted({said for run in whole if (said := fact.read(run)) is not None})
        )
        for fact in FACTS
        if fact.name not in _NOT_FACTS
    }
    if study.foreign:
        facts["workload"] = ""
    facts["profilers"] = ", ".join(sorted({run.profiler for run in whole}))
    return {name: said for name, said in facts.items() if said}


def _take(
    at: Place,
    runs: Sequence[Run],
    ops: Sequence[OpShape],
    places: dict[Place, dict[str, Value]],
    unknown: dict[str, str],
) -> None:
    """Quantities of one profiler's repeats that no profiler before it gave."""
    prepared = with_whole_backward(
        [parted(PreparedRun(run, run.precision if run.workload else None)) for run in runs]
    )
    each = [
        {(place, quantity): value for place, quantity, value in _counts(at, item, ops, unknown)}
        for item in prepared
    ]
    for place, quantity in dict.fromkeys(key for found in each for key in found):
        if quantity in places.get(place, {}):
            continue
        values = [found[place, quantity] for found in each if (place, quantity) in found]
        if len(values) < len(each) or any(value != values[0] for value in values):
            unknown[f"{place.name}: {quantity}"] = "not the same in all repeats, so it is not exact"
            continue
        places.setdefault(place, {})[quantity] = values[0]
    clocks = [took for item in prepared if (took := _step_time(item)) is not None]
    if TIME in places.get(at, {}) or not clocks or len(clocks) < len(prepared):
        return
    busy = busy_with_others(runs)
    if busy is not None:
        unknown[f"{at.name}: {TIME}"] = busy
    else:
        places.setdefault(at, {})[TIME] = (float(f"{statistics.median(clocks):.5g}"),)


def _step_time(item: PreparedRun) -> float | None:
    """Median nanoseconds of a step; of its kernels where no clock was around the steps."""
    seen = times(item)
    for what in (Key("step", TIME, "step"), Key("step", TIME, KERNELS)):
        if (
            (found := seen.get(what)) is not None
            and found.trusted
            and any(found.values)
            and item.steps != 0
        ):
            return statistics.median(found.values)
    return None


def _place(at: Place, key: tuple[str, str] | None) -> Place:
    layer, direction = key or ("", "")
    return at._replace(
        layer=layer or ("" if direction == "optimizer" else UNATTRIBUTED), direction=direction
    )


def _counts(
    at: Place, item: PreparedRun, ops: Sequence[OpShape], unknown: dict[str, str]
) -> Counts:
    run = item.run
    yield from _on_paper(at, run)
    if item.steps:
        yield at, "steps", item.steps
    elif run.report.kernels:
        yield at, SETUP, "counts are of the whole report: nothing says how many steps it has"
    yield from _kernels(at, item)
    if run.report.counters:
        yield from _executed(at, item, "counted", unknown)
    elif ops and run.report.kernels and not is_amd(run):  # the rules are of NVIDIA's kernels
        made = DerivedRun(run, item.precision, item.recorded, tuple(ops))
        if any(_a_product(one) for one in made.derived.values()):
            yield from _executed(at, made, "derived", unknown)
    if (allocated := memory_figures(run).get("peak allocated")) is not None:
        yield at, "allocated", allocated


def _a_product(one: Derived) -> bool:
    return bool(one.ffma or one.tensor)


def _on_paper(at: Place, run: Run) -> Counts:
    """Formulas with the shapes that the run recorded."""
    sums: dict[tuple[Place, str], int] = defaultdict(int)
    for call in run.layer_calls:
        if fused_only(call):
            continue
        direction = "backward" if call.direction in BACKWARD else call.direction
        moved = (
            None
            if call.read_bytes is None or call.write_bytes is None
            else call.read_bytes + call.write_bytes
        )
        for quantity, value in (
            ("flops", call.flops),
            ("elementwise_flops", call.elementwise_flops),
            ("bytes", moved),
        ):
            if value:
                sums[at._replace(direction=direction), quantity] += value
                sums[_place(at, (call.layer, direction)), quantity] += value
    for op in run.report.ops:
        sums[at._replace(direction=op.direction), "operations"] += op.calls
    yield from ((place, quantity, value) for (place, quantity), value in sums.items())


def _kernels(at: Place, item: PreparedRun) -> Counts:
    by_place: dict[Place, list[Kernel]] = defaultdict(list)
    for kernel, key in item.launches:
        by_place[_place(at, key)].append(kernel)
    steps = item.steps or 1
    if by_place:
        yield at, "launches", _count(len({kernel.launch for kernel, _ in item.launches}), steps)
    for place, kernels in by_place.items():
        names = Counter(kernel.name for kernel in kernels)
        yield place, "launches", _count(len(kernels), steps)
        yield place, "kernels", {name: _count(names[name], steps) for name in sorted(names)}
        threads = [_threads(kernel) for kernel in kernels]
        if None not in threads:
            yield place, "threads", _count(sum(one or 0 for one in threads), steps)
        if ways := sorted({said for name in names if (said := algorithm(name)) is not None}):
            yield place, "algorithm", "; ".join(ways)


def _threads(kernel: Kernel) -> int | None:
    """Of all blocks of a launch; None where the report has no grid or no block."""
    sides = (
        kernel.grid_x,
        kernel.grid_y,
        kernel.grid_z,
        kernel.block_x,
        kernel.block_y,
        kernel.block_z,
    )
    return None if None in sides else math.prod(side or 0 for side in sides)


def _count(whole: float, steps: int) -> float:
    """Of a step; a whole number where it is one."""
    return whole // steps if whole % steps == 0 else whole / steps


def _executed(at: Place, item: PreparedRun, how: str, unknown: dict[str, str]) -> Counts:
    """``how``: "counted" or "derived"; only sums that lack nothing."""
    whole = [(at, item.whole_work)]
    for place, work in (
        *whole,
        *((_place(at, key), found) for key, found in item.work_by_key.items()),
    ):
        if work is None:
            continue
        for quantity, figure in ((f"{how}_flops", work.total), ("dram_bytes", work.dram)):
            if _exact(figure, how) and figure.value is not None:
                yield place, quantity, figure.value
            elif figure.value is not None:
                why = "a lower bound" if figure.lower_bound else figure.state
                unknown[f"{place.name}: {quantity}"] = (
                    f"{why}: {figure.reason or 'some launches have no such figure'}"
                )
            elif quantity != "dram_bytes" or how == "counted":  # nothing derives bytes of DRAM
                none = (
                    "no rule for a kernel of these, or its grid is not of this work"
                    if how == "derived"
                    else figure.reason
                )
                unknown[f"{place.name}: {quantity}"] = none or figure.state


def _exact(figure: Figure, how: str) -> bool:
    return figure.value is not None and figure.state == how and not figure.lower_bound
