"""Restrict ncu to layers: ``--nvtx-include`` expressions for the NVTX ranges that perfctl puts around them.

An expression that ends in ``/`` matches a push/pop range anywhere in the stack, so the ranges around it need not be
named. Several options add up. (Nsight Compute CLI, "NVTX Filtering".)
"""

from __future__ import annotations

import re

from perfctl.orchestrator.errors import UsageError

DIRECTIONS = ("forward", "grad_input", "grad_weight", "grad_bias", "backward", "recompute")
"""Endings of a layer's ranges. The optimizer updates all layers at once and has a separate range."""

_SPECIAL = re.compile(r"[@,\[\]/*+\\]")
_OTHER = re.compile(r"[^A-Za-z0-9_-]+")
_REGEX = "regex:"


def check(layer: str) -> None:
    """Raises UsageError for a name that cannot be turned into an expression."""
    if not layer.strip() or layer.startswith(_REGEX):
        raise UsageError(
            f"`layer`: {layer!r} is not a layer name",
            "Use names as printed by perfctl show, for example conv2",
        )


def includes(layer: str) -> tuple[str, ...]:
    """The expressions for one layer: each of its directions, and a regular expression for longer names.

    ``conv2`` also matches ``model.conv2``, as layers of a script are named, and sublayers. A forward range encloses those
    of its sublayers, but backward ranges of sublayers stand alone, under names unknown before the run. In the regular
    expression, everything but letters, digits and dots becomes "some characters", which needs no escaping. It can only
    match too much, and every launch carries the name of its layer. Raises UsageError like ``check``.
    """
    check(layer)
    own = tuple(f"{escaped(layer)}:{direction}/" for direction in DIRECTIONS)
    return (*own, f"{_REGEX}(.+[.])?{_OTHER.sub(_any, layer)}([.].+)?:({'|'.join(DIRECTIONS)})/")


def _any(found: re.Match[str]) -> str:
    return "[.]" if found.group() == "." else ".+"


def escaped(name: str) -> str:
    """A range's name with a backslash before each character that ncu treats as special."""
    return _SPECIAL.sub(lambda found: f"\\{found.group()}", name)


def options(layers: tuple[str, ...]) -> tuple[str, ...]:
    """One ``--nvtx-include`` per expression; nothing without layers."""
    return tuple(word for layer in layers for expression in includes(layer) for word in ("--nvtx-include", expression))
