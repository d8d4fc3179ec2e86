"""Hardware counters of a device that were sampled over time: means of all samples, of each step,
and of each layer or kernel that lasts several samples."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from operator import itemgetter
from statistics import fmean, median
from typing import NamedTuple

from perfctl.orchestrator.ledger.usage.readings import list_ns_and_value_of_field
from perfctl.orchestrator.statistics import group_by
from perfctl.records.possible import LATEST_NS
from perfctl.records.report import CounterSample
from perfctl.records.run import Run

SEVERAL = 3
"""Samples inside a layer or kernel from which on it has a mean."""
ACTIVITIES = {
    "tensor cores": re.compile(r"sm(?:sp)?__.*(?:tensor|[hi]mma)"),
    "DRAM": re.compile(r"(?:dram|fbpa)__"),
    "SM": re.compile(
        r"sm(?:sp)?__(?:cycles_active|throughput|warps_active|inst_(?:executed|issued)\.)"
    ),
}
"""Part of a GPU -> how the names of the counters begin that tell how active it is."""
_AMOUNT = re.compile(r".*\.(?:sum|avg|min|max)\Z")
"""Name of a counter whose samples grow with the time between them."""
_Windows = list[tuple[int, int]]


class CounterMean(NamedTuple):
    """Mean of a counter over the samples that lie inside of a part of a run."""

    run: Run
    device: int | None
    part: str
    """ "all", "step 3", or a layer and its pass, or the name of a kernel."""
    counter: str
    samples: int
    value: float | None
    """None without a sample."""
    unit: str
    """As of ``get_counter_display_unit``."""


def get_counter_display_unit(sample: CounterSample) -> str:
    """Return the unit in which a counter is shown: %, B/s, /s, or "" for a ratio. Amounts become
    rates."""
    if sample.unit in ("byte", "byte/s"):
        return "B/s"
    return sample.unit or ("/s" if _AMOUNT.match(sample.name) else "")


def compute_median_sample_period_ns(samples: Sequence[CounterSample]) -> float | None:
    """Return the usual time between samples of one counter of one device, ns; None for a single
    sample."""
    times = sorted({sample.at_ns for sample in samples})
    return median(after - before for before, after in pairwise(times)) if times[1:] else None


def convert_counter_samples_to_rates(samples: Sequence[CounterSample]) -> list[tuple[int, float]]:
    """Return (ns, value in the unit of ``get_counter_display_unit``) of one counter of one
    device."""
    period = compute_median_sample_period_ns(samples)
    if period is None:
        return []
    scale = 1e9 / period if _AMOUNT.match(samples[0].name) else 1
    return [(at_ns, value * scale) for at_ns, value in list_ns_and_value_of_field(samples, "value")]


def compute_counter_means_by_run_part(run: Run) -> Iterator[CounterMean]:
    """Yield the means of every counter over all samples, by layer or kernel, and by step."""
    counters = group_by(run.report.counter_samples, lambda item: (item.device_index, item.name))
    parts: dict[int | None, list[tuple[str, _Windows, int]]] = {}
    for (device, name), samples in counters.items():
        period = compute_median_sample_period_ns(samples)
        if period is None:
            continue
        points = convert_counter_samples_to_rates(samples)
        parts[device] = parts.get(device) or list(_list_windows_of_run_parts(run, device, period))
        for part, windows, least in parts[device]:
            # of the samples that lie inside of windows with at least ``least``
            inside: list[float] = []
            for begin, end in windows:
                first = bisect_left(points, begin, key=itemgetter(0))
                last = bisect_right(points, end - period, key=itemgetter(0))
                inside += [value for _, value in points[first:last] if last - first >= least]
            if inside or least == 1:
                mean, unit = fmean(inside) if inside else None, get_counter_display_unit(samples[0])
                yield CounterMean(run, device, part, name, len(inside), mean, unit)


def _list_windows_of_run_parts(
    run: Run, device: int | None, period_ns: float
) -> Iterator[tuple[str, _Windows, int]]:
    """Yield the parts of a run: name, when, and the samples that a window needs."""
    yield "all", [(-LATEST_NS, LATEST_NS)], 1
    timed = [
        (kernel.start_ns, kernel.start_ns + round(kernel.duration_ns), kernel)
        for kernel in run.report.kernels
        if kernel.device_index == device
        and kernel.start_ns is not None
        and kernel.duration_ns is not None
    ]
    timed.sort(key=itemgetter(0))
    windows: dict[str, _Windows] = defaultdict(list)
    busy_until = -LATEST_NS
    name, begin = "", 0
    for start, end, kernel in timed:
        following = kernel.name
        if kernel.layer is not None:
            following = f"{kernel.layer} {kernel.direction or ''}".rstrip()
        if following != name or start - busy_until > period_ns:
            # what runs at the same time as another layer or kernel is of neither
            windows[name].append((begin, min(busy_until, start)))
            name, begin = following, max(start, busy_until)
        busy_until = max(busy_until, end)
    windows[name].append((begin, busy_until))
    for part, of_part in windows.items():
        yield part, of_part, SEVERAL
    for step in run.report.steps:
        if step.phase == "step" and step.start_ns is not None and step.duration_ns is not None:
            yield f"step {step.number}", [(step.start_ns, step.start_ns + step.duration_ns)], 1
