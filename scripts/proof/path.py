"""Counts the modules that a report enters, and the calls upward, on its way from ``ingest`` to the
store:

    python scripts/proof/path.py [REPORT] [--list]

A profile hook (``sys.setprofile``) follows ``perfctl.ingest(REPORT, STORE, jobs=1)`` in this
process and in the worker that reads the report; everything was loaded by an ingest before. Counted
are, in the worker, from the call of ``parsers.parse_every_run`` to the return of
``store.write.write_run``:

* modules: files of perfctl with a function that was called in between, or that called it (the
functions between ``ingest`` and the call of ``parsers.parse_every_run`` in both processes). The
ground is not counted: records, redaction, errors, memory, files; nor is what is asked about one
name or one number (analyse). * calls upward: pairs of functions of which the callee lies in a
higher room than the caller. The rooms from top to bottom: cli and commands (actions), report,
compare and predict, ledger, ingest (with its workers), counts and estimate (analyse), launch,
parsers and store, ground. A callback, and a generator that goes on, is a call. What a library calls
counts as called by the function of perfctl that called the library.

Without REPORT, the nsys export of tests/data/recorded-cpu, which has no kernels, is taken. Run it
with the interpreter that has the perfctl to be measured; it works with 1.0 as well.

    python scripts/proof/path.py --command "compare A.db B.db" [--list]

follows a command instead, in this process, from its arguments to its answer. The functions of
perfctl are put in the order in which each is called first, and a stay is a run of them in one
module. Counted are stays, modules, and returns: stays in a module that was left before.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shlex
import sys
import tempfile
from itertools import groupby
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ROOMS = (
    ("perfctl.orchestrator.cli", 9),
    ("perfctl.orchestrator.commands", 9),
    ("perfctl.orchestrator.report", 8),
    ("perfctl.orchestrator.compare", 7),
    ("perfctl.orchestrator.predict", 7),
    ("perfctl.orchestrator.ledger", 6.5),
    ("perfctl.orchestrator.counts", 5),
    ("perfctl.orchestrator.estimate", 5),
    ("perfctl.orchestrator.ingest", 6),
    ("perfctl.orchestrator.pool", 6),
    ("perfctl.orchestrator.faults", 6),
    ("perfctl.orchestrator.analyse", 5),
    ("perfctl.orchestrator.launch", 4),
    ("perfctl.orchestrator.store", 2),
    ("perfctl.parsers", 2),
)
"""Beginnings of module names, and how high their room lies; 1.0's folders of ingest too."""
GROUND = 0.0
ANALYSIS = 5.0
FIRST, LAST = ("perfctl.parsers", "reports"), ("perfctl.orchestrator.store.write", "write_run")


def height(module: str) -> float:
    """Return how high the room of a module lies."""
    return next((level for start, level in ROOMS if module.startswith(start)), GROUND)


def caller_of(frame: FrameType) -> FrameType | None:
    """Return the next frame of perfctl that called it."""
    above = frame.f_back
    while above is not None and not module_of(above).startswith("perfctl"):
        above = above.f_back
    return above


def module_of(frame: FrameType) -> str:
    """Return the name of the module whose code runs in the frame."""
    return str(frame.f_globals.get("__name__", ""))


class Hook:
    """Follows the calls of a process."""

    def __init__(self, answer: Path) -> None:
        self._answer = answer
        self._is_on_path = False
        self.modules: set[str] = set()
        self.upward: set[tuple[str, str]] = set()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Take one event of ``sys.setprofile``."""
        module = module_of(frame)
        if not module.startswith("perfctl.") or frame.f_code.co_name == "<module>":
            return  # what a module does when it is first imported is no step of the path
        place = module, frame.f_code.co_name
        if event == "call" and place == FIRST:
            self._is_on_path = True
            above = caller_of(frame)
            while above is not None:
                self.modules.add(module_of(above))
                above = caller_of(above)
        if event == "call" and self._is_on_path:
            self.modules.add(module)
            above = caller_of(frame)
            if above is not None and height(module) > height(module_of(above)):
                self.upward.add((_name(above), _name(frame)))
        if event == "return" and place == LAST and self._is_on_path:
            self._is_on_path = False
            self._answer.write_text(json.dumps([sorted(self.modules), sorted(self.upward)]))


def _name(frame: FrameType) -> str:
    return f"{module_of(frame)}.{frame.f_code.co_qualname}"


def follow_command(words: list[str]) -> list[str]:
    """Return the module of each function that a command calls, in the order of first calls."""
    from perfctl.orchestrator.cli.main import main as perfctl

    modules: dict[CodeType, str] = {}

    def hook(frame: FrameType, event: str, argument: Any) -> None:
        # no comprehensions, no lambdas, and no methods that dataclass makes
        is_named = "<" not in frame.f_code.co_name and frame.f_code.co_filename != "<string>"
        if event == "call" and is_named and module_of(frame).startswith("perfctl."):
            modules.setdefault(frame.f_code, module_of(frame))

    for is_followed in (False, True):  # first only to load everything
        with (
            contextlib.suppress(SystemExit),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            sys.setprofile(hook if is_followed else None)
            perfctl(words)
        sys.setprofile(None)
    return list(modules.values())


def main() -> None:
    """Measure, and print the numbers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = ROOT / "tests/data/recorded-cpu/nsys/b16/report.sqlite"
    parser.add_argument("report", nargs="?", type=Path, default=default)
    parser.add_argument("--command", help="a command to follow, with its arguments")
    parser.add_argument("--list", action="store_true", help="name the modules and the calls")
    asked = parser.parse_args()
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    if asked.command:
        stays = [module for module, _ in groupby(follow_command(shlex.split(asked.command)))]
        rooms = set(stays)
        print(f"{len(stays)} stays, {len(rooms)} modules, {len(stays) - len(rooms)} returns")
        if asked.list:
            print(*stays, sep="\n")
        return
    import perfctl

    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "answer.json")
        perfctl.ingest(asked.report, Path(folder, "first.db"), jobs=1)
        sys.setprofile(Hook(answer))  # a forked worker keeps it
        perfctl.ingest(asked.report, Path(folder, "second.db"), jobs=1)
        sys.setprofile(None)
        modules, upward = json.loads(answer.read_text())
    counted = [name for name in modules if height(name) not in (GROUND, ANALYSIS)]
    print(f"{len(counted)} modules, {len(upward)} calls upward")
    if asked.list:
        print(*counted, "", *(f"{caller} -> {callee}" for caller, callee in upward), sep="\n")


if __name__ == "__main__":
    main()
