"""The same launch in two recordings: counts from ncu, time from nsys or torch. What has no partner is listed.

Two launches are one when layer, direction, step (counted from the first measured one), kernel name, grid and block
agree, and when they are equally far down among those that do. ncu prints names without namespaces and with parameters
of templates in place of types (seen in 2019 to 2025), so that what is left over is compared by the bare name.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from perfctl.records.report import Kernel
from perfctl.records.run import Run

ALL_SHOWN = 20
_OUTSIDE = "outside of layers"
_CLOSES = {"<": ">", "(": ")", "[": "]"}


class LaunchPair(NamedTuple):
    """One launch, by its ``Kernel.launch`` in each of the two runs."""

    counted: int
    timed: int


class Left(NamedTuple):
    """Launches of one kernel in one layer that have no partner."""

    name: str
    layer: str | None
    direction: str | None
    launches: int


@dataclass(frozen=True, slots=True)
class Matched:
    """What two runs of the same work have in common."""

    pairs: tuple[LaunchPair, ...]
    only_counted: tuple[Left, ...]
    """Most launches first; likewise the next."""
    only_timed: tuple[Left, ...]
    steps: int
    """Steps that both recorded; 0 when neither says which step a launch belongs to."""
    beyond: int
    """Launches in steps that only one of the two recorded, or outside of steps: no partner is expected."""
    counted_by: str
    timed_by: str


class _Launch(NamedTuple):
    kernel: Kernel
    step: int | None
    """From the first one recorded, 0; None outside of steps."""
    layer: str | None
    direction: str | None


def match(counted: Run, timed: Run) -> Matched:
    """Pair the launches of an ncu run with those of a run that timed them. Linear in launches.

    Where ncu was narrowed to layers, launches elsewhere are not looked for. Guessed layers count as none.
    """
    wanted = narrowed_to(counted)
    ours, theirs = _launches(counted), [launch for launch in _launches(timed) if inside(launch.layer, wanted)]
    steps = min(_steps(ours), _steps(theirs))
    beyond = sum(not _within(launch, steps) for launch in (*ours, *theirs)) if steps else 0
    if steps:
        ours, theirs = ([launch for launch in side if _within(launch, steps)] for side in (ours, theirs))
    pairs: list[LaunchPair] = []
    for name in (_whole_name, _bare_name):
        found, ours, theirs = _pair(ours, theirs, name)
        pairs += found
    return Matched(tuple(sorted(pairs)), _left(ours), _left(theirs), steps, beyond, counted.profiler, timed.profiler)


def unmatched_lines(matched: Matched) -> list[str]:
    """What has no partner, one line a kernel and layer, most launches first; empty when everything has one."""
    lines = [
        *_lines(matched.only_counted, matched.counted_by, matched.timed_by),
        *_lines(matched.only_timed, matched.timed_by, matched.counted_by),
    ]
    shown = lines[:ALL_SHOWN]
    return shown + ([f"and {len(lines) - ALL_SHOWN} more kernels without a partner"] if len(lines) > ALL_SHOWN else [])


def narrowed_to(run: Run) -> tuple[str, ...]:
    """The layers that ncu was told to count in; empty for all."""
    told = run.report.environment.get("ncu:layers")
    return tuple(told.split(", ")) if told else ()


def inside(layer: str | None, layers: Sequence[str]) -> bool:
    """Is ``layer`` one of ``layers``, below one, or called so in a larger model ("model.conv2" is "conv2")?

    Always, when no layers are asked for.
    """
    return not layers or (layer is not None and any(f".{asked}." in f".{layer}." for asked in layers))


@lru_cache(maxsize=8192)
def bare_name(name: str) -> str:
    """Of "void at::native::(anonymous namespace)::fill<float>(int)" what every tool prints: "fill"."""
    kept: list[str] = []
    closers: list[str] = []
    for character in name:
        if closers and character == closers[-1]:
            closers.pop()
        elif character in _CLOSES:
            closers.append(_CLOSES[character])
        elif not closers:
            kept.append(character)
    words = "".join(kept).split()
    return words[-1].rpartition(":")[2] if words else name


def _launches(run: Run) -> list[_Launch]:
    """In order of start where the recording tells it, else as recorded."""
    kernels = list(run.report.kernels)
    if all(kernel.start_ns is not None for kernel in kernels):
        kernels.sort(key=lambda kernel: (kernel.start_ns or 0, kernel.launch))
    numbers = {step: place for place, step in enumerate(sorted({k.step for k in kernels if k.step is not None}))}
    return [
        _Launch(kernel, None if kernel.step is None else numbers[kernel.step], *_place(kernel)) for kernel in kernels
    ]


def _place(kernel: Kernel) -> tuple[str | None, str | None]:
    return (None, None) if kernel.layer_source == "guessed" else (kernel.layer, kernel.direction)


def _steps(launches: Iterable[_Launch]) -> int:
    return max((launch.step + 1 for launch in launches if launch.step is not None), default=0)


def _within(launch: _Launch, steps: int) -> bool:
    return launch.step is not None and launch.step < steps


def _whole_name(kernel: Kernel) -> str:
    return kernel.name


def _bare_name(kernel: Kernel) -> str:
    return bare_name(kernel.name)


def _pair(
    ours: Sequence[_Launch], theirs: Sequence[_Launch], name: Callable[[Kernel], str]
) -> tuple[list[LaunchPair], list[_Launch], list[_Launch]]:
    """(pairs, what is left of ours, what is left of theirs), equal keys paired in order."""
    waiting = _by_key(theirs, name)
    taken: dict[tuple[object, ...], int] = defaultdict(int)
    pairs: list[LaunchPair] = []
    left: list[_Launch] = []
    for launch in ours:
        key = _key(launch, name)
        partners = waiting.get(key, ())
        if taken[key] < len(partners):
            pairs.append(LaunchPair(launch.kernel.launch, partners[taken[key]].kernel.launch))
            taken[key] += 1
        else:
            left.append(launch)
    gone = {pair.timed for pair in pairs}
    return pairs, left, [launch for launch in theirs if launch.kernel.launch not in gone]


def _by_key(launches: Iterable[_Launch], name: Callable[[Kernel], str]) -> Mapping[tuple[object, ...], list[_Launch]]:
    found: dict[tuple[object, ...], list[_Launch]] = defaultdict(list)
    for launch in launches:
        found[_key(launch, name)].append(launch)
    return found


def _key(launch: _Launch, name: Callable[[Kernel], str]) -> tuple[object, ...]:
    kernel = launch.kernel
    return (launch.layer, launch.direction, launch.step, name(kernel), kernel.grid_x, kernel.grid_y, kernel.grid_z,
            kernel.block_x, kernel.block_y, kernel.block_z)  # fmt: skip


def _left(launches: Iterable[_Launch]) -> tuple[Left, ...]:
    tally = Counter((launch.kernel.name, launch.layer, launch.direction) for launch in launches)
    return tuple(Left(*place, count) for place, count in tally.most_common())


def _lines(left: Iterable[Left], here: str, there: str) -> list[str]:
    return [
        f"{item.launches} {'launch' if item.launches == 1 else 'launches'} of {bare_name(item.name)} "
        f"({f'{item.layer}, {item.direction}' if item.layer else _OUTSIDE}) seen by {here} and not by {there}"
        for item in left
    ]
