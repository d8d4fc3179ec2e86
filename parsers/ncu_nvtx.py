"""The ranges around an ncu launch: its two CSV columns, and what perfctl's own range names in them say.

A push/pop cell, as ncu prints it with ``--nvtx`` (quotes are part of the cell, outermost range first)::

    97844  "<default domain>:perfctl:step:3:none:none:none:none:none:none"  "<default domain>:conv2:forward:none:..."

Each quoted part is domain:name and six fields (payload type and value, colour type and colour, message type and
message). A name may hold colons itself, so those six are taken off from the right.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from perfctl.parsers.range_names import read_range_name

PUSH_POP = "Push/Pop_Range"
START_END = "Start/Stop_Range"

_DEFAULT_DOMAIN = "<default domain>:"
_QUOTED = re.compile(r'"(.*?)"(?=\s*(?:"|$))', re.DOTALL)
_REPEATED_MESSAGE = re.compile(r"(?P<name>.+):[^:]*:[^:]*:[^:]*:[^:]*:[^:]*:(?P=name)", re.DOTALL)
_FIELDS = 6
_LONGEST_NAME = 2000


class Place(NamedTuple):
    """Where a launch belongs; all None when no perfctl range encloses it."""

    layer: str | None = None
    direction: str | None = None
    step: int | None = None


def range_names(cell: str) -> list[str]:
    """Names of the ranges in one cell, outermost first, domains taken off."""
    return [_name(part) for part in _QUOTED.findall(cell)]


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
    """Layer and step of the innermost perfctl ranges among ``names`` (outermost first)."""
    place = Place()
    for name in names:
        found = read_range_name(name)
        if found.layer is not None:
            place = place._replace(layer=found.layer, direction=found.direction)
        if found.step is not None:
            place = place._replace(step=found.step)
    return place


@lru_cache(maxsize=4096)
def place_of(push_pop: str, start_end: str = "") -> Place:
    """Where a launch with these two cells belongs.

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
