"""One quantity of both sides: the figures and the verdict on their difference."""

from __future__ import annotations

import statistics
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from perfctl.orchestrator.compare import pairing
from perfctl.orchestrator.compare.pairing import Key, Number, Observed, Row
from perfctl.orchestrator.counts.figure import Figure, total_of
from perfctl.orchestrator.ledger.ledger import OUTSIDE, ledger
from perfctl.orchestrator.ledger.prepared import PreparedRun, PreparedStudy, studies
from perfctl.orchestrator.ledger.sweep import memory_figures
from perfctl.orchestrator.ledger.timing import KERNEL_BASIS
from perfctl.orchestrator.statistics import Ratio, interval, ratio

Seen = Sequence[Observed]

PHASES = ("data", "copy", "forward", "backward", "optimizer", "inference")
UNATTRIBUTED = "not attributed"
KERNELS = "kernels of a step"
PER_REPORT = "sums over the whole report, whose number of steps is unknown"

ENERGIES = ("energy", "energy-delay product")


def rows(a: Sequence[Mapping[Key, Observed]], b: Sequence[Mapping[Key, Observed]]) -> list[Row]:
    """Outer join of both sides' quantities; rows of times are judged later, together."""
    keys = dict.fromkeys(key for found in (*a, *b) for key in found)
    sides = {key: [[run[key] for run in found if key in run] for found in (a, b)] for key in keys}
    return [_row(key, mine, theirs, len(a), len(b)) for key, (mine, theirs) in sides.items()]


def name(key: Key) -> str:
    """ "step", "conv2 forward", "conv2 forward: volta_sgemm_128x64_tn"."""
    if key.level == "step":
        return key.what
    layer = key.layer or ("optimizer" if key.direction == "optimizer" else OUTSIDE)
    row = layer if layer == key.direction else f"{layer} {key.direction}".strip()
    return f"{row}: {key.kernel}" if key.kernel else row


def _row(key: Key, a: Seen, b: Seen, runs_a: int, runs_b: int) -> Row:
    middle = _of_rates if key.quantity == "throughput" else statistics.median
    first, second = _number(a, runs_a, middle), _number(b, runs_b, middle)
    change = second.median / first.median - 1 if first and second and first.median else None
    basis = " / ".join(dict.fromkeys(seen.basis for seen in (*a, *b))) or None
    row = Row(
        key, name(key), first, second, change, None, None, None, pairing.NOT_JUDGED, "", basis
    )
    if not a or not b:
        return _one_sided(row, runs_b if a else runs_a)
    sets = [{value for run in side for value in run.values} for side in (a, b)]
    if key.quantity in ENERGIES:
        said = "; ".join(dict.fromkeys(seen.note for seen in (*a, *b) if seen.note))
        return replace(row, why=f"one figure a run, not judged; {said}")
    if key.quantity == "flops":
        return _counts(row, a, b, sets)
    if key.quantity == "memory" and all(len(values) == 1 for values in sets):
        return _bytes(row, a, b, sets)
    return _spread(row, a, b)


def _of_rates(values: Iterable[float]) -> float:
    """That of the median time: two times have their mean for a median, and two rates would have
    another one."""
    return 1 / statistics.median(1 / value for value in values)


def _number(seen: Seen, of_runs: int, middle: Callable[[Iterable[float]], float]) -> Number | None:
    if not seen:
        return None
    medians = [middle(run.values) for run in seen]
    grids = tuple(dict.fromkeys(grid for run in seen for grid in run.grids))
    launches = [run.launches for run in seen if run.launches is not None]
    return Number(
        middle(medians),
        interval(medians),
        min(medians),
        max(medians),
        len(seen),
        of_runs,
        sum(len(run.values) for run in seen),
        grids,
        statistics.median(launches) if launches else None,
    )


def _one_sided(row: Row, other_runs: int) -> Row:
    side, other, verdict = ("A", "B", pairing.GONE) if row.b is None else ("B", "A", pairing.NEW)
    number = row.a or row.b
    if row.key.level == "step" or number is None:
        return replace(row, why=f"{other} did not record it")
    in_runs = f"{number.runs} of {number.of_runs} runs" if number.of_runs > 1 else "the run"
    none = f"in none of {other_runs} runs" if other_runs > 1 else "not in the run"
    return replace(row, verdict=verdict, why=f"in {in_runs} of {side}, {none} of {other}")


