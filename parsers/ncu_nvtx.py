"""NVTX ranges around an ncu launch: its two CSV columns, and perfctl's range names in them.

A push/pop cell, as ncu prints it with ``--nvtx`` (quotes are part of the cell, outermost range first)::

    97844  "<default domain>:perfctl:step:3:none:none:none:none:none:none"  "<default domain>:conv2:forward:none:..."

Each quoted part is domain:name and six fields (payload type and value, colour type and colour, message type and
message). A name may contain colons, so the six fields are split off from the right.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from perfctl.parsers.range_names import RANGE_PREFIX, read_range_name
from perfctl.parsers.records import Gap, Kernel

PUSH_POP = "Push/Pop_Range"
START_END = "Start/Stop_Range"

_DEFAULT_DOMAIN = "<default domain>:"
_QUOTED = re.compile(r'"(.*?)"(?=\s*(?:"|$))', re.DOTALL)
_REPEATED_MESSAGE = re.compile(r"(?P<name>.+):[^:]*:[^:]*:[^:]*:[^:]*:[^:]*:(?P=name)", re.DOTALL)
_FIELDS = 6
_NO_FIELDS = ":none" * _FIELDS
_LONGEST_NAME = 2000
_OF_BACKWARD = ("grad_input", "grad_weight", "grad_bias", "backward", "recompute")
"""Directions of work on autograd's own thread."""


class Place(NamedTuple):
    """Layer, direction and step of a launch; all None when no perfctl range encloses it. Optimizer work has no layer."""

    layer: str | None = None
    direction: str | None = None
    step: int | None = None


def range_names(cell: str) -> list[str]:
    """Names of the ranges in one cell, outermost first, without domains."""
    return [_name(part) for part in _QUOTED.findall(cell)]


def cell_of(name: str) -> str:
    """A range of the console text as it would stand in a cell of the CSV, to be joined with others."""
    return f'  "{_DEFAULT_DOMAIN}{name}{_NO_FIELDS}"'


def _name(part: str) -> str:
    """ "<default domain>:conv2:forward:none:none:none:none:none:none" -> "conv2:forward"."""
    default = part.startswith(_DEFAULT_DOMAIN)
    rest = part[len(_DEFAULT_DOMAIN) :] if default else part.partition(":")[2]
    repeated = _REPEATED_MESSAGE.fullmatch(rest) if len(rest) < _LONGEST_NAME else None
    if repeated:  # ranges with attributes carry their name again as the message, colons included
        return repeated["name"]
    fields = rest.rsplit(":", _FIELDS)
    return fields[0] if len(fields) > _FIELDS else rest


def innermost(names: Iterable[str]) -> Place:
    """Layer and step of the innermost perfctl ranges among ``names`` (outermost first).

    In the optimizer phase there is no layer, only the direction.
    """
    place, phase = Place(), None
    for name in names:
        found = read_range_name(name)
        if found.layer is not None:
            place = place._replace(layer=found.layer, direction=found.direction)
        if found.step is not None:
            place = place._replace(step=found.step)
        if found.phase is not None:
            phase = found.phase
    if place.layer is None and phase == "optimizer":
        place = place._replace(direction=phase)
    return place


@lru_cache(maxsize=4096)
def place_of(push_pop: str, start_end: str = "") -> Place:
    """Layer, direction and step of a launch with these two cells.

    Start/end ranges do not nest, so they count only where no push/pop range says a layer and all of them that
    name a layer name the same.
    """
    place = innermost(range_names(push_pop))
    if place.layer is not None or not start_end:
        return place
    others = [innermost([name]) for name in range_names(start_end)]
    layers = {(other.layer, other.direction) for other in others if other.layer is not None}
    if len(layers) != 1:
        return place
    layer, direction = layers.pop()
    return place._replace(layer=layer, direction=direction)


@lru_cache(maxsize=4096)
def place_in_name(name: str) -> Place | None:
    """Layer, direction and step of a launch that ncu printed under its range's name; None for a kernel's name.

    With ``--print-nvtx-rename kernel`` the innermost push/pop range replaces the kernel's name. Only
    perfctl's ranges are told from kernels; should ncu print outer ranges too, they stand before a slash.
    """
    if "(" in name or "<" in name:
        return None
    parts = name.split("/")
    if not any(part.startswith(RANGE_PREFIX) or read_range_name(part).layer is not None for part in parts):
        return None
    return innermost(parts)


def with_steps(kernels: Iterable[Kernel]) -> list[Kernel]:
    """The launches in their order, those from autograd's own thread put into the step they ran in.

    The step's range is on the loop's thread only. ncu runs one launch after the other, so what lies between two
    launches of one step is in it, and a layer's gradients at the end of a step are in the step before the next.
    """
    found = list(kernels)
    following: list[int | None] = [None] * len(found)
    for number in range(len(found) - 2, -1, -1):
        after = found[number + 1].step
        following[number] = following[number + 1] if after is None else after
    before: int | None = None
    for number, kernel in enumerate(found):
        if kernel.step is not None:
            before = kernel.step
        elif before is not None and (kernel.direction in _OF_BACKWARD or following[number] == before):
            found[number] = kernel._replace(step=before)
    return found


def name_gaps(names: Sequence[str]) -> list[Gap]:
    """The gap for launches whose names are ranges, if there are any."""
    renamed = [name for name in names if place_in_name(name) is not None]
    if not renamed:
        return []
    reason = (
        f'ncu printed the NVTX range (such as "{renamed[0][:100]}") instead of the kernel\'s name for {len(renamed)} of'
        f" {len(names)} launches; export the report again without --print-nvtx-rename"
    )
    return [Gap("kernel.name", "not_available", reason)]
