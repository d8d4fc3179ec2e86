"""Narrowing ncu to layers: the expressions of ``--nvtx-include`` for the ranges that perfctl puts around them.

An expression that ends in ``/`` means a push/pop range, wherever in the stack it is, so the ranges of window, step
and enclosing layers need not be said. Options of this kind add up. (Nsight Compute CLI, "NVTX Filtering".)
"""

from __future__ import annotations

import re

from perfctl.orchestrator.errors import UsageError

DIRECTIONS = ("forward", "grad_input", "grad_weight", "grad_bias", "backward", "recompute")
"""What follows a layer's name in its ranges; the optimizer works on all layers at once and has a range of its own."""

_SPECIAL = re.compile(r"[@,\[\]/*+\\]")
_OTHER = re.compile(r"[^A-Za-z0-9_-]+")
_REGEX = "regex:"


def check(layer: str) -> None:
    """Raises UsageError for a name that no expression can be made of."""
    if not layer.strip() or layer.startswith(_REGEX):
        raise UsageError(
            f"--layer: {layer!r} is no name of a layer",
            "Layers are named as perfctl show and the page name them: conv2",
        )


def includes(layer: str) -> tuple[str, ...]:
    """The expressions for one layer: each of its directions; and what is called so in a larger model, and layers inside.

    ``conv2`` also means ``model.conv2``, which is how a script's layers are named. A layer's forward range holds those
    of the layers inside it, but in backward each of these has ranges of its own that nothing encloses. These names are
    not known before the run: they are found by a regular expression. In it anything but letters, digits and dots stands
    for "some characters", which needs no escaping and can only let through too much: each launch tells its own layer.
    """
    check(layer)
    own = tuple(f"{escaped(layer)}:{direction}/" for direction in DIRECTIONS)
    return (*own, f"{_REGEX}(.+[.])?{_OTHER.sub(_any, layer)}([.].+)?:({'|'.join(DIRECTIONS)})/")


def _any(found: re.Match[str]) -> str:
    return "[.]" if found.group() == "." else ".+"


def escaped(name: str) -> str:
    """A range's name as ncu takes it literally: its quantifiers, and the backslash itself, after a backslash."""
    return _SPECIAL.sub(lambda found: f"\\{found.group()}", name)


def options(layers: tuple[str, ...]) -> tuple[str, ...]:
    """``--nvtx-include`` once for each expression; nothing without layers."""
    return tuple(word for layer in layers for expression in includes(layer) for word in ("--nvtx-include", expression))
