"""Repeated blocks of a language model are found in the paths of its layers: the same part of every
block has one name.

``Qwen3DecoderLayer_0.Qwen3Attention_0.RMSNorm_1`` and
``Qwen3DecoderLayer_7.Qwen3Attention_7.RMSNorm_29`` are the same part of blocks 0 and 7:
``Qwen3DecoderLayer.Qwen3Attention.RMSNorm 1``, where the attention has a second RMSNorm. A trace
numbers the instances of a class over the whole model, so a part is found by its place among those
of its class in its block.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

_NUMBERED = re.compile(r"(.*?)_?(\d{1,9})\Z")
BLOCKS_MIN = 2
"""Blocks from which a model counts as repeating one."""
LayerPath = tuple[tuple[str, int | None], ...]
"""(class, number) of the components of a layer's name; None for one without a number."""


class RepeatedBlockLayer(NamedTuple):
    """Where a layer lies."""

    name: str
    """Without the numbers of instances."""
    block: int | None
    """Which block; None outside of them."""


def _split_class_and_instance_number(component: str) -> tuple[str, int | None]:
    """Return the class and the number of an instance: "RMSNorm_29" -> ("RMSNorm", 29)."""
    match = _NUMBERED.match(component)
    return (match[1], int(match[2])) if match else (component, None)


def map_layers_to_repeated_block(layers: Iterable[str]) -> Mapping[str, RepeatedBlockLayer]:
    """Return the part of the repeated block that each layer is. Layers outside, and all layers
    where nothing repeats, keep their names.

    The block is the component with children that has most instances.
    """
    paths = {
        layer: tuple(map(_split_class_and_instance_number, layer.split("."))) for layer in layers
    }
    parts = {layer: RepeatedBlockLayer(layer, None) for layer in paths}
    # (path above, class) -> numbers of its instances
    instances: defaultdict[tuple[LayerPath, str], set[int]] = defaultdict(set)
    blocks: defaultdict[tuple[LayerPath, str], set[int]] = defaultdict(set)
    for path in paths.values():
        for depth, (name, number) in enumerate(path):
            if number is not None:
                instances[path[:depth], name].add(number)
                if depth < len(path) - 1:
                    blocks[path[:depth], name].add(number)
    block = max(blocks, key=lambda key: (len(blocks[key]), -len(key[0])), default=None)
    if block is None or len(blocks[block]) < BLOCKS_MIN:
        return parts
    start = len(block[0])
    inside = {
        layer: path
        for layer, path in paths.items()
        if len(path) > start
        and (path[:start], path[start][0]) == block
        and path[start][1] is not None
    }
    # layer -> (class, which of its class there, from 1; 0 without a number) of each component
    components: dict[str, list[tuple[str, int]]] = {}
    most: defaultdict[tuple[tuple[str, ...], str], int] = defaultdict(int)
    for layer, path in inside.items():
        classes: list[tuple[str, int]] = []
        for depth in range(start + 1, len(path)):
            name, number = path[depth]
            above, ordinal = tuple(name for name, _ in classes), 0
            if number is not None:
                ordinal = sorted(instances[path[:depth], name]).index(number) + 1
            classes.append((name, ordinal))
            most[above, name] = max(most[above, name], ordinal)
        components[layer] = classes
    for layer, classes in components.items():
        names = [*layer.split(".")[:start], block[1] or "*"]
        for depth, (name, ordinal) in enumerate(classes):
            above = tuple(name for name, _ in classes[:depth])
            names.append(f"{name} {ordinal}" if most[above, name] > 1 else name)
        parts[layer] = RepeatedBlockLayer(".".join(names), inside[layer][start][1])
    return parts