def _counts(row: Row, a: Seen, b: Seen, sets: Sequence[set[float]]) -> Row:
    notes = [{run.note for run in side if run.note} for side in (a, b)]
    said = "; ".join(sorted(notes[0] | notes[1]))
    bounded = any("lower bound" in note for note in notes[0] | notes[1])
    if sets[0] == sets[1] and len(sets[0]) == 1 and (notes[0] == notes[1] or not bounded):
        why = f"the same count; {said}" if said else "the same count in every run"
        return replace(row, verdict=pairing.EQUAL, why=why)
    if bounded:
        return replace(row, why=said)
    if any(len(values) > 1 for values in sets):
        return replace(row, why="the count is not the same in all repeats of one side")
    why = f"counts are exact, so this is another computation{'; ' + said if said else ''}"
    return replace(row, verdict=pairing.DIFFERS, why=why)


def _bytes(row: Row, a: Seen, b: Seen, sets: Sequence[set[float]]) -> Row:
    if sets[0] == sets[1]:
        return replace(row, verdict=pairing.EQUAL, why="the same in every run")
    if min(len(a), len(b)) < 2:
        single = (
            "one run each" if len(a) == len(b) else f"{'A' if len(a) < len(b) else 'B'} is one run"
        )
        return replace(
            row,
            why=f"{single}: whether another run needs the same is unknown; run 2 or more repeats",
        )
    if row.change is None:
        return replace(row, why="A is 0, so the change is undefined")
    return replace(
        row, p=0.0, adjusted=0.0, why=f"the same in all {len(a)} runs of A and in all {len(b)} of B"
    )


def _spread(row: Row, a: Seen, b: Seen) -> Row:
    if len({run.basis for run in (*a, *b)}) > 1:
        return replace(row, why=f"not the same clock: {row.basis}")
    if not all(run.trusted for run in (*a, *b)):
        return replace(row, why=f"{row.basis}; times come from nsys or torch")
    assert row.a is not None and row.b is not None
    if row.a.runs < row.a.of_runs or row.b.runs < row.b.of_runs:
        seen = " and ".join(
            f"{one.runs} of {one.of_runs} runs of {side}"
            for side, one in (("A", row.a), ("B", row.b))
        )
        return replace(row, why=f"in {seen}: not in every repeat")
    found = ratio([run.values for run in a], [run.values for run in b])
    if not isinstance(found, Ratio):
        return replace(row, why=found)
    return replace(
        row, interval=(found.low - 1, found.high - 1), p=found.p, why=found.basis, ratio=found
    )


def judged(row: Row, adjusted: float, *, gate: float, alpha: float) -> Row:
    """The verdict on a row with a p-value: significant and larger than the gate."""
    change = row.change or 0.0
    row = replace(row, adjusted=adjusted)
    # The medians must move in the direction of the interval.
    same_side = row.interval is None or (change > 0) == (sum(row.interval) > 0)
    if adjusted >= alpha or not same_side:
        return replace(row, verdict=pairing.NOT_SHOWN)
    if abs(change) <= gate:
        return replace(row, verdict=pairing.WITHIN)
    if row.key.quantity == "memory":
        return replace(row, verdict=pairing.LARGER if change > 0 else pairing.SMALLER)
    return replace(row, verdict=pairing.SLOWER if change > 0 else pairing.FASTER)


def observed(run: PreparedRun) -> dict[Key, Observed]:
    basis, sizes = "memory as the run recorded it", memory_figures(run.run).items()
    memory = {Key("step", "memory", what): Observed((float(size),), basis) for what, size in sizes}
    return (
        times(run) | dict(_energy(run)) | memory | (flops(run) if run.run.report.counters else {})
    )


def times(run: PreparedRun) -> dict[Key, Observed]:
    """Steps, their phases, layers by direction and kernels, and samples per second."""
    return dict((*_steps(run), *_layers(run), *_kernels(run)))


def flops(run: PreparedRun) -> dict[Key, Observed]:
    """Counted FLOPs of a step, by layer and direction and in all; 1 multiply-add = 2."""
    (study,) = studies([run.run])
    entries = ledger(PreparedStudy(study, (run,)))
    found = {(row.layer, row.direction): row.counted for row in entries.rows}
    if any(key is None for _, key in run.launches):  # else there is nothing to count of no layer
        found.update(((UNATTRIBUTED, ""), rest.counted) for rest in entries.unattributed)
    known = {where: figure for where, figure in found.items() if figure.value is not None}
    rows = {Key("layer", "flops", "", *where): _exact(figure) for where, figure in known.items()}
    if known:
        rows[Key("step", "flops", "counted FLOPs")] = _exact(total_of(found.values()))
    return rows


