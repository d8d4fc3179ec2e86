"""What the conventions of MFU ask of a language model beside its layers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DecoderFacts:
    """Read from the built model and its config. Sizes are elements of parameters."""

    embedding: int
    """Of the table of tokens."""
    positions: int
    """Of learned positions, and any other table that is looked up."""
    tied: bool
    """The LM head has the weights of the table of tokens."""
    head: str | None
    """Dotted path of the LM head; None where the model has none."""
    hidden: int | None
    heads: int | None
    kv_heads: int | None
    windows: tuple[int | None, ...] | None
    """Tokens that each attention layer sees at most, in order; None in it: all of them. None: the
    config says nothing."""
    notes: tuple[str, ...] = ()
