"""Run a sweep on two revisions of the user's repository alternately, so that what they measured can
be compared."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import NamedTuple

from perfctl.orchestrator.errors import RunFailed, ToolMissing, UsageError
from perfctl.orchestrator.events import SILENT, Events
from perfctl.orchestrator.launch.process import run as process
from perfctl.orchestrator.launch.profilers.base import Command
from perfctl.orchestrator.launch.sweep.request import run_git

PROFILERS = ("torch", "nsys", "ncu", "dlprof")
"""Commands that may be run on both revisions."""
RUNS = Path("perfctl-runs")
HERE = "here"
"""Name of side B."""
REPEAT = 5
_OWN = (
    "--out",
    "--store",
    "--repeat",
    "--again",
    "--no-store",
    "--dry-run",
    "--json",
    "--format",
    "--report",
)
"""Options of the sweep that are chosen here."""
_LIMIT_S = 300.0
"""For git to write the files of a revision."""


class RevisionStores(NamedTuple):
    """Stores of the two sides."""

    a: Path
    b: Path


class _RevisionSide(NamedTuple):
    name: str
    top: Path
    """Top folder of its files."""
    folder: Path
    """Where the sweep is run."""


def run_sweep_on_both_revisions(
    rev: str, sweep_command: Sequence[str], *, repeat: int = REPEAT, messages: Events = SILENT
) -> RevisionStores:
    """Measure a revision of the repository (A) and its files here (B), as they are; return where
    the runs are kept.

    rev: a commit, branch or tag. sweep_command: a sweep as one would type it, ("torch",
    "--batches", "32", "--", "python", "train.py", "{batch}"). It is run ``repeat`` times on each
    side, alternately (A B, B A, ...), so that a machine that gets slower does so for both. A has
    the committed files of the revision only, in a folder of its own that is removed afterwards; its
    ``src`` and top folder come first when modules are looked for, and so do those here for B.
    Raises UsageError for a revision or sweep that cannot be, ToolMissing without git, RunFailed
    when a sweep fails, and Interrupted.
    """
    _raise_if_revision_sweep_invalid(sweep_command, repeat)
    top, commit = _find_repository_and_commit(rev)
    RUNS.mkdir(exist_ok=True)
    work_folder = next(
        path
        for attempt in count(1)
        if not (path := (RUNS / f"compare-{commit[:12]}-{attempt}").absolute()).exists()
    )
    with _check_out_commit_temporarily(commit, top) as code:
        here = Path.cwd().relative_to(top)
        if not (code / here).is_dir():
            raise UsageError(
                f"`rev` {rev}: it has no folder {here}", "Run in a folder that both revisions have"
            )
        sides = (
            _RevisionSide(commit[:12], code, code / here),
            _RevisionSide(HERE, top, Path.cwd()),
        )
        for turn in range(repeat):
            for side in sides if turn % 2 == 0 else reversed(sides):
                messages.note(f"{side.name}, run {turn + 1} of {repeat}")
                _run_sweep_of_revision(side, work_folder, sweep_command, again=turn > 0)
    a, b = (work_folder / f"{side.name}.db" for side in sides)
    return RevisionStores(a, b)


def _raise_if_revision_sweep_invalid(arguments: Sequence[str], repeat: int) -> None:
    if not arguments or arguments[0] not in PROFILERS:
        problem = f"'{arguments[0]}' is not a sweep" if arguments else "got none"
        raise UsageError(
            f"`rev` needs a sweep to run on both revisions, and {problem}",
            "perfctl compare --rev main -- torch --batches 32 -- python train.py '{batch}'",
        )
    sweep_arguments = arguments[1 : arguments.index("--")] if "--" in arguments else arguments[1:]
    for argument in sweep_arguments:
        if argument.partition("=")[0] in _OWN:
            raise UsageError(
                f"`rev` chooses {argument.partition('=')[0]} itself",
                "Omit it; `repeat` is an option of compare",
            )
    if repeat < 1:
        raise UsageError(f"`repeat` must be at least 1, got {repeat}")


def _find_repository_and_commit(revision: str) -> tuple[Path, str]:
    """Its top folder, and the commit that the revision names."""
    if shutil.which("git") is None:
        raise ToolMissing("`rev` needs git, which is not installed", "Install git")
    top = run_git(Path.cwd(), "rev-parse", "--show-toplevel")
    if not top:
        raise UsageError(
            "`rev`: this folder is not in a git repository", "Run it in the folder of your code"
        )
    commit = run_git(
        Path.cwd(), "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"
    )
    if not commit:
        raise UsageError(
            f"`rev` {revision}: the repository has no such revision",
            "Run 'git branch' or 'git log' to list revisions",
        )
    return Path(top), commit.strip()


@contextmanager
def _check_out_commit_temporarily(commit: str, top: Path) -> Iterator[Path]:
    """A folder with the files of a commit; gone afterwards, as far as git knows, too."""
    run_git(top, "worktree", "prune")  # of a comparison that was killed
    holder = Path(tempfile.mkdtemp(prefix="perfctl-revision-"))
    code = holder / top.name
    try:
        if (
            run_git(
                top, "worktree", "add", "--detach", "--quiet", str(code), commit, limit_s=_LIMIT_S
            )
            is None
        ):
            raise RunFailed(
                f"git cannot write the files of {commit[:12]} to {code}",
                "Run 'git worktree add' manually to see the reason",
            )
        yield code
    finally:
        shutil.rmtree(holder, ignore_errors=True)
        run_git(top, "worktree", "prune")


def _run_sweep_of_revision(
    side: _RevisionSide, folder: Path, arguments: Sequence[str], *, again: bool
) -> None:
    """One sweep of one side, in a process of its own. Raises RunFailed with the last line
    it said."""
    side_options = [
        "--out",
        str(folder / side.name),
        "--store",
        str(folder / f"{side.name}.db"),
        *(["--again"] if again else []),
    ]
    end = arguments.index("--") if "--" in arguments else len(arguments)
    argv = (
        sys.executable,
        "-P",
        "-m",
        "perfctl",
        *arguments[:end],
        *side_options,
        *arguments[end:],
    )
    sources = [str(path) for path in (side.top / "src", side.top) if path.is_dir()]
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    command = Command(
        argv, f"the sweep of {side.name}", {"PYTHONPATH": os.pathsep.join([*sources, *paths])}
    )
    log = folder / f"{side.name}.log"
    done = process.run_command(
        command, cwd=side.folder, stdout=log, stderr=log, scratch=folder / "scratch"
    )
    if done.exit_code:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or [
            "it printed nothing"
        ]
        hint = (
            ""
            if side.name == HERE
            else ". It has committed files only: use the full path of other data"
        )
        raise RunFailed(
            f"the sweep of {side.name} ended with exit code {done.exit_code}: "
            f"{lines[-1].removeprefix('perfctl: ')}",
            f"See {log}{hint}",
        )
