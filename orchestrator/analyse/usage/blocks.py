"""Repeated blocks of a language model, found in the paths of its layers: the same part of every block has one name.

``Qwen3DecoderLayer_0.Qwen3Attention_0.RMSNorm_1`` and ``Qwen3DecoderLayer_7.Qwen3Attention_7.RMSNorm_29`` are the same part of
blocks 0 and 7: ``Qwen3DecoderLayer.Qwen3Attention.RMSNorm 1``, where the attention has a second RMSNorm. A trace numbers the
instances of a class over the whole model, so a part is found by its place among those of its class in its block.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

_NUMBERED = re.compile(r"(.*?)_?(\d{1,9})\Z")
LEAST = 2
"""Blocks from which a model is said to repeat one."""


class Part(NamedTuple):
    """Where a layer lies."""

    name: str
    """Without the numbers of instances."""
    block: int | None
    """Which block; None outside of them."""


def fold(layers: Iterable[str]) -> Mapping[str, Part]:
    """Layer -> its part of the repeated block. Layers outside, and all layers where nothing repeats, keep their names."""
    paths = {layer: tuple(layer.split(".")) for layer in layers}
    depth, prefix, kind = _block(paths.values())
    found = {layer: Part(layer, None) for layer in paths}
    inside = {
        layer: (int(number[2]), path[depth + 1 :])
        for layer, path in paths.items()
        if depth >= 0 and len(path) > depth and path[:depth] == prefix
        and (number := _NUMBERED.match(path[depth])) and number[1] == kind
    }  # fmt: skip
    instances: defaultdict[tuple[int, tuple[str, ...], str], set[int]] = defaultdict(set)
    for block, rest in inside.values():
        for at, name in enumerate(rest):
            if number := _NUMBERED.match(name):
                instances[block, rest[:at], number[1]].add(int(number[2]))
    most: defaultdict[tuple[tuple[str, ...], str], int] = defaultdict(int)
    places: dict[str, list[tuple[str, int]]] = {}
    for layer, (block, rest) in inside.items():
        said: list[tuple[str, int]] = []
        for at, name in enumerate(rest):
            number = _NUMBERED.match(name)
            place = sorted(instances[block, rest[:at], number[1]]).index(int(number[2])) + 1 if number else 0
            said.append((number[1] if number else name, place))
            above = tuple(name for name, _ in said[:-1])
            most[above, said[-1][0]] = max(most[above, said[-1][0]], place)
        places[layer] = said
    outer = ".".join((*prefix, kind)) if kind else ".".join((*prefix, "*"))
    for layer, said in places.items():
        names = [outer]
        for at, (name, place) in enumerate(said):
            above = tuple(name for name, _ in said[:at])
            names.append(f"{name} {place}" if most[above, name] > 1 else name)
        found[layer] = Part(".".join(names), inside[layer][0])
    return found


def _block(paths: Iterable[tuple[str, ...]]) -> tuple[int, tuple[str, ...], str]:
    """(depth, path above, class) of the component with children that has most instances; depth -1 where none has LEAST."""
    numbers: defaultdict[tuple[int, tuple[str, ...], str], set[int]] = defaultdict(set)
    for path in paths:
        for depth, name in enumerate(path[:-1]):
            if found := _NUMBERED.match(name):
                numbers[depth, path[:depth], found[1]].add(int(found[2]))
    best = max(numbers, key=lambda key: (len(numbers[key]), -key[0]), default=None)
    return best if best is not None and len(numbers[best]) >= LEAST else (-1, (), "")
