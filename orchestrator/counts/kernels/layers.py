"""Layers of launches: launches of fused kernels that belong to several layers, as one for each with
its share of the time; and guessed layers, for reports without any range, of a network whose layers
are known.

Kernels that multiply matrices run in the order of the network's layers, step after step. The guess
is the best path (Viterbi) over the layers of a step by what kernel names say (family, direction)
and how many outputs their tiles cover. A poor alignment is no guess at all.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from perfctl.orchestrator.counts.kernels.names import Algorithm, recognise_kernel
from perfctl.orchestrator.statistics import group_by
from perfctl.records.paper import LayerCall
from perfctl.records.report import Gap, Kernel, KernelPart, Report

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Numbers = npt.NDArray[np.float64]
    Places = npt.NDArray[np.int64]

SHARED = "shared"
"""``Kernel.layer_source`` of a fused kernel that belongs to several layers."""
SHARED_OUT = "perfctl divides fused kernels between their layers by the fused operations"
Placed = tuple[int | None, int]
GRADIENTS = ("grad_input", "grad_weight")
_BAD, _FITS, _SURE = -4.0, 1.0, 2.0
_HINT = 0.5
_LOOSE, _PADDED = 4.0, 16.0
"""How much larger a grid, and the area under all tiles, may be than the shape asks for."""
_LETTERS = {"forward": "tn", "grad_input": "nn", "grad_weight": "nt"}
"""Operands that BLAS transposes in the products of a Linear layer, as torch calls it."""

SKIP = 1.5
"""Lost for each item that is skipped."""
AGAIN = 0.75
"""Lost when an item takes one more element."""
LATE = 0.5
"""Lost for each item that the very first element is past, up to MOST."""
MOST = 3.0
LEAVE = 2.0
"""Lost when an element is given to no item."""

_FAMILIES: Mapping[str, tuple[str, ...]] = {
    "conv": ("conv", "winograd", "fft", "depthwise"),
    **dict.fromkeys(("lstm", "gru", "rnn"), ("rnn",)),
    "attention": ("attention",),
}
"""Part of a layer's kind -> families of its kernels beside products."""
HEAVY = frozenset({"conv", "winograd", "fft", "depthwise", "gemm", "rnn", "attention"})
"""Families whose kernels are aligned; all others belong to no layer by guess."""
ENOUGH = 0.9
"""Of the aligned kernels that must fit, and of a step's layers that must be found in every
whole step."""
LONGEST = 60_000_000
"""Kernels x layers of one alignment: 10 s and 300 MB."""


class LayerItem(NamedTuple):
    """One layer in one direction, as the step should come to it."""

    layer: str
    direction: str
    families: frozenset[str]
    outputs: int | None
    product: tuple[int, int] | None
    """Rows and columns of the product that it is; None when its shape does not follow."""


def list_step_layers_in_order(calls: Sequence[LayerCall], first_gradient: str) -> list[LayerItem]:
    """The layers of one step, in order; of a layer's two gradients ``first_gradient`` is first."""
    last = {call.layer: call.position or 0 for call in calls if call.direction == GRADIENTS[0]}

    def make_sort_key(call: LayerCall) -> tuple[int, bool]:
        position = call.position or 0
        if call.direction in GRADIENTS:
            position = last.get(call.layer, position)
        return position, call.direction != first_gradient

    directions = ("forward", "recompute", *GRADIENTS, "backward")
    return [
        LayerItem(
            call.layer,
            call.direction,
            _list_layer_kernel_families(call.kind),
            call.output_elements // call.calls if call.output_elements else None,
            _infer_product_rows_and_columns(call),
        )
        for call in sorted(calls, key=make_sort_key)
        if call.macs and call.layer and call.direction in directions
        for _ in range(call.calls)
    ]


