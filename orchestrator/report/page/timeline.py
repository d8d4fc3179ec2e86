"""Everything that a run recorded on a clock, as tracks: host ranges by thread, ranges on the GPU,
kernels and copies by stream.

Numbers travel as LEB128 integers in base64, names once each: about 9 bytes a bar, so that 100,000
kernels take 0.9 MB.
"""

from __future__ import annotations

from base64 import b64encode
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from perfctl.orchestrator.ledger.analysis import short_names
from perfctl.orchestrator.ledger.usage.run_usage import projections
from perfctl.orchestrator.report.numbers import size, time
from perfctl.orchestrator.report.page.kernels import run_label
from perfctl.orchestrator.report.tables import differences
from perfctl.records.report import Kernel, Range
from perfctl.records.run import Run

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

MOST = 250_000
"""Bars of all runs of a study together. Beyond it, short neighbours are merged, which the
view says."""
LANES = 16
"""Rows of a track; bars nested deeper are left out and counted."""
FINEST = 1024
"""Nanoseconds of the first attempt to merge; doubled until the rest fits."""
NEARLY_ALL = 0.8
"""A view that would open on more of the recording than this opens on all of it."""
OTHER, NO_LAYER = 7, 8

_Place = tuple[str, str | None]
"""Layer and direction; the layer is "" for the optimizer's own work."""


class Bar(NamedTuple):
    """One thing that took time on a track, or several that were merged."""

    start: int
    length: int
    name: str
    place: _Place | None
    text: str
    range: int | None
    """``Range.number`` of the range itself, or of the one that launched it."""


@dataclass(slots=True)
class _Track:
    title: str
    kind: str
    """range, gpu (a range on the GPU's time line), kernel or copy."""
    device: int | None
    bars: list[Bar]
    lanes: list[int] = field(default_factory=list)
    """Row of each bar."""
    counts: list[int] = field(default_factory=list)
    """Things in each bar, and the time in them; empty where nothing was merged."""
    busy: list[int] = field(default_factory=list)


class _Numbers(dict[Any, int]):
    """A new key gets the next number."""

    def __missing__(self, key: Any) -> int:
        self[key] = number = len(self)
        return number


