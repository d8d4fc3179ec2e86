"""Traces of JAX that break off; what they hold otherwise is a case (tests/data/kineto/jax)."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.parsers import parse
from perfctl.parsers.kineto import xla

TRACE = Path(__file__).resolve().parents[2] / "data" / "kineto" / "jax" / "two_gpus.json"


@pytest.mark.parametrize(("beyond", "gaps"), [(0, 1), (-1, 0)])
def test_a_trace_as_long_as_the_limit_may_lack_events(
    beyond: int, gaps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = TRACE.read_text().count('"ph": "X"')
    monkeypatch.setattr(xla, "LIMIT", events + beyond)
    assert sum(gap.quantity == "kernel" for gap in parse(TRACE).gaps) == gaps
