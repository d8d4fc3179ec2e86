"""Where tests cut a text off: around everything that separates cells, and at some places
inside cells."""

from __future__ import annotations

from collections.abc import Iterator

EVERY = 7


def cuts(text: str | bytes) -> Iterator[int]:
    """Lengths below that of the text, in order."""
    shown = text if isinstance(text, str) else text.decode("latin-1")
    for length in range(len(shown)):
        ends_cell = not shown[length - 1 : length + 1].isalnum() and shown[
            length - 1 : length + 1
        ].strip(" -")
        if length % EVERY == 0 or ends_cell:
            yield length
