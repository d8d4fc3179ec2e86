"""How much memory a call takes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any


def measure_peak(call: Callable[[], Any]) -> tuple[Any, int]:
    """Return what the call returns, and the most bytes that Python's objects took in it."""
    tracemalloc.start()
    try:
        return call(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
