"""Scenes in which something else has the factor of a known cause: ``LIKE`` says what each cause
executes of a part, ``SOURCES`` what may execute as much, and ``WHOLE_SOURCES`` what may change all
rows alike. No verdict that names the imitated cause is true of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from scripts.proof.verdicts.choose import (
    CannotOccurError,
    Choice,
    is_conv,
    is_dense,
    is_linear,
    is_wide_conv,
)
from scripts.proof.verdicts.effects import Effect, Task, usual
from scripts.proof.verdicts.kernels import Launch, direct
from scripts.proof.verdicts.networks import FORWARD, Attention, Claim, Conv, Layer, Linear, Scene

Factor = Callable[[Any, str], float]
"""Of a layer and its part: executed / required; 0 where the cause cannot be."""
SOURCES = ("own kernel", "counters", "uneven steps", "stray kernel", "devices", "filter pair")
"""A kernel of the user's with no known name, counters of several passes, steps that differ, kernels
of another layer or outside of layers, several devices, and the filter's gradient computed twice
beside forward's kernel for the input's."""
WHOLE_SOURCES = ("copies", "halves", "uneven", "tensor_parallel", "scaled")
"""Every device or process has the complete batch, or a part; steps of other sizes; a part of every
layer's columns; counters of several passes."""
UNEVEN = ((1, 0.25, 0.25), (1, 3), (1, 0.5, 0.5, 0.5), (1, 1, 4), (1, 0.5))


def only(fits: Callable[[Any, str], bool], *factors: float) -> list[Factor]:
    return [lambda layer, part, factor=factor: factor * fits(layer, part) for factor in factors]


def is_small_filter(layer: Any, part: str) -> bool:
    return is_wide_conv(layer, part) and layer.kernel == 3 and part != "wgrad"


def is_data(layer: Any, part: str) -> bool:
    return is_dense(layer, part) and part == "dgrad"


def is_forward(layer: Any, part: str) -> bool:
    return is_dense(layer, part) and part == FORWARD


def count_groups(layer: Any, part: str) -> float:
    return layer.groups if is_conv(layer, part) and part == FORWARD and layer.groups > 1 else 0


def share_inside(layer: Any, part: str) -> float:
    if not (is_conv(layer, part) and layer.depthwise and part == FORWARD and layer.padding):
        return 0
    inside = sum(
        0 <= place * layer.stride - layer.padding + tap < layer.size
        for place in range(layer.out)
        for tap in range(layer.kernel)
    )
    return (inside / (layer.out * layer.kernel)) ** 2


def insert_zeros(layer: Any, part: str) -> float:
    is_strided = is_conv(layer, part) and part == "dgrad" and layer.size > layer.out
    return (layer.size / layer.out) ** 2 if is_strided else 0


def skip_mask(layer: Any, part: str) -> float:
    blocks = layer.length / 128 if isinstance(layer, Attention) and layer.causal else 0
    return (blocks + 1) / (2 * blocks) if blocks >= 1 and part == FORWARD else 0


LIKE: dict[str, list[Factor]] = {
    "padding": only(is_dense, 4 / 3, 2, 1.28, 3.2),
    "winograd2": only(is_small_filter, 16 / 36),
    "winograd4": only(is_small_filter, 36 / 144),
    "fft": only(is_small_filter, 0.48, 0.27),
    "sparsity": only(is_linear, 0.5),
    "tf32_three": only(is_linear, 3),
    "groups_dense": [count_groups],
    "depthwise_border": [share_inside],
    "zero_insertion": [insert_zeros],
    "checkpoint_same": only(is_data, 2),
    "needless_grad_input": only(lambda layer, part: layer.first and part == "wgrad", 2),
    "extra_calls": only(is_forward, 2, 3, 4),
    "benchmark": only(is_forward, 2, 2.25, 3),
    "causal_skip": [skip_mask],
    "flash_recompute": only(
        lambda layer, part: isinstance(layer, Attention) and part == "dgrad", 1.25
    ),
    "split_k": only(is_linear, 1.0625),
}
"""Cause -> its usual factors."""


