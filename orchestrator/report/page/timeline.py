"""One step of each run that has a clock, as tracks: ranges of each thread above, kernels and copies of each stream below."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

from perfctl.orchestrator.analyse.analysis import short_names
from perfctl.orchestrator.report.numbers import size, time
from perfctl.orchestrator.report.page.kernels import run_label
from perfctl.orchestrator.report.tables import differences
from perfctl.records.report import Copy, Kernel, Range
from perfctl.records.run import Run

MOST = 20_000
"""Bars of one kind in a view; a longer capture ends earlier and says so."""
LANES = 16
"""Rows of a track; bars nested deeper are left out and counted."""
FIRST_TO_LAST = "from the first {0} to the end of the last"
OTHER, NO_LAYER = 7, 8


class Bar(NamedTuple):
    """One thing that took time on a track."""

    start: int
    length: int
    name: str
    detail: str
    colour: int


@dataclass(slots=True)
class _View:
    run: Run
    title: str
    start: int
    end: int
    notes: list[str] = field(default_factory=list)


def timelines(
    runs: Sequence[Run], colours: Mapping[str, int], short: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """A view for each run with start times, in order; ncu has none (it runs kernels one by one, many times each).

    ``short``: kernel names of the page. A view has the whole names of those that are shortened, for the hover.
    """
    views = [view for run in runs if run.profiler != "ncu" and (view := _view(run)) is not None]
    short = short_names(view.run for view in views) if short is None else short
    took: dict[str, float] = defaultdict(float)
    for kernel in (kernel for run in runs for kernel in run.report.kernels if not colours):
        took[kernel.name] += kernel.duration_ns or 0
    # where no layer has a colour, the names that take most time have one
    names = {name: number for number, name in enumerate(sorted(took, key=lambda name: -took[name])[:OTHER])}
    drawn = []
    whole = [name for name, brief in short.items() if brief != name]
    for view in views:
        said: dict[str, int] = {}
        found = (*_range_tracks(view, colours), *_stream_tracks(view, colours, names, short))
        tracks = [_packed(title, kind, bars, view, said) for title, kind, bars in found]
        drawn.append({
            "label": f"{run_label(view.run)}, {view.title}", "length": view.end - view.start, "notes": view.notes,
            "tracks": tracks, "names": list(said),
            "whole": {short[name]: name[:1000] for name in whole if short[name] in said},
        })  # fmt: skip
    return drawn


def absent(runs: Sequence[Run]) -> str | None:
    """Why there is no timeline; None when there is one, or no kernel was timed."""
    if any(kernel.duration_ns is not None for run in runs for kernel in run.report.kernels):
        return "no run has start times: ncu runs kernels one by one and keeps none, nsys and torch do"
    return None


def _view(run: Run) -> _View | None:
    steps = [item for item in run.report.ranges
             if item.step is not None and item.duration_ns is not None and item.name.startswith("perfctl:step:")]  # fmt: skip
    if steps:
        middle = median(item.duration_ns or 0 for item in steps)
        step = min(steps, key=lambda item: (abs((item.duration_ns or 0) - middle), item.start_ns))
        last = max((_end(kernel) for kernel in run.report.kernels if kernel.step == step.step), default=0)
        title = f"step {step.step}" + (f", of median length among {len(steps)}" if len(steps) > 1 else "")
        return _View(run, title, step.start_ns, max(last, step.start_ns + (step.duration_ns or 0)))
    numbered = sorted({kernel.step for kernel in run.report.kernels if kernel.step is not None})
    wanted = numbered[len(numbered) // 2] if numbered else None
    timed = sorted((kernel for kernel in run.report.kernels if _timed(kernel) and kernel.step == wanted),
                   key=lambda kernel: kernel.start_ns or 0)  # fmt: skip
    if timed:
        kept, title = timed[:MOST], FIRST_TO_LAST.format("kernel") if wanted is None else f"step {wanted}"
        view = _View(run, title, kept[0].start_ns or 0, max(map(_end, kept)))
        if len(kept) < len(timed):
            view.title = f"{title}, the first {len(kept):,} kernels"
            view.notes.append(f"the first {len(kept):,} of {len(timed):,} kernels; the rest is in the store")
        return view
    spans = sorted((item.start_ns, item.start_ns + item.duration_ns) for item in run.report.ranges if item.duration_ns)
    title = FIRST_TO_LAST.format("range") + (f", the first {MOST:,} ranges" if len(spans) > MOST else "")
    return _View(run, title, spans[0][0], max(end for _, end in spans[:MOST])) if spans else None


def _packed(title: str, kind: str, bars: Sequence[Bar], view: _View, names: dict[str, int]) -> dict[str, Any]:
    """Sorted by start, outer before inner; ``l`` is the row, counted from the top of the track."""
    ends: list[int] = []
    kept: list[tuple[int, Bar]] = []
    for bar in sorted(bars, key=lambda bar: (bar.start, -bar.length)):
        lane = next((place for place, end in enumerate(ends) if end <= bar.start), len(ends))
        if lane >= LANES:
            continue
        ends[lane : lane + 1] = [bar.start + bar.length]
        kept.append((lane, bar))
    if len(kept) < len(bars):
        view.notes.append(f"{title}: {len(bars) - len(kept):,} bars below row {LANES} are left out")
    return {
        "title": title, "kind": kind, "lanes": max(len(ends), 1),
        "s": differences([bar.start - view.start for _, bar in kept]),
        "d": [bar.length for _, bar in kept],
        "n": [names.setdefault(bar.name, len(names)) for _, bar in kept],
        "t": [names.setdefault(bar.detail, len(names)) for _, bar in kept],
        "c": [bar.colour for _, bar in kept],
        "l": [lane for lane, _ in kept],
    }  # fmt: skip


def _range_tracks(view: _View, colours: Mapping[str, int]) -> Iterable[tuple[str, str, list[Bar]]]:
    threads: dict[int | None, list[Range]] = defaultdict(list)
    for item in view.run.report.ranges:
        if item.duration_ns is not None and item.start_ns < view.end and item.start_ns + item.duration_ns > view.start:
            threads[item.thread].append(item)
    by_start = sorted(threads.values(), key=lambda items: min(item.start_ns for item in items))
    for number, items in enumerate(by_start, 1):
        chosen = sorted(items, key=lambda item: -(item.duration_ns or 0))[:MOST]
        if len(chosen) < len(items):
            view.notes.append(f"the longest {len(chosen):,} of {len(items):,} ranges of a thread")
        bars = []
        for item in chosen:
            name = item.name.removeprefix("perfctl:").replace(":", " ")
            domain = "" if item.domain is None else f"domain {item.domain}"
            bars.append(_clip(view, item.start_ns, item.duration_ns or 0, name, domain, _colour(item, colours)))
        yield "ranges" if len(threads) == 1 else f"ranges, thread {number}", "range", bars


def _stream_tracks(
    view: _View, colours: Mapping[str, int], coloured: Mapping[str, int], short: Mapping[str, str]
) -> Iterable[tuple[str, str, list[Bar]]]:
    tracks: dict[tuple[str, int, int], list[Bar]] = defaultdict(list)
    for kernel in view.run.report.kernels:
        if _timed(kernel) and (kernel.start_ns or 0) < view.end and _end(kernel) > view.start:
            colour = coloured.get(kernel.name, OTHER) if coloured else _colour(kernel, colours)
            name, length = short.get(kernel.name, kernel.name), int(kernel.duration_ns or 0)
            bar = _clip(view, kernel.start_ns or 0, length, name, _launched(kernel), colour)
            tracks["kernel", *_place(kernel)].append(bar)
    for copy in view.run.report.copies:
        if copy.start_ns is not None and copy.duration_ns is not None and view.start <= copy.start_ns < view.end:
            moved = size(copy.bytes) if copy.bytes is not None else "size not recorded"
            bar = _clip(view, copy.start_ns, copy.duration_ns, f"copy {copy.kind}", moved, NO_LAYER)
            tracks["copy", *_place(copy)].append(bar)
    several = len({device for _, device, _ in tracks}) > 1
    ordered = sorted(tracks.items(), key=lambda item: (item[0][0] == "copy", *item[0][1:]))
    for (kind, device, stream), bars in ordered:
        what, gpu = "kernels" if kind == "kernel" else "copies", f"GPU {device} " if several else ""
        yield f"{what}, {gpu}stream {stream if stream >= 0 else 'not recorded'}", kind, bars


def _place(item: Kernel | Copy) -> tuple[int, int]:
    """(device, stream), -1 where the stream is not recorded."""
    return item.device_index or 0, -1 if item.stream is None else item.stream


def _clip(view: _View, start: int, length: int, name: str, detail: str, colour: int) -> Bar:
    """A bar cut to the view; a range may begin before it. The detail keeps the whole length."""
    left, right = max(start, view.start), min(start + length, view.end)
    if right - left < length:
        detail = "; ".join(filter(None, (detail, f"{time(length)} in all")))
    return Bar(left, right - left, name[:1000], detail[:1000], colour)


def _launched(kernel: Kernel) -> str:
    layer = " ".join(part for part in (kernel.layer, kernel.direction) if part) or "no layer"
    sizes = {
        "grid": (kernel.grid_x, kernel.grid_y, kernel.grid_z),
        "block": (kernel.block_x, kernel.block_y, kernel.block_z),
    }
    shape = (f"{what} {'×'.join(str(n) for n in sides if n is not None)}"
             for what, sides in sizes.items() if sides[0] is not None)  # fmt: skip
    return "; ".join([layer, *shape])


def _colour(item: Kernel | Range, colours: Mapping[str, int]) -> int:
    working = item.direction == "optimizer" or (isinstance(item, Range) and item.name == "perfctl:phase:optimizer")
    if item.layer is None:
        return colours.get("optimizer", NO_LAYER) if working else NO_LAYER
    return colours.get(item.layer, OTHER)


def _timed(kernel: Kernel) -> bool:
    return kernel.start_ns is not None and kernel.duration_ns is not None


def _end(kernel: Kernel) -> int:
    return int((kernel.start_ns or 0) + (kernel.duration_ns or 0))