def _infer_product_rows_and_columns(call: LayerCall) -> tuple[int, int] | None:
    """Of a product with a weight: its two sides without the one that is summed over, where the
    parameters tell them."""
    if not (call.macs and call.output_elements and call.parameters):
        return None
    outputs, depth = call.output_elements // call.calls, call.macs // call.output_elements
    linear = _list_layer_kernel_families(call.kind) == {"gemm"}
    columns: list[int] = []
    if call.direction == "forward":
        columns = [
            call.parameters // side
            for side in (depth + 1, depth)
            if side and not call.parameters % side
        ][:1]
    elif call.direction == "grad_input" and linear and depth and not call.parameters % depth:
        columns = [call.parameters // depth - 1, call.parameters // depth]  # with a bias, without
    elif call.direction == "grad_weight" and linear and call.parameters > outputs:
        rows = call.parameters - outputs
        return None if outputs % rows else (rows, outputs // rows)
    side = next((side for side in columns if side > 0 and not outputs % side), None)
    return (outputs // side, side) if side else None


def _list_layer_kernel_families(layer_kind: str) -> frozenset[str]:
    families = next(
        (families for part, families in _FAMILIES.items() if part in layer_kind.lower()), ()
    )
    return frozenset(("gemm", *families))


def score_launches_against_layers(
    launches: Sequence[Kernel], items: Sequence[LayerItem], algorithms: Mapping[str, Algorithm]
) -> list[list[float]]:
    """Return how well each launch fits each item; launches alike share a row."""
    name_and_grid = attrgetter("name", "grid_x", "grid_y", "grid_z")
    alike = {name_and_grid(kernel): kernel for kernel in launches}
    rows = {
        key: [_score_launch_against_layer(kernel, algorithms[kernel.name], item) for item in items]
        for key, kernel in alike.items()
    }
    return [rows[name_and_grid(kernel)] for kernel in launches]


def _score_launch_against_layer(kernel: Kernel, algorithm: Algorithm, item: LayerItem) -> float:
    if algorithm.family not in item.families:
        return _BAD
    score = _FITS
    if algorithm.direction is not None and item.direction in ("forward", *GRADIENTS):
        score += _SURE if algorithm.direction == item.direction else _BAD
    letters = re.search(r"_(nn|nt|tn|tt)(?![a-z])", kernel.name)
    if item.families == {"gemm"} and letters and item.direction in _LETTERS:
        score += _HINT if letters[1] == _LETTERS[item.direction] else -2 * _HINT
    return score + _score_grid_against_layer(kernel, algorithm, item)


def _score_grid_against_layer(kernel: Kernel, algorithm: Algorithm, item: LayerItem) -> float:
    if algorithm.tile is None or kernel.grid_x is None or not item.outputs:
        return 0.0
    m, n, _ = algorithm.tile
    flat = kernel.grid_x * (kernel.grid_y or 1)
    blocks = {flat, flat * (kernel.grid_z or 1)}  # the third side may be split-K or a batch
    if item.product is not None:
        rows, columns = item.product
        counts = {ceil(rows / a) * ceil(columns / b) for a, b in ((m, n), (n, m))}
        if counts & blocks:
            return _SURE
        is_near = any(1 / _LOOSE <= block / w <= _LOOSE for w in counts for block in blocks)
        return 0.0 if is_near else _BAD
    ratios = [block * m * n / item.outputs for block in blocks]
    if any(0.99 <= ratio <= 1.5 for ratio in ratios):
        return _FITS
    return 0.0 if any(0.99 <= ratio <= _PADDED for ratio in ratios) or flat <= 2 else _BAD


def align_launches_to_layers(scores: Sequence[Sequence[float]]) -> tuple[float, list[int | None]]:
    """(score, item of each element or None): items come in order, and after the last the
    first again.

    ``fits[element][item]`` is gained when they are put together. The path may begin and
    end anywhere.
    """
    import numpy as np

    count = len(scores[0])
    positions = np.arange(count)
    rows = {id(row): np.asarray(row, float) for row in scores}
    score = np.zeros(count)  # of the first element: set below
    """Best score of all paths whose last item is this one."""
    came = np.empty((len(scores), count), np.int32)
    is_skipped = np.empty((len(scores), count), bool)
    for number, row in enumerate(scores):
        gain = rows[id(row)]
        from_before, before = _find_best_predecessors(score, positions)
        # From any item over the end of the step to an item: all those between are skipped.
        ends = score + SKIP * positions
        last = int(ends.argmax())
        over = ends[last] - SKIP * (count - 1 + positions)
        options = np.stack([from_before, score - AGAIN, over])
        if not number:
            options[:] = -np.minimum(LATE * positions, MOST)
        choice = options.argmax(axis=0)
        moved = options[choice, positions] + gain
        stay = score - LEAVE
        is_skipped[number] = stay > moved
        came[number] = np.where(
            is_skipped[number],
            positions,
            np.stack([before, positions, np.full(count, last)])[choice, positions],
        )
        score = np.where(is_skipped[number], stay, moved)
    state = int(score.argmax())
    total = float(score[state])
    path: list[int | None] = []
    for number in range(len(scores) - 1, -1, -1):
        path.append(None if is_skipped[number, state] else state)
        state = int(came[number, state])
    return total, path[::-1]


def _find_best_predecessors(score: Numbers, positions: Places) -> tuple[Numbers, Places]:
    """For each item, the best score of a path from an earlier one, and from which."""
    import numpy as np

    lifted = score + SKIP * positions
    best = np.maximum.accumulate(lifted)
    risen = np.concatenate([[True], lifted[1:] > best[:-1]])
    origin = np.maximum.accumulate(np.where(risen, positions, 0))
    value = np.concatenate([[-np.inf], best[:-1] - SKIP * (positions[1:] - 1)])
    return value, np.concatenate([[0], origin[:-1]])


@dataclass(frozen=True, slots=True)
class GuessedLayers:
    """The kernels with guessed layers and steps, or as they were."""

    kernels: tuple[Kernel, ...]
    guessed: int
    gaps: tuple[Gap, ...]


def guess_kernel_layers(kernels: Iterable[Kernel], calls: Sequence[LayerCall]) -> GuessedLayers:
    """Layers, directions and steps of launches by order and shape; ``calls`` are pen and paper of
    one step.

    Nothing is guessed where any launch has a layer already, and where the kernels do not fit
    the network.
    """
    launches_ = tuple(kernels)
    if any(kernel.layer is not None for kernel in launches_):
        return _return_kernels_without_guess(
            launches_,
            "some launches have recorded layers, and perfctl does not mix these with guesses",
        )
    order = sorted(
        range(len(launches_)),
        key=lambda index: (launches_[index].start_ns or 0, launches_[index].launch),
    )
    algorithms = {name: recognise_kernel(name) for name in {kernel.name for kernel in launches_}}
    heavy = {
        name
        for name, algorithm in algorithms.items()
        if algorithm.family in HEAVY and algorithm.role == "main"
    }
    main = [index for index in order if launches_[index].name in heavy]
    orders = [list_step_layers_in_order(calls, first) for first in GRADIENTS]
    if not main or not orders[0]:
        lacking = "layer" if main else "kernel of a known family"
        return _return_kernels_without_guess(launches_, f"there is no {lacking} that multiplies")
    if len(main) * len(orders[0]) > LONGEST:
        return _return_kernels_without_guess(
            launches_, f"{len(main)} launches on {len(orders[0])} layers are too many to align"
        )
    launches = [launches_[index] for index in main]
    scored = [
        align_launches_to_layers(score_launches_against_layers(launches, items, algorithms))
        for items in orders
    ]
    best = max(range(len(orders)), key=lambda number: scored[number][0])
    items, (_, path) = orders[best], scored[best]
    # of each launch: a new one begins where the path goes back to an earlier item
    steps: list[int] = []
    before = -1
    for item in path:
        steps.append((steps[-1] if steps else 0) + (item is not None and item < before))
        before = before if item is None else item
    if reason := _explain_poor_alignment(path, steps, len(items)):
        return _return_kernels_without_guess(launches_, reason)
    directed = scored[0][0] != scored[1][0]
    return _assign_guessed_layers(
        launches_,
        order,
        dict(zip(main, zip(path, steps, strict=True), strict=True)),
        items,
        algorithms,
        directed,
    )


def _return_kernels_without_guess(kernels: tuple[Kernel, ...], reason: str) -> GuessedLayers:
    gap = Gap("kernel.layer", "not_available", f"perfctl guessed no layers: {reason}")
    return GuessedLayers(kernels, 0, (gap,))


def _group_items_by_step(placed: Iterable[tuple[int | None, int]]) -> dict[int, set[int]]:
    items_of_step: defaultdict[int, set[int]] = defaultdict(set)
    for item, step in placed:
        if item is not None:
            items_of_step[step].add(item)
    return items_of_step


def _explain_poor_alignment(
    alignment: Sequence[int | None], steps: Sequence[int], layers_per_step: int
) -> str | None:
    placed = sum(item is not None for item in alignment)
    if placed < ENOUGH * len(alignment):
        return (
            f"only {placed} of {len(alignment)} kernels that multiply fit the network's "
            f"layers in order "
            "and shape"
        )
    items_of_step = _group_items_by_step(zip(alignment, steps, strict=True))
    sizes = [len(items_of_step[step]) for step in sorted(items_of_step)]
    sizes = sizes[1:-1] or sizes  # the first and the last may be truncated
    poor = [size for size in sizes if size < ENOUGH * layers_per_step]
    if not poor:
        return None
    return (
        f"{len(poor)} of {len(sizes)} steps lack layers: {min(poor)} of {layers_per_step} "
        f"are in one of them"
    )


def _assign_guessed_layers(
    sources: tuple[Kernel, ...],
    order: Sequence[int],
    placed: dict[int, Placed],
    items: Sequence[LayerItem],
    algorithms: dict[str, Algorithm],
    is_gradient_order_decided: bool,
) -> GuessedLayers:
    kernels = list(sources)
    steps = {step for _, step in placed.values()}
    items_of_step = _group_items_by_step(placed.values())
    full_steps = sorted(
        step for step in items_of_step if len(items_of_step[step]) >= ENOUGH * len(items)
    )
    numbers = {step: number for number, step in enumerate(full_steps)}
    for index, (item, step) in _assign_helper_kernels_to_neighbors(
        sources, order, placed, algorithms
    ).items():
        layer = direction = source = None
        if item is not None:
            layer, direction, source = items[item].layer, items[item].direction, "guessed"
            # names and shapes say nothing about which of the two it is
            if not is_gradient_order_decided and direction in GRADIENTS:
                direction = "backward"
        step_number = numbers.get(step)
        kernels[index] = kernels[index]._replace(
            layer=layer, direction=direction, step=step_number, layer_source=source
        )
    guessed = sum(kernel.layer is not None for kernel in kernels)
    truncated = len(steps) - len(full_steps)
    cut = f" ({truncated} truncated steps are in no value per step)" if truncated else ""
    reason = (
        f"perfctl guessed the layers of {guessed} of {len(kernels)} launches, and "
        f"{len(full_steps)} steps{cut}, from the order and shape of the network's layers, because "
        "the report has no ranges"
    )
    gap = Gap("kernel.layer", "ambiguous", reason)
    return GuessedLayers(tuple(kernels), guessed, (gap,))


def _assign_helper_kernels_to_neighbors(
    launches: Sequence[Kernel],
    order: Sequence[int],
    placed: dict[int, Placed],
    algorithms: dict[str, Algorithm],
) -> dict[int, Placed]:
    nothing: Placed = (None, -1)
    before: list[Placed] = []
    for index in order:
        before.append(placed.get(index, before[-1] if before else nothing))
    helped: dict[int, Placed] = {}
    following = nothing
    for index, previous in zip(reversed(order), reversed(before), strict=True):
        if index in placed:
            helped[index] = following = placed[index]
            continue
        algorithm = algorithms[launches[index].name]
        helped[index] = (None, previous[1] if previous[1] >= 0 else following[1])
        if algorithm.family in HEAVY and algorithm.role in ("reduction", "epilogue"):
            helped[index] = previous
        elif algorithm.family in HEAVY and algorithm.role in ("transform", "offsets"):
            helped[index] = previous if "output" in launches[index].name.lower() else following
    return helped


def split_shared_kernels(report: Report) -> list[Kernel] | None:
    """The launches of a report, those that belong to several layers once for each, one after the
    other. None where no launch does.

    The parts keep the number of their launch and have the source SHARED: their times are estimates.
    """
    parts = group_by(report.kernel_parts, attrgetter("launch"))
    if not parts:
        return None
    return [
        kernel_part
        for kernel in report.kernels
        for kernel_part in _split_kernel_by_layer_share(kernel, parts.get(kernel.launch, ()))
    ]


def _split_kernel_by_layer_share(kernel: Kernel, parts: Sequence[KernelPart]) -> Iterator[Kernel]:
    if not parts:
        yield kernel
    start, duration, before = kernel.start_ns, kernel.duration_ns, 0.0
    for part in parts:
        begin = None if start is None else start + round(before * (duration or 0))
        took = None if duration is None else part.share * duration
        yield kernel._replace(
            layer=part.layer, direction=part.direction, start_ns=begin, duration_ns=took
        )
        before += part.share
