"""The process of a replayed run: ``python -m perfctl.orchestrator.launch.profilers.replay_copy
FROM TO``.

Copies one recorded run into a run's folder and prints the recorded output.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from perfctl.orchestrator.launch.sweep.folders import RECORD_NAME

_NOT_COPIED = {"stdout.log", "stderr.log", "tmp"}
"""The logs are printed instead, into the new run's logs."""


def copy_recorded_run(arguments: Sequence[str]) -> int:
    """Copy one recorded run. Exit code 2 when it does not exist, or a link leads out of it."""
    source, target = map(Path, arguments)
    if not source.is_dir():
        sys.stderr.write(f"{source} does not exist: this batch size was not recorded\n")
        return 2
    for path in source.rglob("*"):
        if path.is_symlink() and not path.resolve().is_relative_to(source.resolve()):
            sys.stderr.write(f"{path}: link to a file outside the recording\n")
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
    sys.exit(copy_recorded_run(sys.argv[1:]))
