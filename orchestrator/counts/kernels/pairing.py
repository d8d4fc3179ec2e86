"""The same launch in two recordings: counts from ncu, time from nsys or torch. What has no partner
is listed.

Two launches are the same when layer, direction, step (counted from the first measured one), kernel
name, grid and block agree; of several that agree, the first is paired with the first. ncu prints
names without namespaces and with template parameters in place of types (seen in 2019 to 2025), so
launches without a partner are compared by the bare name.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from perfctl.records.report import Kernel
from perfctl.records.run import Run

ALL_SHOWN = 20
_CLOSES = {"<": ">", "(": ")", "[": "]"}


class LaunchPair(NamedTuple):
    """One launch, by its ``Kernel.launch`` in each of the two runs."""

    counted: int
    timed: int


class UnpairedLaunches(NamedTuple):
    """Launches of one kernel in one layer that have no partner."""

    name: str
    layer: str | None
    direction: str | None
    launches: int


@dataclass(frozen=True, slots=True)
class LaunchMatching:
    """What two runs of the same work have in common."""

    pairs: tuple[LaunchPair, ...]
    only_counted: tuple[UnpairedLaunches, ...]
    only_timed: tuple[UnpairedLaunches, ...]
    counted_by: str
    timed_by: str


class _LaunchToPair(NamedTuple):
    kernel: Kernel
    step: int | None
    """From the first one recorded, 0; None outside of steps."""
    layer: str | None
    direction: str | None

    def make_match_key(self, normalize_name: Callable[[str], str]) -> tuple[object, ...]:
        """What the same launch has in another recording, with its name as ``normalize_name`` makes
        it."""
        kernel = self.kernel
        return (
            self.layer,
            self.direction,
            self.step,
            normalize_name(kernel.name),
            kernel.grid_x,
            kernel.grid_y,
            kernel.grid_z,
            kernel.block_x,
            kernel.block_y,
            kernel.block_z,
        )


def pair_launches(counted: Run, timed: Run) -> LaunchMatching:
    """Pair the launches of an ncu run with those of a run that timed them. Linear in launches.

    Where ncu was narrowed to layers, launches elsewhere are left out. Guessed layers count as none.
    """
    counted_layers = list_ncu_layer_filter(counted)
    ours, theirs = (
        _list_launches_with_relative_steps(counted),
        [
            launch
            for launch in _list_launches_with_relative_steps(timed)
            if is_layer_selected(launch.layer, counted_layers)
        ],
    )
    steps = min(
        max((launch.step + 1 for launch in side if launch.step is not None), default=0)
        for side in (ours, theirs)
    )
    if steps:
        ours, theirs = (
            [launch for launch in side if launch.step is not None and launch.step < steps]
            for side in (ours, theirs)
        )
    pairs: list[LaunchPair] = []
    for pair in (_pair_by_key_and_list_unpaired, _pair_captured_graph_launches):
        for name in (str, extract_bare_name):
            new_pairs, ours, theirs = pair(ours, theirs, name)
            pairs += new_pairs
    return LaunchMatching(
        tuple(sorted(pairs)),
        _count_unpaired(ours),
        _count_unpaired(theirs),
        counted.profiler,
        timed.profiler,
    )


def describe_unpaired(matched: LaunchMatching) -> list[str]:
    """What has no partner, one line a kernel and layer, most launches first; empty when everything
    has one."""
    counted, timed = matched.counted_by, matched.timed_by
    sides = ((matched.only_counted, counted, timed), (matched.only_timed, timed, counted))
    lines = [
        (
            f"{item.launches} {'launch' if item.launches == 1 else 'launches'} of "
            f"{extract_bare_name(item.name)} "
            f"({f'{item.layer}, {item.direction}' if item.layer else 'outside of layers'}) "
            f"recorded by {seen_by} but not by {other}"
        )
        for unmatched, seen_by, other in sides
        for item in unmatched
    ]
    if len(lines) > ALL_SHOWN:
        lines[ALL_SHOWN:] = [f"and {len(lines) - ALL_SHOWN} more kernels without a partner"]
    return lines


def list_ncu_layer_filter(run: Run) -> tuple[str, ...]:
    """The layers that ncu counted in; empty for all."""
    layers = run.report.environment.get("ncu:layers")
    return tuple(layers.split(", ")) if layers else ()


def is_layer_selected(layer: str | None, selected_layers: Sequence[str]) -> bool:
    """Is ``layer`` one of ``selected_layers``, below one, or called so in a larger model
    ("model.conv2" is "conv2")?

    Always, when no layers are asked for.
    """
    return not selected_layers or (
        layer is not None and any(f".{path}." in f".{layer}." for path in selected_layers)
    )


@lru_cache(maxsize=8192)
def extract_bare_name(name: str) -> str:
    """Of "void at::native::(anonymous namespace)::fill<float>(int)" what every tool
    prints: "fill"."""
    letters: list[str] = []
    closers: list[str] = []
    for character in name:
        if closers and character == closers[-1]:
            closers.pop()
        elif character in _CLOSES:
            closers.append(_CLOSES[character])
        elif not closers:
            letters.append(character)
    parts = "".join(letters).split()
    return parts[-1].rpartition(":")[2] if parts else name


def _list_launches_with_relative_steps(run: Run) -> list[_LaunchToPair]:
    kernels = list(run.report.kernels)
    if all(kernel.start_ns is not None for kernel in kernels):
        kernels.sort(key=lambda kernel: (kernel.start_ns or 0, kernel.launch))
    steps = sorted({kernel.step for kernel in kernels if kernel.step is not None})
    numbers: dict[int | None, int] = {step: number for number, step in enumerate(steps)}
    return [
        _LaunchToPair(
            kernel,
            numbers.get(kernel.step),
            *(
                (None, None)
                if kernel.layer_source == "guessed"
                else (kernel.layer, kernel.direction)
            ),
        )
        for kernel in kernels
    ]


def _pair_by_key_and_list_unpaired(
    ours: list[_LaunchToPair], theirs: list[_LaunchToPair], normalize_name: Callable[[str], str]
) -> tuple[list[LaunchPair], list[_LaunchToPair], list[_LaunchToPair]]:
    waiting: dict[tuple[object, ...], deque[_LaunchToPair]] = defaultdict(deque)
    for launch in theirs:
        waiting[launch.make_match_key(normalize_name)].append(launch)
    pairs: list[LaunchPair] = []
    unpaired: list[_LaunchToPair] = []
    for launch in ours:
        if partners := waiting.get(launch.make_match_key(normalize_name)):
            pairs.append(LaunchPair(launch.kernel.launch, partners.popleft().kernel.launch))
        else:
            unpaired.append(launch)
    paired = {pair.timed for pair in pairs}
    return pairs, unpaired, [launch for launch in theirs if launch.kernel.launch not in paired]


def _pair_captured_graph_launches(
    ours: list[_LaunchToPair], theirs: list[_LaunchToPair], normalize_name: Callable[[str], str]
) -> tuple[list[LaunchPair], list[_LaunchToPair], list[_LaunchToPair]]:
    """What is left of kernels whose layer is that of a graph's capture: ncu knows where the graph
    was launched at most."""
    captured = [launch for launch in theirs if launch.kernel.layer_source == "capture"]
    if not captured:
        return [], ours, theirs
    bare, other_launches = (
        [launch._replace(layer=None, direction=None) for launch in side]
        for side in (ours, captured)
    )
    pairs, _, _ = _pair_by_key_and_list_unpaired(bare, other_launches, normalize_name)
    counted, timed = {pair.counted for pair in pairs}, {pair.timed for pair in pairs}
    unpaired = [launch for launch in ours if launch.kernel.launch not in counted]
    return pairs, unpaired, [launch for launch in theirs if launch.kernel.launch not in timed]


def _count_unpaired(launches: Iterable[_LaunchToPair]) -> tuple[UnpairedLaunches, ...]:
    tally = Counter((launch.kernel.name, launch.layer, launch.direction) for launch in launches)
    return tuple(UnpairedLaunches(*key, count) for key, count in tally.most_common())
