"""Which commit of the user's code runs: asked of git, which may be absent. Nothing in the repository is changed."""

from __future__ import annotations

import subprocess
from pathlib import Path

from perfctl.orchestrator.launch.machine import tools

LIMIT_S = 5.0
"""Of one question: a repository that takes longer is treated as unknown."""
QUIET = ("--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
"""Options of git: neither the index is refreshed nor a program of the repository's own started."""


def revision(folder: Path, script: Path | None = None) -> dict[str, str]:
    """Facts for a run's environment: commit, commit_time (ISO 8601) and uncommitted_changes ("yes" or "no").

    folder: where the code lies. script: a file of it that is run; one that git does not track is a change, too. Other
    untracked files are not looked at. Empty without git, without a repository and without a commit; a fact that git does
    not give in time is left out.
    """
    head = answer(folder, "log", "-1", "--no-show-signature", "--format=%H %cI", "HEAD")
    commit, _, moment = (head or "").strip().partition(" ")
    if not commit:
        return {}
    changed = answer(folder, "status", "--porcelain", "--untracked-files=no", "--ignore-submodules=none")
    tracked = "" if script is None else answer(folder, "ls-files", "--", str(script.absolute()))
    found = {"commit": commit, "commit_time": moment}
    if changed is None or tracked is None:
        return found
    is_changed = bool(changed.strip()) or (script is not None and not tracked.strip())
    return {**found, "uncommitted_changes": "yes" if is_changed else "no"}


def answer(folder: Path, *words: str, limit_s: float = LIMIT_S) -> str | None:
    """What git says in ``folder``; None where it is missing, refuses or takes too long."""
    try:
        code, lines, _ = tools.run(["git", *QUIET, "-C", str(folder), *words], limit_s)
    except (OSError, subprocess.SubprocessError):
        return None
    return "\n".join(lines) if code == 0 else None
