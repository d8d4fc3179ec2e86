"""Stands for a profiled process in a replay: ``python -m perfctl.orchestrator.launch.replay_copy FROM TO``.

It puts one recorded batch size into a run's folder and says what the recorded program said.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from perfctl.orchestrator.launch.replay import RECORD_NAME

_NOT_COPIED = {"stdout.log", "stderr.log", "tmp"}
"""The logs are printed instead, into this run's own."""


def main(arguments: Sequence[str]) -> int:
    """Copy one recorded run. Exit code 2 when it is not there."""
    source, target = map(Path, arguments)
    if not source.is_dir():
        sys.stderr.write(f"{source}: this batch size was not recorded\n")
        return 2
    for path in source.rglob("*"):
        if path.is_symlink() and not path.resolve().is_relative_to(source.resolve()):
            sys.stderr.write(f"{path}: this link leads out of the recording, and is not followed\n")
            return 2
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.iterdir()):
        if path.name in _NOT_COPIED:
            continue
        to = target / (RECORD_NAME if path.name == "run.json" else path.name)
        if path.is_dir():
            shutil.copytree(path, to, copy_function=shutil.copyfile, dirs_exist_ok=True)
        else:
            shutil.copyfile(path, to)
    for name, stream in (("stdout.log", sys.stdout), ("stderr.log", sys.stderr)):
        if (source / name).exists():
            stream.write((source / name).read_text(encoding="utf-8", errors="replace"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
