"""What tests ask of a study."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perfctl.orchestrator.launch.sweep.study import StudyRequest, read_study


def ask(
    name: str,
    out: Path,
    *,
    quick: bool = False,
    source: Path | None = None,
    words: tuple[str, ...] = (),
    **typed: Any,
) -> StudyRequest:
    """A request with these options typed."""
    return StudyRequest(read_study(name), typed, out, quick, source, words=words)
