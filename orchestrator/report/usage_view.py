"""Utilisation and memory for the page: kernels running, what devices said about themselves, recorded memory figures."""

from __future__ import annotations

from collections.abc import Sequence

from perfctl.orchestrator.analyse.run_usage import RunUsage
from perfctl.orchestrator.analyse.utilisation import Busy, Readings
from perfctl.orchestrator.report.kernel_view import run_label
from perfctl.orchestrator.report.numbers import (
    Cell,
    amount,
    count,
    nothing,
    plain,
    share_cell,
    significant,
    size_cell,
    time_cell,
)
from perfctl.orchestrator.report.study_view import listing
from perfctl.orchestrator.report.tables import Column, Table
from perfctl.parsers.stored import Run


def busy_table(runs: Sequence[RunUsage]) -> Table | None:
    """Share of time with a kernel running, a row a device, and a row a stream where there are several."""
    found = [item for run in runs for item in run.busy]
    windows = "; ".join(dict.fromkeys(item.window for item in found))
    columns = [
        Column("run", look="text"), Column("device"), Column("stream", look="text"), Column("launches"),
        Column("a kernel runs", base="ns", note="time in which at least one kernel ran; overlapping kernels count once"),
        Column("of", base="ns", note=windows),
        Column("share", note=windows), Column("longest wait", base="ns", note="longest time without a kernel"),
    ]  # fmt: skip
    return listing("Share of time with a kernel running", columns, [_busy_row(item) for item in found], drop_run=False)


def absent(runs: Sequence[Run]) -> str | None:
    """Why no share of time can be said although kernels ran; None where none ran."""
    counted = [run for run in runs if run.report.kernels]
    if not counted:
        return None
    if all(run.profiler == "ncu" for run in counted):
        return "ncu runs kernels one by one, so how busy the device was is not in its reports; nsys and torch record it"
    kernels = [kernel for run in counted if run.profiler != "ncu" for kernel in run.report.kernels]
    without = sum(kernel.start_ns is None or kernel.duration_ns is None for kernel in kernels)
    return (
        f"{without:,} of {len(kernels):,} kernels have no start or no length, and a share without them would be wrong"
    )


def _busy_row(item: Busy) -> list[Cell]:
    share = None if item.share is None else round(item.share, 6)
    return [
        plain(run_label(item.run)), plain(item.device),
        plain("all" if item.stream is None else item.stream), count(item.launches), time_cell(item.running_ns),
        time_cell(item.window_ns), share_cell(share), time_cell(item.longest_wait_ns),
    ]  # fmt: skip


def readings_table(runs: Sequence[RunUsage]) -> Table | None:
    """What nvidia-smi, DCGM or NVML read while a run went on."""
    columns = [
        Column("run", look="text"), Column("device"), Column("samples"),
        Column("utilisation", note="mean of what the device says: share of time with any kernel, sampled"),
        Column("memory used", base="B", note="largest"), Column("memory", base="B"),
        Column("power", "W", note="mean"), Column("temperature", "°C", note="highest"),
        Column("SM clock", "Hz", note="lowest"),
    ]  # fmt: skip
    rows = [_readings_row(item) for run in runs for item in run.readings]
    return listing("What devices said about themselves", columns, rows, drop_run=False)


def _readings_row(item: Readings) -> list[Cell]:
    def figure(value: float | None, why: str) -> Cell:
        return nothing(why) if value is None else Cell(significant(float(value)), value=round(value, 3))

    share = None if item.utilisation is None else round(item.utilisation, 6)
    return [
        plain(run_label(item.run)), count(item.device, "the samples do not say"), count(item.count),
        share_cell(share, "not sampled"), size_cell(item.memory_used, "not sampled"),
        size_cell(item.memory_total, "not sampled"), figure(item.power, "not sampled"),
        figure(item.temperature, "not sampled"), amount(item.clock, "Hz", "not sampled"),
    ]  # fmt: skip


def memory_table(runs: Sequence[Run]) -> Table | None:
    """Every memory figure that runs recorded: a row a run, a column a moment and quantity."""
    named = dict.fromkeys((item.moment, item.quantity) for run in runs for item in run.report.memory)
    if not named:
        return None
    columns = [Column("run", look="text")]
    columns += [Column(f"{moment} {quantity.replace('_', ' ')}", base="B") for moment, quantity in named]
    rows = []
    for run in runs:
        known = {(item.moment, item.quantity): item.bytes for item in run.report.memory}
        if known:
            rows.append(
                [plain(run_label(run)), *(size_cell(known.get(name), "this run did not record it") for name in named)]
            )
    return listing("Memory figures that runs recorded about themselves", columns, rows, drop_run=False)


def memory_list(run: Run) -> Table | None:
    """The same figures of one run, a row a moment and quantity: what fits a terminal."""
    columns = [Column("figure", look="text"), Column("bytes", base="B")]
    rows = [
        [plain(f"{item.moment} {item.quantity.replace('_', ' ')}"), size_cell(item.bytes)] for item in run.report.memory
    ]
    return listing("Memory figures that the run recorded about itself", columns, rows, drop_run=False)
