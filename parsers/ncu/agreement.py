"""Where a report of ncu contradicts itself: IDs of launches that are missing or come twice, metrics
that one launch lacks or states twice, grids that are not those of the metrics.

Which metrics each launch has is kept as the bytes of their numbers, each different text of bytes
once, and so is each series of them: the launches of a kernel have the same metrics in the same
order, so a file of millions of cells has a few."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from math import prod

from perfctl.parsers.text.doubts import contradictions, numbering
from perfctl.records.report import Diagnostic, Kernel

Key = tuple[str, str, str | None]
"""Name, unit and section of a metric."""
_FEWEST = 3
"""Launches of one kernel from which most of them show what all should have."""

_OF_KERNEL = ("Process ID", "Kernel Name", "Block Size", "Grid Size", "Device Id", "Invocations")
_OF_METRIC = ("Section Name", "Metric Name")


class Shapes:
    """Which metrics launches have, in the order of the file."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._series: dict[tuple[int, int], int] = {}
        """(number of a series, -1 of an empty one; shape that follows) -> number of
        both together."""
        self._of: dict[int, int] = {}
        """Launch -> number of its series."""

    def add(self, launch: int, keys: array[int]) -> None:
        """The metrics that follow are of this launch, which may come again."""
        shape = self._numbers.setdefault(keys.tobytes(), len(self._numbers))
        self._of[launch] = self._series.setdefault(
            (self._of.get(launch, -1), shape), len(self._series)
        )

    def by_launch(self) -> tuple[dict[int, tuple[int, ...]], list[array[int]]]:
        """(launch -> numbers of its shapes, the shapes)."""
        steps = list(self._series)
        whole: dict[int, tuple[int, ...]] = {}
        for last in set(self._of.values()):
            shapes, at = list[int](), last
            while at >= 0:
                at, shape = steps[at]
                shapes.append(shape)
            whole[last] = tuple(reversed(shapes))
        return {launch: whole[last] for launch, last in self._of.items()}, [
            array("I", text) for text in self._numbers
        ]


def doubts(
    ids: Sequence[int],
    names: Sequence[str],
    keys: Sequence[Key],
    shapes: Shapes,
    kernels: Sequence[Kernel],
    sizes: Mapping[int, int],
) -> Iterator[Diagnostic]:
    """``ids``: of launches, empty where the file states none; ``names``: of their kernels;
    ``sizes``: launch (place among ``kernels``) -> blocks of its grid, as a metric states them."""
    yield from numbering("launches with the IDs", ids, first=0)
    of, every = shapes.by_launch()
    identity = _without_units(keys)
    sets = {
        some: frozenset(identity[key] for shape in some for key in every[shape])
        for some in set(of.values())
    }
    labels = {number: name for (name, _, _), number in zip(keys, identity, strict=True)}
    wrong = [*_twice(of, every, sets, names, labels), *_lacking(of, sets, names, labels)]
    for launch, blocks in sizes.items():
        grid = kernels[launch].grid_x, kernels[launch].grid_y, kernels[launch].grid_z
        if None not in grid and prod(axis or 0 for axis in grid) != blocks:
            wrong.append(
                f"launch {launch} has a grid of {' x '.join(map(str, grid))} and {blocks:,} blocks"
            )
    yield from contradictions(wrong)


def _without_units(keys: Sequence[Key]) -> list[int]:
    """Key -> number of its name and section: ncu prints one metric in "Kbyte" here and in
    "Mbyte" there."""
    numbers: dict[tuple[str, str | None], int] = {}
    return [numbers.setdefault((name, section), len(numbers)) for name, _, section in keys]


def _twice(
    of: Mapping[int, tuple[int, ...]],
    every: Sequence[array[int]],
    sets: Mapping[tuple[int, ...], Collection[int]],
    names: Sequence[str],
    labels: Mapping[int, str],
) -> Iterator[str]:
    cells = {some: sum(len(every[shape]) for shape in some) for some in sets}
    for launch, some in of.items():
        if more := cells[some] - len(sets[some]):
            plural = "a metric" if more == 1 else f"{more} metrics"
            yield f"launch {launch} of {names[launch][:60]} states {plural} twice in one section"


def _lacking(
    of: Mapping[int, tuple[int, ...]],
    sets: Mapping[tuple[int, ...], frozenset[int]],
    names: Sequence[str],
    labels: Mapping[int, str],
) -> Iterator[str]:
    """Launches without metrics that most launches of their kernel have, or all other launches of
    the file."""
    by_name: defaultdict[str, list[int]] = defaultdict(list)
    for launch in range(len(names)):
        by_name[names[launch]].append(launch)
    nothing: frozenset[int] = frozenset()
    has = [sets[of[launch]] if launch in of else nothing for launch in range(len(names))]
    holders = (
        Counter(number for some in has for number in some)
        if len(names) >= _FEWEST
        else Counter[int]()
    )
    in_all_but_one = frozenset(
        number for number, times in holders.items() if times == len(names) - 1
    )
    for launches in by_name.values():
        usual, times = Counter(has[launch] for launch in launches).most_common(1)[0]
        is_known = times >= _FEWEST and times > len(launches) // 2
        for launch in launches:
            lost = in_all_but_one - has[launch] | (usual - has[launch] if is_known else nothing)
            if lost:
                shown = labels[min(lost)]
                what = (
                    f"the metric {shown}"
                    if len(lost) == 1
                    else f"{len(lost)} metrics ({shown}, ...)"
                )
                yield f"launch {launch} of {names[launch][:60]} lacks {what} that the others have"


def of_summary(rows: Sequence[Mapping[str, str]]) -> tuple[Diagnostic, ...]:
    """The same of a per-kernel summary: a row is a metric of a kernel, and all kernels have the
    same ones."""
    found: defaultdict[tuple[str, ...], Counter[tuple[str, ...]]] = defaultdict(Counter)
    for row in rows:
        kernel, metric = (
            tuple(row.get(name, "") for name in names) for names in (_OF_KERNEL, _OF_METRIC)
        )
        found[kernel][metric] += 1
    holders = Counter(metric for metrics in found.values() for metric in metrics)
    usual = {
        metric
        for metric, times in holders.items()
        if len(found) >= _FEWEST and times >= len(found) - 1
    }
    wrong = []
    for kernel, metrics in found.items():
        lost, twice = (
            sorted(usual - set(metrics)),
            [metric for metric, times in metrics.items() if times > 1],
        )
        if lost:
            wrong.append(
                f"{kernel[1][:60]} lacks {len(lost)} metrics ({lost[0][1][:80]}, ...) that the "
                "others have"
            )
        if twice:
            wrong.append(f"{kernel[1][:60]} states {len(twice)} metrics twice in one section")
    return contradictions(wrong)
