"""What a trace states about the call of a kernel that Inductor wrote."""

from __future__ import annotations

from typing import NamedTuple


class Facts(NamedTuple):
    """Of one call; None is not stated."""

    file: str | None
    hash: str | None
    backend: str | None
    elements: int | None = None
    """Elements that the loops run over, those of a reduction included; of a template those of its output."""
    reduced: int | None = None
    """Elements that are reduced into one result; None where nothing is."""
    argument_bytes: int | None = None
    """Of all tensors that it is given, once each."""
    flops: int | None = None
    """Of its product; 1 multiply-add is 2 FLOPs."""
    stated_flops: int | None = None
    stated_bytes: int | None = None
    why: str | None = None
    """Why a template's FLOPs are not known."""