def _energy(run: PreparedRun) -> Iterator[tuple[Key, Observed]]:
    """Joules of a step of all GPUs that were read, and times the step's time, where all
    are known."""
    found = run.usage.energy
    joules = [item.per_step for item in found if item.per_step is not None]
    if not joules or len(joules) < len(found):
        return
    error = max(item.error or 0.0 for item in found)
    note = f"sampling error up to {100 * error:.2g} %"
    basis = " and ".join(dict.fromkeys(item.source or "" for item in found))
    yield Key("step", "energy", "energy"), Observed((sum(joules),), basis, note=note)
    products = [item.delay_product or 0.0 for item in found]
    yield (
        Key("step", "energy-delay product", "energy-delay product"),
        Observed((sum(products),), basis, note=note),
    )


def _exact(figure: Figure) -> Observed:
    note = None
    if figure.lower_bound:
        note = f"a lower bound: {figure.reason or 'a part is missing'}"
    elif figure.state != "counted":
        note = f"{figure.state}: {figure.reason}"
    source = (
        "derived from kernels and shapes, per step"
        if figure.state == "derived"
        else "counted by ncu, per step"
    )
    return Observed((float(figure.value or 0),), source, note=note)


def _steps(run: PreparedRun) -> Iterator[tuple[Key, Observed]]:
    if run.step_time is None:
        return
    spread, basis = run.step_time
    yield Key("step", "time", "step"), Observed(spread.values, basis)
    samples = run.run.samples_per_step
    if samples and min(spread.values) > 0:
        speeds = tuple(samples * 1e9 / value for value in spread.values)
        yield Key("step", "throughput", "samples per second"), Observed(speeds, basis)
    for phase in PHASES:
        sums: Tally[int] = Tally()
        for step in sorted(run.run.report.steps, key=attrgetter("number")):
            if step.phase == phase and step.duration_ns is not None:
                # a step copies twice: images to the device, labels too
                sums[step.number] += step.duration_ns
        if sums:
            yield Key("step", "time", phase), Observed(tuple(map(float, sums.values())), basis)


def _layers(run: PreparedRun) -> Iterator[tuple[Key, Observed]]:
    if (found := run.layer_times) is None:
        return
    if run.run.report.kernels:
        yield Key("step", "time", KERNELS), Observed(found.total.values, found.basis, found.trusted)
    for (layer, direction), spread in found.rows.items():
        yield (
            Key("layer", "time", "", layer, direction),
            Observed(spread.values, found.basis, found.trusted),
        )
    if any(found.unattributed.values):
        yield (
            Key("layer", "time", "", UNATTRIBUTED),
            Observed(found.unattributed.values, found.basis, found.trusted),
        )


def _kernels(run: PreparedRun) -> Iterator[tuple[Key, Observed]]:
    steps, profiler = run.steps or 1, run.run.profiler
    sums: dict[Key, dict[int | None, float]] = defaultdict(lambda: defaultdict(float))
    grids: dict[Key, Tally[str]] = defaultdict(Tally)
    seen: dict[int | None, None] = {}
    for kernel, where in run.launches:
        if kernel.duration_ns is None:
            continue
        key = Key("kernel", "time", "", *(where or (UNATTRIBUTED, "")), kernel.name)
        sums[key][kernel.step] += kernel.duration_ns / (1 if run.numbered else steps)
        sides = (kernel.grid_x, kernel.grid_y, kernel.grid_z)
        grids[key]["" if sides[0] is None else "x".join(str(side or 1) for side in sides)] += 1
        seen[kernel.step] = None
    basis = KERNEL_BASIS.get(profiler, f"kernels, {profiler}") if run.steps else PER_REPORT
    for key, found in sums.items():
        values = tuple(found.get(step, 0.0) for step in seen)
        shapes = [
            grid for _, grid in sorted((-count, grid) for grid, count in grids[key].items()) if grid
        ]
        yield (
            key,
            Observed(values, basis, profiler != "ncu", tuple(shapes), grids[key].total() / steps),
        )