def draw_like(cause: str, choice: Choice) -> Effect:
    def fits(layer: Any, part: str) -> bool:
        return any(factor(layer, part) for factor in LIKE[cause])

    (name, part) = choice.claim(fits)
    layer = choice.scene.layer(name)
    factors = [value for factor in LIKE[cause] if (value := factor(layer, part))]
    factor = choice.pick(*factors)
    choice.require(abs(factor - 1) > 0.01)
    source = choice.pick(*SOURCES)
    choice.require(source != "devices" or (factor == int(factor) and factor > 1))
    if source == "filter pair":
        choice.require(is_data(layer, part) and (name, "wgrad") in choice.scene.claims())
        choice.require((name, "wgrad") not in choice.taken)
        return choice.effect((name, part), (name, "wgrad"), source=source, factor=factor)
    spread = min(factor, 1.0) * 0.8
    shares = (factor - spread, factor + spread) if source == "uneven steps" else ()
    return choice.effect((name, part), source=source, factor=factor, shares=shares)


def draw_whole(choice: Choice) -> Effect:
    number, scene = choice.pick(2, 3, 4), choice.scene
    match choice.name:
        case "halves":
            choice.require(all(batch % number == 0 for batch in scene.batches))
        case "uneven":
            sizes = choice.pick(*UNEVEN)
            choice.require(all(batch * size % 1 == 0 for batch in scene.batches for size in sizes))
            return choice.effect(sizes=sizes)
        case "tensor_parallel":
            narrow(scene, number)
    return choice.effect(number=number, processes=choice.is_likely(0.5), told=choice.is_likely(0.5))


def narrow(scene: Scene, number: int) -> Scene:
    """Return the scene with one rank's part of every layer's columns."""
    layers: list[Layer] = []
    for layer in scene.network:
        if not (isinstance(layer, Conv | Linear) and layer.cout % number == 0):
            raise CannotOccurError
        if isinstance(layer, Conv) and layer.groups > 1:
            raise CannotOccurError
        layers.append(replace(layer, cout=layer.cout // number))
    return replace(scene, network=tuple(layers))


def imitate(task: Task, step: int) -> list[Launch]:
    """Return the launches of a part whose count is that of the imitated cause."""
    settings, precision = task.settings, task.scene.precision
    factor, source = settings["factor"], settings["source"]
    macs = sum(product.macs for product in task.products)
    launches = usual(task)
    if source == "filter pair":
        if task.part != "wgrad":
            forward = usual(replace(task, part=FORWARD))
            return [replace(launch, part=task.part) for launch in forward]
        (product,) = task.products
        other = direct(task.layer, product, precision)
        return [*launches, replace(other, name=other.name + "_second")]
    if source in ("own kernel", "uneven steps"):
        share = settings["shares"][step] if settings["shares"] else factor
        return [
            Launch(
                "my_layer_kernel(float*, float*, int)", (640, 1, 1), {"ffma": round(share * macs)}
            )
        ]
    if source == "counters":
        return [scale(launch, factor) for launch in launches]
    if source == "devices":
        return [
            replace(launch, device=number) for number in range(int(factor)) for launch in launches
        ]
    stray = [direct(task.layer, product, precision) for product in task.products]
    if factor > 1:
        return [*launches, *(scale(launch, factor - 1) for launch in stray)]
    return [scale(launch, factor) for launch in stray]


def scale(launch: Launch, factor: float) -> Launch:
    counts = {name: round(factor * number) for name, number in launch.counts.items()}
    return replace(launch, counts=counts, scale=round(factor * launch.scale))


CONFLICTS: dict[str, Callable[[Choice], Effect]] = {
    **{f"like_{cause}": partial(draw_like, cause) for cause in LIKE},
    **dict.fromkeys(WHOLE_SOURCES, draw_whole),
}
"""Effect -> what draws it; the causes that all rows have are imitated by ``WHOLE_SOURCES``."""


def run_sizes(effects: Sequence[Effect]) -> Sequence[float]:
    """Return the share of the batch of every recorded step; () for one step."""
    for effect in effects:
        if sizes := effect.settings.get("sizes"):
            return sizes
        if effect.settings.get("shares"):
            return (1, 1)
    return ()


def list_places(effects: Sequence[Effect]) -> list[tuple[int, int | None]]:
    """Return the device and process of every copy of a step."""
    for effect in effects:
        if effect.name in ("copies", "halves"):
            settings = effect.settings
            return [
                (number, 100 + number if settings["processes"] else None)
                for number in range(settings["number"])
            ]
    return [(0, None)]


def find_claim(effects: Sequence[Effect], claim: Claim) -> Effect | None:
    """Return the conflict that claims a part."""
    return next(
        (
            effect
            for effect in effects
            if effect.name.startswith("like_") and claim in effect.claims
        ),
        None,
    )
