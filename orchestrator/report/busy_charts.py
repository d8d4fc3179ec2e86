"""The two drawings of how a model uses a GPU: utilisation and memory against batch size, for any set of models."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from perfctl.orchestrator.analyse.grouping import Study, studies
from perfctl.orchestrator.analyse.memory_use import MemoryUse
from perfctl.orchestrator.analyse.run_usage import RunUsage
from perfctl.orchestrator.analyse.utilisation_ways import UsageShare, Ways
from perfctl.orchestrator.report import charts
from perfctl.orchestrator.report.chart_view import Chart
from perfctl.orchestrator.report.numbers import short, size
from perfctl.parsers.stored import Run

_WAYS: tuple[tuple[str, Callable[[Ways], UsageShare]], ...] = (
    ("kernels", lambda item: item.kernels),
    ("NVML", lambda item: item.nvml),
    ("DLProf", lambda item: item.dlprof),
)

Line = tuple[str, str, dict[int, float]]
"""(model, what was read, batch size -> value)."""


def across(runs: Sequence[Run]) -> tuple[Chart, ...]:
    """Both drawings with all studies of ``runs`` in them."""
    named = [(label(study), [RunUsage(run) for run in study.runs]) for study in studies(runs) if not study.foreign]
    found = (utilisation_chart("all-utilisation", named), memory_chart("all-memory", named))
    return tuple(chart for chart in found if chart is not None)


def label(study: Study) -> str:
    """The model's name where the workload takes one, else the workload's, with what is not at its default."""
    model = study.runs[0].report.environment.get("option:model")
    return model or ", ".join(part for part in (study.workload, study.variant) if part)


def utilisation_chart(name: str, studies: Sequence[tuple[str, Sequence[RunUsage]]]) -> Chart | None:
    """Busy share against batch size: a line a way, and a line a model where there are several. On a CPU, cores busy."""
    lines: list[Line] = []
    for model, runs in studies:
        for way, share in _WAYS:
            lines.append((model, way, _points(runs, lambda run, share=share: share(run.ways).value)))  # type: ignore[misc]
    note = "kernels: start and length of each; NVML: the driver's figure, mean over time; DLProf: its summary"
    drawn = _chart(name, "Share of time with the GPU busy", lines, lambda share: f"{share * 100:.3g} %", note)
    if drawn is not None:
        return drawn
    hosts = [(model, "host", _points(runs, lambda run: run.ways.host_cores)) for model, runs in studies]
    note = "cores that the run's processes kept busy in its steps, mean over time"
    return _chart(name, "Host cores busy", hosts, lambda cores: f"{cores:.3g}", note)


def memory_chart(name: str, studies: Sequence[tuple[str, Sequence[RunUsage]]]) -> Chart | None:
    """Memory against batch size, a line a model: by NVML where it was read, else the allocator's, else the host's."""
    lines: list[Line] = []
    for model, runs in studies:
        for what, read in _MEMORIES:
            points = _points(runs, lambda run, read=read: read(run.memory))  # type: ignore[misc]
            if points:
                lines.append((model, what, points))
                break
    note = (
        "highest in each run: process or device by NVML, reserved by torch's allocator, or the host's resident memory"
    )
    return _chart(name, "Memory", lines, lambda value: short(size(value)), note)


_MEMORIES: tuple[tuple[str, Callable[[MemoryUse], int | None]], ...] = (
    ("process, NVML", lambda item: item.process),
    ("device in use", lambda item: item.device),
    ("reserved", lambda item: item.reserved),
    ("host resident", lambda item: item.host),
)


def _points(runs: Sequence[RunUsage], read: Callable[[RunUsage], float | None]) -> dict[int, float]:
    """batch size -> value, of runs that nothing slows before others."""
    order = {"none": 0, "nsys": 1, "torch": 2}
    points: dict[int, float] = {}
    for item in sorted(runs, key=lambda item: order.get(item.run.profiler, 3)):
        value, batch = read(item), item.run.batch_size
        if batch is not None and value is not None:
            points.setdefault(batch, value)
    return points


def _chart(name: str, title: str, lines: Sequence[Line], show: Callable[[float], str], note: str) -> Chart | None:
    """A line is named after its model, and after what was read where lines differ in it."""
    kept = [line for line in lines if len(line[2]) > 1]
    if not kept:
        return None
    kinds = {what for _, what, _ in kept}
    if len(kinds) == 1 and title != "Host cores busy":
        title += f" ({next(iter(kinds))})"
    named = [
        (", ".join(part for part in (model, what if len(kinds) > 1 or not model else "") if part), points)
        for model, what, points in kept
    ]
    series = [
        charts.Series(label, tuple(sorted(points)), tuple(points[batch] for batch in sorted(points)), colour=number)
        for number, (label, points) in enumerate(named)
    ]
    said = "; ".join(
        f"{label} batch {batch}: {show(points[batch])}" for label, points in named for batch in sorted(points)
    )
    svg = charts.against_batch(
        name, f"{title} against batch size. {said}", series, show, up=title.partition(" (")[0].lower()
    )
    return Chart(f"{title}, by batch size", svg, note)