def timelines(
    runs: Sequence[Run], colours: Mapping[str, int], short: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """A view for each run with start times, in order; ncu has none (it runs kernels one by one,
    many times each).

    ``short``: kernel names of the page. A view has the whole names of those that are shortened, for
    the hover.
    """
    timed = [run for run in runs if run.profiler != "ncu"]
    short = short_names(timed) if short is None else short
    found = [(run, tracks) for run in timed if (tracks := list(_tracks(run, short)))]
    took: dict[str, float] = defaultdict(float)
    for kernel in (kernel for run in runs for kernel in run.report.kernels if not colours):
        took[short.get(kernel.name, kernel.name)] += kernel.duration_ns or 0
    # where no layer has a colour, the names that take most time have one
    hues = {
        name: number
        for number, name in enumerate(sorted(took, key=lambda name: -took[name])[:OTHER])
    }
    whole = {brief: name[:1000] for name, brief in short.items() if brief != name}
    return [_view(run, tracks, MOST // len(found), colours, hues, whole) for run, tracks in found]


def absent(runs: Sequence[Run]) -> str | None:
    """Why there is no timeline; None when there is one, or no kernel was timed."""
    if any(kernel.duration_ns is not None for run in runs for kernel in run.report.kernels):
        return (
            "no run has start times: ncu runs kernels one by one and keeps none, nsys and torch do"
        )
    return None


def _view(
    run: Run,
    tracks: Sequence[_Track],
    room: int,
    colours: Mapping[str, int],
    hues: Mapping[str, int],
    whole: Mapping[str, str],
) -> dict[str, Any]:
    begin = min(bar.start for track in tracks for bar in track.bars)
    end = max(bar.start + bar.length for track in tracks for bar in track.bars)
    notes = [note for track in tracks if (note := _laid(track))]
    merged, numbers = _merged(tracks, room)
    notes += merged
    untimed = sum(not _timed(kernel) for kernel in run.report.kernels)
    if untimed:
        notes.append(f"{untimed:,} kernels have no start or no duration and are not drawn")
    names, texts, places = _Numbers({"": 0}), _Numbers({"": 0}), _Numbers({None: 0})
    packed = [_packed(track, begin, names, texts, places, numbers) for track in tracks]
    opened, words = _opened(run)
    if opened is None or opened[1] - opened[0] > NEARLY_ALL * (end - begin):
        opened, words = (begin, end), "all of it"
    of_place = [NO_LAYER if place is None else _colour(place, colours) for place in places]
    legend: list[tuple[int, str, str | None]]
    if hues:
        legend = [(number, name, None) for name, number in hues.items() if name in names]
        others = len({kernel.name for kernel in run.report.kernels}) > len(legend)
    else:
        layers = {place[0] or "optimizer" for place in places if place}
        legend = [(number, layer, layer) for layer, number in colours.items() if layer in layers]
        others = OTHER in of_place
    legend += [(OTHER, "other kernels" if hues else "other layers", None)] * others
    return {
        "label": run_label(run),
        "length": end - begin,
        "open": [opened[0] - begin, opened[1] - begin],
        "opened": words,
        "notes": notes,
        "tracks": packed,
        "names": list(names),
        "texts": list(texts),
        "places": [list(place or ("", None)) for place in places],
        "colours": of_place,
        "hues": {names[name]: number for name, number in hues.items() if name in names},
        "legend": legend,
        "whole": {brief: name for brief, name in whole.items() if brief in names},
    }


def _opened(run: Run) -> tuple[tuple[int, int] | None, str]:
    """(the part that a view shows first, its name): a step of median length, else from the first
    kernel to the last."""
    steps = [
        item
        for item in run.report.ranges
        if item.step is not None
        and item.duration_ns is not None
        and item.name.startswith("perfctl:step:")
    ]
    if steps:
        middle = median(item.duration_ns or 0 for item in steps)
        step = min(steps, key=lambda item: (abs((item.duration_ns or 0) - middle), item.start_ns))
        ends = (
            _end(kernel)
            for kernel in run.report.kernels
            if kernel.step == step.step and _timed(kernel)
        )
        last = max(ends, default=0)
        words = f"step {step.step}" + (
            f", of median length among {len(steps)}" if len(steps) > 1 else ""
        )
        return (step.start_ns, max(last, step.start_ns + (step.duration_ns or 0))), words
    timed = [kernel for kernel in run.report.kernels if _timed(kernel)]
    numbered = sorted({kernel.step for kernel in timed if kernel.step is not None})
    if numbered:
        wanted = numbered[len(numbered) // 2]
        timed, words = (
            [kernel for kernel in timed if kernel.step == wanted],
            f"the kernels of step {wanted}",
        )
    else:
        words = "the time from the first kernel to the end of the last"
    return (
        (min(kernel.start_ns or 0 for kernel in timed), max(map(_end, timed))) if timed else None
    ), words


def _tracks(run: Run, short: Mapping[str, str]) -> Iterator[_Track]:
    """Those with bars."""
    yield from _range_tracks(run)
    yield from _projected_tracks(run)
    yield from _stream_tracks(run, short)


def _range_tracks(run: Run) -> Iterator[_Track]:
    threads: dict[int | None, list[Bar]] = defaultdict(list)
    for item in run.report.ranges:
        if item.duration_ns is not None:
            domain = "" if item.domain is None else f"domain {item.domain}"
            bar = Bar(
                item.start_ns, item.duration_ns, _name(item), _place(item), domain, item.number
            )
            threads[item.thread].append(bar)
    for number, bars in enumerate(
        sorted(threads.values(), key=lambda bars: min(bar.start for bar in bars)), 1
    ):
        title = "host ranges" if len(threads) == 1 else f"host ranges, thread {number}"
        yield _Track(title, "range", None, bars)


def _projected_tracks(run: Run) -> Iterator[_Track]:
    devices: dict[int, list[Bar]] = defaultdict(list)
    for found in projections(run):
        item, length = found.range, found.end_ns - found.start_ns
        text = "" if item.gpu_ns is None else f"its kernels and copies took {time(item.gpu_ns)}"
        devices[found.device].append(
            Bar(found.start_ns, length, _name(item), _place(item), text, item.number)
        )
    for device, bars in sorted(devices.items()):
        on = f"GPU {device}" if len(devices) > 1 else "the GPU"
        yield _Track(
            f"ranges projected to {on}: first to last kernel launched inside", "gpu", device, bars
        )


def _stream_tracks(run: Run, short: Mapping[str, str]) -> Iterator[_Track]:
    streams: dict[tuple[str, int, int], list[Bar]] = defaultdict(list)
    shapes: dict[tuple[int | None, ...], str] = {}
    for kernel in run.report.kernels:
        if not _timed(kernel):
            continue
        sides = (
            kernel.grid_x,
            kernel.grid_y,
            kernel.grid_z,
            kernel.block_x,
            kernel.block_y,
            kernel.block_z,
        )
        if (shape := shapes.get(sides)) is None:
            shape = shapes[sides] = _shape(sides)
        name = short.get(kernel.name, kernel.name)[:1000]
        bar = Bar(
            kernel.start_ns or 0,
            round(kernel.duration_ns or 0),
            name,
            _place(kernel),
            shape,
            kernel.range_number,
        )
        streams["kernel", kernel.device_index or 0, _stream(kernel.stream)].append(bar)
    for copy in run.report.copies:
        if copy.start_ns is not None and copy.duration_ns is not None:
            moved = size(copy.bytes) if copy.bytes is not None else "size not recorded"
            bar = Bar(copy.start_ns, copy.duration_ns, f"copy {copy.kind}", None, moved, None)
            streams["copy", copy.device_index or 0, _stream(copy.stream)].append(bar)
    several = len({device for _, device, _ in streams}) > 1
    for (kind, device, stream), bars in sorted(
        streams.items(), key=lambda item: (item[0][0] == "copy", *item[0][1:])
    ):
        what, gpu = "kernels" if kind == "kernel" else "copies", f"GPU {device} " if several else ""
        yield _Track(
            f"{what}, {gpu}stream {stream if stream >= 0 else 'not recorded'}", kind, device, bars
        )


def _shape(sides: Sequence[int | None]) -> str:
    """Grid and block, as far as they are known."""
    both = {"grid": sides[:3], "block": sides[3:]}
    return "; ".join(
        f"{what} {'×'.join(str(n) for n in some if n is not None)}"
        for what, some in both.items()
        if some[0] is not None
    )


def _stream(number: int | None) -> int:
    return -1 if number is None else number


def _name(item: Range) -> str:
    """perfctl's own names in words ("conv1 forward", "step 3"), those of others as they are
    ("aten::add")."""
    own = item.name.startswith("perfctl:") or item.name == f"{item.layer}:{item.direction}"
    return (item.name.removeprefix("perfctl:").replace(":", " ") if own else item.name)[:1000]


def _place(item: Kernel | Range) -> _Place | None:
    if item.layer is not None:
        return item.layer, item.direction
    working = item.direction == "optimizer" or (
        isinstance(item, Range) and item.name == "perfctl:phase:optimizer"
    )
    return ("", "optimizer") if working else None


def _colour(place: _Place, colours: Mapping[str, int]) -> int:
    layer, _ = place
    return colours.get(layer, OTHER) if layer else colours.get("optimizer", NO_LAYER)


def _laid(track: _Track) -> str | None:
    """Put the bars in order, outer before inner, each on its row; a sentence about those below the
    last row."""
    track.bars.sort(key=lambda bar: (bar.start, -bar.length))
    ends: list[int] = []
    kept: list[Bar] = []
    for bar in track.bars:
        lane = next((place for place, end in enumerate(ends) if end <= bar.start), len(ends))
        if lane < LANES:
            ends[lane : lane + 1] = [bar.start + bar.length]
            track.lanes.append(lane)
            kept.append(bar)
    left, track.bars = len(track.bars) - len(kept), kept
    return f"{track.title}: {left:,} bars below row {LANES} are left out" if left else None


def _merged(tracks: Sequence[_Track], room: int) -> tuple[list[str], dict[int, int]]:
    """Merge short neighbours until there is room: (a sentence about it or none, range number ->
    place among host ranges)."""
    import numpy as np

    total = sum(len(track.bars) for track in tracks)
    columns = [
        np.array(
            [
                (bar.start, bar.length, lane)
                for bar, lane in zip(track.bars, track.lanes, strict=True)
            ],
            np.int64,
        ).reshape(-1, 3)
        for track in tracks
    ]
    cell, groups = FINEST, [np.arange(len(rows)) for rows in columns]
    while total > room and sum(int(group.max()) + 1 for group in groups) > room and cell < 1 << 62:
        cell *= 2
        groups = [_neighbours(rows, cell) for rows in columns]
    hosts: dict[int, int] = {}
    before = 0
    for track, group in zip(tracks, groups, strict=True):
        if track.kind == "range":
            places = zip(track.bars, group.tolist(), strict=True)
            hosts |= {bar.range: before + at for bar, at in places if bar.range is not None}
        if int(group.max()) + 1 < len(group):
            _replace(track, group)
        before += len(track.bars) if track.kind == "range" else 0
    kept = sum(len(track.bars) for track in tracks)
    if kept == total:
        return [], hosts
    return [
        (
            f"{total:,} bars were recorded: neighbours shorter than {time(cell)} are merged into "
            f"{kept:,}, each with its number and time, so that the page stays small; sums count "
            "all of them"
        )
    ], hosts


def _neighbours(rows: Integers, cell: int) -> Integers:
    """Number of the merged bar of each bar, in order of first start: same row, same stretch of
    ``cell`` ns, both shorter."""
    import numpy as np

    start, length, lane = rows.T
    order = np.lexsort((start, lane))
    small, stretch = (length < cell)[order], (start // cell)[order]
    same = small[1:] & small[:-1] & (stretch[1:] == stretch[:-1]) & (np.diff(lane[order]) == 0)
    group = np.empty(len(rows), np.int64)
    group[order] = np.concatenate(([0], np.cumsum(~same)))[: len(rows)]
    _, first, number = np.unique(group, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[number]


def _replace(track: _Track, group: Integers) -> None:
    """The bars of one number become one, without name, from the first start to the last end."""
    bars: list[Bar] = []
    lanes, counts, busy = list[int](), list[int](), list[int]()
    for bar, lane, number in zip(track.bars, track.lanes, group.tolist(), strict=True):
        if number == len(bars):
            bars.append(bar)
            lanes.append(lane)
            counts.append(1)
            busy.append(bar.length)
        else:
            first = bars[number]
            bars[number] = Bar(
                first.start, bar.start + bar.length - first.start, "", None, "", None
            )
            counts[number] += 1
            busy[number] += bar.length
    track.bars, track.lanes, track.counts, track.busy = bars, lanes, counts, busy


def _packed(
    track: _Track,
    begin: int,
    names: _Numbers,
    texts: _Numbers,
    places: _Numbers,
    hosts: Mapping[int, int],
) -> dict[str, Any]:
    """s start (differences), d length, n name, t text, y place, l row, r range + 1 (differences); m
    and b where merged."""
    bars, count = track.bars, len(track.bars)
    of_range = [0 if bar.range is None else hosts.get(bar.range, -1) + 1 for bar in bars]
    return {
        "title": track.title,
        "kind": track.kind,
        "device": track.device,
        "lanes": max(track.lanes, default=0) + 1,
        "count": count,
        "s": integers(differences([bar.start - begin for bar in bars])),
        "d": integers([bar.length for bar in bars]),
        "n": integers([names[bar.name] for bar in bars]),
        "t": integers([texts[bar.text] for bar in bars]),
        "y": integers([places[bar.place] for bar in bars]),
        "l": integers(track.lanes),
        "r": "" if track.kind == "range" else integers(differences(of_range), signed=True),
        "m": integers(track.counts),
        "b": integers(track.busy),
    }


def integers(values: Sequence[int], *, signed: bool = False) -> str:
    """LEB128 (seven bits a byte, the lowest first, the eighth says that more follow) in base64; ""
    for zeros alone.

    ``signed``: 0, -1, 1, -2, ... as 0, 1, 2, 3, ... before.
    """
    import numpy as np

    whole = np.asarray(values, np.int64)
    if not whole.any():
        return ""
    left = ((whole << 1) ^ (whole >> 63) if signed else whole).astype(np.uint64)
    width = np.ones(len(left), np.int64)
    for bits in range(7, 64, 7):
        width += left >= np.uint64(1 << bits)
    first = np.cumsum(width) - width
    found = np.empty(int(width.sum()), np.uint8)
    for place in range(int(width.max())):
        rows = np.flatnonzero(width > place)
        part = (left[rows] >> np.uint64(7 * place)) & np.uint64(127)
        found[first[rows] + place] = part | np.where(
            width[rows] > place + 1, np.uint64(128), np.uint64(0)
        )
    return b64encode(found.tobytes()).decode("ascii")


def _timed(kernel: Kernel) -> bool:
    return kernel.start_ns is not None and kernel.duration_ns is not None


def _end(kernel: Kernel) -> int:
    return round((kernel.start_ns or 0) + (kernel.duration_ns or 0))
