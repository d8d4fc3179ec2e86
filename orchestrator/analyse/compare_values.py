"""What one run says that can be set against another run: times by step, layer and kernel; counted FLOPs; memory."""

from __future__ import annotations

from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Iterator

from perfctl.orchestrator.analyse.compare_records import Key, Observed
from perfctl.orchestrator.analyse.figure import Figure, total_of
from perfctl.orchestrator.analyse.grouping import studies
from perfctl.orchestrator.analyse.ledger import ledger
from perfctl.orchestrator.analyse.prepared import PreparedRun, PreparedStudy
from perfctl.orchestrator.analyse.sweep import memory_figures
from perfctl.orchestrator.analyse.timing import KERNEL_BASIS
from perfctl.parsers.records import Kernel

PHASES = ("data", "copy", "forward", "backward", "optimizer", "inference")
UNATTRIBUTED = "not attributed"
"""Stands for the layer of what is not attributed to one."""
KERNELS = "kernels of a step"
PER_REPORT = "sums over the whole report, for nothing says how many steps it holds"
NO_MORE_THAN = "a lower bound: {}"


def observed(run: PreparedRun) -> dict[Key, Observed]:
    """Everything about one run."""
    return times(run) | memory(run) | (flops(run) if run.run.report.counters else {})


def times(run: PreparedRun) -> dict[Key, Observed]:
    """Steps, their phases, layers by direction and kernels, and samples per second."""
    return dict((*_steps(run), *_layers(run), *_kernels(run)))


def memory(run: PreparedRun) -> dict[Key, Observed]:
    """Memory figures, in bytes."""
    return {
        Key("step", "memory", name): Observed((float(size),), "memory as the run recorded it")
        for name, size in memory_figures(run.run).items()
    }


def flops(run: PreparedRun) -> dict[Key, Observed]:
    """Counted FLOPs of a step, by layer and direction and in all; 1 multiply-add = 2."""
    (study,) = studies([run.run])
    entries = ledger(PreparedStudy(study, (run,)))
    found = {(row.layer, row.direction): row.counted for row in entries.rows}
    found.update(((UNATTRIBUTED, ""), rest.counted) for rest in entries.unattributed)
    known = {where: figure for where, figure in found.items() if figure.value is not None}
    rows = {Key("layer", "flops", "", *where): _exact(figure) for where, figure in known.items()}
    if known:
        rows[Key("step", "flops", "counted FLOPs")] = _exact(total_of(found.values()))
    return rows


def _exact(figure: Figure) -> Observed:
    note = None
    if figure.lower_bound:
        note = NO_MORE_THAN.format(figure.reason or "a part is missing")
    elif figure.state == "estimated":
        note = f"estimated: {figure.reason}"
    return Observed((float(figure.value or 0),), "counted by ncu, per step", note=note)


def _steps(run: PreparedRun) -> Iterator[tuple[Key, Observed]]:
    whole = run.step_time
    if whole is None:
        return
    spread, basis = whole
    yield Key("step", "time", "step"), Observed(spread.values, basis)
    batch = run.run.batch_size
    if batch and min(spread.values) > 0:
        speeds = tuple(batch * 1e9 / value for value in spread.values)
        yield Key("step", "throughput", "samples per second"), Observed(speeds, basis)
    for phase in PHASES:
        parts = sorted((step for step in run.run.report.steps if step.phase == phase), key=lambda step: step.number)
        sums: dict[int, float] = {}
        for step in parts:
            if step.duration_ns is not None:  # a step copies twice: its images there, its answers back
                sums[step.number] = sums.get(step.number, 0.0) + step.duration_ns
        values = tuple(sums.values())
        if values:
            yield Key("step", "time", phase), Observed(values, basis)


def _layers(run: PreparedRun) -> Iterator[tuple[Key, Observed]]:
    found = run.layer_times
    if found is None:
        return
    if run.run.report.kernels:
        yield Key("step", "time", KERNELS), Observed(found.total.values, found.basis, found.trusted)
    for (layer, direction), spread in found.rows.items():
        yield Key("layer", "time", "", layer, direction), Observed(spread.values, found.basis, found.trusted)
    if any(found.unattributed.values):
        yield Key("layer", "time", "", UNATTRIBUTED), Observed(found.unattributed.values, found.basis, found.trusted)


def _kernels(run: PreparedRun) -> Iterator[tuple[Key, Observed]]:
    """Each kernel name within its layer and direction, its launches of a step added up."""
    steps, profiler = run.steps, run.run.profiler
    sums: dict[Key, dict[int | None, float]] = defaultdict(lambda: defaultdict(float))
    grids: dict[Key, Tally[str]] = defaultdict(Tally)
    seen: dict[int | None, None] = {}
    for kernel, where in run.launches:
        if kernel.duration_ns is None:
            continue
        layer, direction = where or (UNATTRIBUTED, "")
        key = Key("kernel", "time", "", layer, direction, kernel.short_name or kernel.name)
        sums[key][kernel.step] += kernel.duration_ns / (1 if run.numbered else steps or 1)
        grids[key][_grid(kernel)] += 1
        seen[kernel.step] = None
    basis = KERNEL_BASIS.get(profiler, f"kernels, {profiler}") if steps else PER_REPORT
    for key, found in sums.items():
        values = tuple(found.get(step, 0.0) for step in seen)
        launches = sum(grids[key].values()) / (steps or 1)
        shapes = tuple(sorted(grids[key], key=lambda grid, tally=grids[key]: (-tally[grid], grid)))  # type: ignore[misc]
        yield key, Observed(values, basis, profiler != "ncu", tuple(filter(None, shapes)), launches)


def _grid(kernel: Kernel) -> str:
    sides = (kernel.grid_x, kernel.grid_y, kernel.grid_z)
    return "" if sides[0] is None else "x".join(str(side or 1) for side in sides)
